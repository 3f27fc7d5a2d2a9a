"""Random pipelines give the same elements in every proposed order.

PECAN_RANDOM_ORDERS sets the number of random pipelines (20 by default), and PECAN_RANDOM_SEED the first seed. `make orders
CASES=5000` sets both. Each pipeline is built once and runs in several orders. At its end the run prints the number of orders.
"""

from __future__ import annotations

import collections
import os
import random
from collections.abc import Callable

import gen
import graph_oracle as oracle
import pytest
import tensorflow as tf
from graph_orders import (
    Request,
    Step,
    apply_steps,
    filter_step,
    images,
    on_image,
    on_label,
    outcome,
    propose_all,
    random_metrics,
    same_outcome,
)

COUNT = int(os.environ.get("PECAN_RANDOM_ORDERS", "20"))
FIRST = int(os.environ.get("PECAN_RANDOM_SEED", "1"))
CHUNK = 20
MEASUREMENTS = 8
WALKS = 6

# Random steps compute one element after another. Otherwise their values would depend on which call comes first.
DRAWN = ("at_random", "brightens", "contrasts", "saturates", "adds_noise")


def steps_of(size: int | None) -> dict[str, Step]:
    """The steps of random pipelines."""
    image = {
        name: on_image(step, name.replace("__", "_"), **({} if name.endswith(DRAWN) or len(name) % 3 == 0 else {"num_parallel_calls": 2}))
        for name, step in gen.image_steps(size).items()
    }
    return image | {
        "narrows": on_image(lambda x: tf.cast(x, tf.float16), "narrows"),
        "widens": on_image(lambda x: tf.cast(x, tf.float64), "widens"),
        "bytes": on_image(lambda x: tf.saturate_cast(x * 255, tf.uint8), "bytes"),
        "adds_label": lambda d: d.map(lambda x, y: (x + tf.cast(y, x.dtype), y), name="adds_label"),
        "labels_by_size": lambda d: d.map(lambda x, y: (x, y + tf.shape(x, tf.int64)[0]), name="labels_by_size"),
        "labels_by_values": lambda d: d.map(lambda x, y: (x, y + tf.cast(tf.reduce_max(tf.cast(x, tf.float32)), tf.int64)), name="labels_by_values"),
        "next_label": on_label(lambda y: y + 1, "next_label"),
        "divides_label": on_label(lambda y: 1000 // (y - 5), "divides_label"),
        "asserts": lambda d: d.map(lambda x, y: (x, gen.checked(y, y)[1]), name="asserts"),
        "swaps": lambda d: d.map(lambda x, y: (tf.identity(x), tf.identity(y)), name="swaps"),
        "odd": filter_step(lambda x, y: y % 2 == 1, "odd"),
        "large": filter_step(lambda x, y: y > 1, "large"),
        "divisor": filter_step(lambda x, y: 12 // (y - 4) != 6, "divisor"),
        "chance": filter_step(lambda x, y: tf.random.uniform([]) > 0.3, "chance"),
        "tall": filter_step(lambda x, y: tf.shape(x)[0] > 20, "tall"),
        "bright": filter_step(lambda x, y: tf.reduce_mean(tf.cast(x, tf.float32)) > 0.4, "bright"),
        "batches": lambda d: d.batch(3),
        "rows": lambda d: d.batch(2, drop_remainder=True),
        "prefetch": lambda d: d.prefetch(2),
        "shuffles": lambda d: d.shuffle(4, seed=3, reshuffle_each_iteration=False),
    }


def random_pipeline(rng: random.Random) -> tuple[list[str], tf.data.Dataset] | None:
    size = rng.choice([32, None])
    steps = steps_of(size)
    # Filters and random steps often stand next to each other.
    drawing = [name for name in steps if name.endswith(DRAWN)]
    others = [name for name in steps if name not in gen.image_steps(size)] + drawing
    names = [rng.choice(others if rng.random() < 0.5 else sorted(steps)) for _ in range(rng.randint(3, 7))]
    if rng.random() < 0.5:
        at = rng.randint(0, len(names))
        names[at:at] = [rng.choice(drawing), rng.choice(["odd", "large", "chance"])]
    tf.random.set_seed(rng.randrange(1000))
    inside = rng.randint(2, len(names)) if rng.random() < 0.3 else 0

    def source(*_: tf.Tensor) -> tf.data.Dataset:
        dataset = images(size).apply(on_image(lambda x: tf.cast(x, tf.float32) / 256, "floats"))
        return apply_steps(dataset, [steps[name] for name in names[:inside]])

    draws = any(name.endswith((*DRAWN, "chance")) for name in names[:inside])
    try:
        dataset = interleaved(rng, source, parallel=not draws) if inside else source()
        dataset = apply_steps(dataset, [steps[name] for name in names[inside:]])
    except (ValueError, TypeError):
        # One step does not support the result of another.
        return None
    if not outcome(without_optimizations(dataset.take(1)))[0]:
        # Nothing could be compared.
        return None
    if inside:
        names.insert(inside, "interleaves")
    return [f"images({size})", "floats", *names], dataset


def interleaved(rng: random.Random, function: Callable[..., tf.data.Dataset], parallel: bool) -> tf.data.Dataset:
    """The datasets of a function, in turns or one after the other."""
    if rng.random() < 0.4:
        return tf.data.Dataset.range(2).flat_map(function)
    calls = {"num_parallel_calls": 2, "deterministic": True} if parallel and rng.random() < 0.5 else {}
    return tf.data.Dataset.range(3).interleave(function, cycle_length=2, block_length=rng.randint(1, 2), **calls)


def random_request(seed: int) -> tuple[list[str], Request]:
    """A random pipeline and its request. Every fourth one is in mode deterministic, and runs stream by stream."""
    rng = random.Random(seed)
    made = None
    while made is None:
        made = random_pipeline(rng)
    names, dataset = made
    metrics = [random_metrics(rng, len(names) + 1) for _ in range(MEASUREMENTS)]
    whole = {"mode": "DETERMINISTIC", "streams": True} if seed % 4 == 0 else {}
    return names, Request(dataset, metrics, walks=WALKS, seed=seed, **whole)


@pytest.mark.parametrize("chunk", range(-(-COUNT // CHUNK)))
def test_random_pipelines_in_proposed_orders(ordergraph, tmp_path, record_property, chunk):
    """The sequence of elements is the same. In mode deterministic each stream has the same sequence with the same random values."""
    seeds = range(FIRST + chunk * CHUNK, FIRST + min((chunk + 1) * CHUNK, COUNT))
    made = {str(seed): random_request(seed) for seed in seeds}
    counts = collections.Counter(pipelines=len(made))
    for name, proposals in propose_all(ordergraph, tmp_path, {name: request for name, (_, request) in made.items()}).items():
        names, one = made[name]
        want = run(one, oracle.read_cut(tmp_path, f"{name}.registered") if one.streams else oracle.serialize(one.dataset))
        orders = {tuple(proposal.order): proposal for proposal in proposals if proposal.order}
        counts["registered"] += any(not proposal.order for proposal in proposals)
        if any(found for found, _ in want):
            counts["orders"] += len(orders)
        for order, proposal in orders.items():
            ours = run(one, proposal.cut or proposal.graph)
            assert len(ours) == len(want), (name, names, order)
            for stream, (mine, wanted) in enumerate(zip(ours, want)):
                assert same_outcome(mine, wanted), (name, names, order, stream)
        for proposal in proposals[:MEASUREMENTS]:
            assert all(proposal.reasons), proposal
    assert counts["orders"] >= len(made), counts
    # With pytest-xdist only plain values can be recorded.
    record_property("orders", dict(counts))


def run(request: Request, what: bytes | oracle.Cut) -> list[tuple[list[tuple], bool]]:
    """The outcome of a graph, or of each stream. If streams join batches, a failed element ends all of them."""
    if isinstance(what, bytes):
        return [outcome(without_optimizations(oracle.load(what, request.dataset)))]
    if what.strategy == "EXACT":
        return [outcome(without_optimizations(oracle.load(what.graphs[0, stream][0], request.dataset))) for stream in range(what.streams)]
    try:
        return [([oracle.key(element) for element in stream], False) for stream in oracle.run_streams(what, request.dataset)]
    except tf.errors.InvalidArgumentError:
        return [([], True)]


def without_optimizations(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without TensorFlow's optimizations, which take time."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.with_options(options)
