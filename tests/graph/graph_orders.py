"""Requests for proposals of AutoOrder, and the datasets, steps and measurements that several tests of orders have."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import subprocess
from collections.abc import Callable, Sequence

import graph_oracle as oracle
import tensorflow as tf

D = tf.data.Dataset
Step = Callable[[tf.data.Dataset], tf.data.Dataset]
Metrics = Sequence[Sequence[float]]
# Tolerance → who proposes orders under it.
SETTINGS = {"EXACT": "AUTO", "APPROXIMATE": "AUTO", "ANY": "AUTO", "PAPER": "PAPER"}


@dataclasses.dataclass
class Request:
    """A dataset, the measurements of its source and its steps (elements, seconds, bytes after the step), and options."""

    dataset: tf.data.Dataset
    metrics: list[Metrics]
    tolerance: str = "EXACT"
    order: str = "AUTO"
    mode: str = "EXACTLY_ONCE"
    streams: bool = False
    # The number of streams of a plan whose batches go on from pass to pass; 0 for other plans.
    carry: int = 0
    # The maximum number of further allowed orders, whatever they cost. A saved position can name such an order.
    walks: int = 0
    seed: int = 0


@dataclasses.dataclass
class Proposal:
    """The proposal for one measurement, or an order that a position can name. `graph` is set if a step moves."""

    order: list[int]
    why: str
    reasons: list[str]
    traits: list[str]
    before: float
    after: float
    graph: bytes | None = None
    cut: oracle.Cut | None = None


def propose_all(ordergraph: pathlib.Path, work: pathlib.Path, requests: dict[str, Request]) -> dict[str, list[Proposal]]:
    for name, one in requests.items():
        (work / f"{name}.pb").write_bytes(oracle.serialize(one.dataset))
        options = {field.name: getattr(one, field.name) for field in dataclasses.fields(one) if field.name != "dataset"}
        (work / f"{name}.json").write_text(json.dumps(options))
    subprocess.run([ordergraph, "propose", work], check=True, timeout=600)
    proposals: dict[str, list[Proposal]] = {}
    for name in requests:
        proposals[name] = []
        for number, answer in enumerate(json.loads((work / f"{name}.out.json").read_text())):
            ordered = work / f"{name}.{number}.pb"
            graph = ordered.read_bytes() if ordered.exists() else None
            cut = oracle.read_cut(work, f"{name}.{number}") if graph and requests[name].streams else None
            proposals[name].append(Proposal(**answer, graph=graph, cut=cut))
    return proposals


def propose(ordergraph: pathlib.Path, work: pathlib.Path, dataset: tf.data.Dataset, metrics: Metrics, **request: str) -> Proposal:
    return propose_all(ordergraph, work, {"one": Request(dataset, [metrics], **request)})["one"][0]


def images(size: int | None = 32, dtype: tf.DType = tf.uint8) -> tf.data.Dataset:
    """Images of noise, all of one size or of several sizes, with a label."""

    def image(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        noise = tf.random.stateless_uniform([40, 40, 3], [i, i], 0, 256, tf.int32)
        rows = 32 if size else 30 + tf.cast(i, tf.int32)
        return tf.cast(noise[:rows, :rows], dtype), i

    return D.range(8).map(image, name="source")


def on_image(step: Callable[[tf.Tensor], tf.Tensor], name: str, **options: object) -> Step:
    return lambda dataset: dataset.map(lambda x, y: (step(x), y), name=name, **options)


def on_label(step: Callable[[tf.Tensor], tf.Tensor], name: str, **options: object) -> Step:
    return lambda dataset: dataset.map(lambda x, y: (x, step(y)), name=name, **options)


def filter_step(predicate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], name: str) -> Step:
    return lambda dataset: dataset.filter(predicate, name=name)


def apply_steps(dataset: tf.data.Dataset, steps: Sequence[Step]) -> tf.data.Dataset:
    for step in steps:
        dataset = step(dataset)
    return dataset


CROP = on_image(lambda x: x[4:20, 6:22], "crop")
HALVE = on_image(lambda x: tf.image.resize(x, [16, 16]), "halve")
DOUBLE = on_image(lambda x: x * tf.constant(2, x.dtype), "doubles")
ROOTS = on_image(lambda x: tf.sqrt(tf.cast(x, tf.float32)), "roots")
EXPENSIVE = on_image(lambda x: tf.tanh(tf.cast(x, tf.float32)), "expensive")


def asserts(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.control_dependencies([tf.debugging.assert_less(y, tf.constant(100, tf.int64))]):
        return x + tf.constant(1, tf.uint8), tf.identity(y)


# The first of two steps is expensive. The second is cheap and drops most values, so it moves to the front if nothing prevents it.
FORCING = [[1000, 0.1, 12296], [1000, 0.1, 12296], [1000, 10, 12296], [100, 0.05, 80]]


def steps_in(dataset: tf.data.Dataset) -> list[str]:
    """The classes of a chain of datasets, from the last step to the source."""
    names = []
    while True:
        names.append(type(dataset).__name__)
        inputs = dataset._inputs()
        if not inputs:
            return names
        dataset = inputs[0]


def outcome(dataset: tf.data.Dataset) -> tuple[list[tuple], bool]:
    """The elements before the first failed one, and whether an element failed."""
    found = []
    try:
        for element in oracle.elements(dataset):
            found.append(oracle.key(element))
    except tf.errors.InvalidArgumentError:
        return found, True
    return found, False


def same_outcome(ours: tuple[list[tuple], bool], theirs: tuple[list[tuple], bool]) -> bool:
    """Whether the elements are the same. An element that one order drops before it fails need not fail in the other."""
    return ours == theirs or (theirs[1] and ours[0][: len(theirs[0])] == theirs[0])


def random_metrics(rng: random.Random, steps: int) -> list[list[float]]:
    """Random measurements: any step may be the expensive one, or the one that drops most values."""
    elements, found = 1000.0, []
    for _ in range(steps):
        elements = elements if rng.random() < 0.5 else max(1, int(elements * rng.random()))
        found.append([elements, 10 ** rng.uniform(-3, 2), 10 ** rng.uniform(1, 6)])
    return found


def checked_proposals(
    ordergraph: pathlib.Path, work: pathlib.Path, name: str, dataset: tf.data.Dataset, metrics: list[list[float]], steps: int
) -> dict[str, Proposal]:
    """The proposals for the measurements, for each setting. Every order for these and for random measurements runs and is compared.

    The random measurements have this many steps, the source included.
    """
    rng = random.Random(name)
    requests = {
        setting: Request(
            dataset,
            [metrics, *(random_metrics(rng, steps) for _ in range(6))],
            tolerance="ANY" if setting == "PAPER" else setting,
            order=order,
        )
        for setting, order in SETTINGS.items()
    }
    want, found = outcome(dataset), propose_all(ordergraph, work, requests)
    for setting, proposals in found.items():
        for order, proposal in {tuple(proposal.order): proposal for proposal in proposals if proposal.order}.items():
            ours = outcome(oracle.load(proposal.graph, dataset))
            if setting == "EXACT":
                assert same_outcome(ours, want), (order, proposal.reasons)
            assert ours[1] <= want[1], (setting, order, "an element fails only in the new order")
            if not want[1]:
                kinds = [[(dtype, shape) for dtype, shape, _ in element] for element in ours[0]]
                assert kinds == [[(dtype, shape) for dtype, shape, _ in element] for element in want[0]], (setting, order)
    return {setting: proposals[0] for setting, proposals in found.items()}
