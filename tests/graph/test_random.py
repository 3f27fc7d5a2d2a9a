"""The streams of random pipelines together give the elements of a local run.

PECAN_RANDOM_PIPELINES sets the number of pipelines (50 by default), and PECAN_RANDOM_SEED the first seed. A failure
names the seed and the steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import random

import graph_oracle as oracle
import pecan
import pytest
import tensorflow as tf
from pipeline_parts import expensive, lines, number, records

D = tf.data.Dataset
COUNT = int(os.environ.get("PECAN_RANDOM_PIPELINES", "50"))
FIRST = int(os.environ.get("PECAN_RANDOM_SEED", "1"))
CHUNK = 25


@dataclasses.dataclass
class Pipeline:
    """A pipeline under construction. Its elements are numbers, or batches of numbers of any size."""

    dataset: tf.data.Dataset
    steps: list[str]
    batched: bool = False
    # drop_remainder drops other rows than a local run if the order differs.
    drops: bool = False
    shuffled: bool = False


def source(rng: random.Random, work: pathlib.Path) -> Pipeline:
    kind = rng.choice(["range", "range", "slices", "lines", "records", "interleave", "parallel"])
    n = rng.choice([1, 5, 17, 40, 101])
    files, rows = rng.choice([1, 2, 5, 7]), rng.choice([1, 3, 8])
    if kind == "range":
        ds = D.range(rng.choice([0, 3]), n + 3, rng.choice([1, 1, 2]))
    elif kind == "slices":
        ds = D.from_tensor_slices(tf.range(n, dtype=tf.int64))
    elif kind == "lines":
        ds = tf.data.TextLineDataset(lines(work, files, rows)).map(number)
    elif kind == "records":
        ds = tf.data.TFRecordDataset(records(work, files, rows)).map(number)
    else:
        calls = {"num_parallel_calls": tf.data.AUTOTUNE} if kind == "parallel" else {}
        names = D.from_tensor_slices(lines(work, files, rows))
        ds = names.interleave(
            lambda f: tf.data.TextLineDataset(f).map(number),
            cycle_length=rng.choice([1, 2, 4]),
            block_length=rng.choice([1, 2]),
            **calls,
        )
    return Pipeline(ds, [f"{kind}({n}, {files}x{rows})"])


def extend(rng: random.Random, pipeline: Pipeline, work: pathlib.Path) -> Pipeline:
    """Adds one random step."""
    ds, batched, shuffled = pipeline.dataset, pipeline.batched, pipeline.shuffled
    k = rng.choice([2, 3, 4, 7])
    anywhere = [
        "map",
        "parallel_map",
        "take",
        "skip",
        "shard",
        "shuffle",
        "repeat",
        "prefetch",
        "cache",
        "concatenate",
        "zip",
        "take_all",
    ]
    rows = [
        "filter",
        "flat_map",
        "batch",
        "batch",
        "window",
        "padded",
        "enumerate",
        "unique",
        "scan",
        "take_while",
        "group",
        "expensive",
        "interleave",
        "choose",
        "assert",
        "file_cache",
        "overlap",
    ]
    batches = ["unbatch", "unbatch", "rebatch", "filter_batches", "sum"]
    step = rng.choice(anywhere + (batches * 2 if batched else rows))
    if step == "map":
        ds = ds.map(lambda x: x + k)
    elif step == "parallel_map":
        ds = ds.map(lambda x: x * k, num_parallel_calls=2, deterministic=rng.choice([True, None]))
    elif step == "expensive":
        ds = ds.map(expensive)
    elif step == "take":
        ds = ds.take(k * 5)
    elif step == "take_all":
        ds = ds.take(-1)
    elif step == "skip":
        ds = ds.skip(k)
    elif step == "shard":
        ds = ds.shard(k, rng.randrange(k))
    elif step == "shuffle":
        ds, shuffled = ds.shuffle(k * 3, seed=k, reshuffle_each_iteration=False), True
    elif step == "repeat":
        ds = ds.repeat(rng.choice([1, 2, 2]))
    elif step == "prefetch":
        ds = ds.prefetch(rng.choice([1, tf.data.AUTOTUNE]))
    elif step == "cache":
        ds = ds.cache()
    elif step == "file_cache":
        ds = ds.cache(str(work / f"cache-{len(pipeline.steps)}"))
    elif step == "concatenate":
        other = D.range(1000, 1000 + k)
        ds = ds.concatenate(other.batch(2) if batched else other)
    elif step == "zip":
        ds = D.zip((ds, D.range(k * 6))).map(lambda a, b: a * 1000 + b)
    elif step == "filter":
        ds = ds.filter(lambda x: x % k != 1)
    elif step == "flat_map":
        ds = ds.flat_map(lambda x: D.range(x, x + x % k))
    elif step == "interleave":
        ds = ds.interleave(lambda x: D.range(x, x + x % k), cycle_length=2)
    elif step == "batch":
        ds, batched = ds.batch(k), True
    elif step == "padded":
        ds, batched = ds.padded_batch(k), True
    elif step == "window":
        ds, batched = ds.window(k, drop_remainder=False).flat_map(lambda w: w.batch(k)), True
    elif step == "overlap":
        ds, batched = ds.window(k, shift=1).flat_map(lambda w: w.batch(k)), True
    elif step == "enumerate":
        ds = ds.enumerate().map(lambda i, x: i * 1000 + x)
    elif step == "unique":
        ds = ds.map(lambda x: x % (k * 4)).unique()
    elif step == "scan":
        ds = ds.scan(tf.constant(0, tf.int64), lambda s, x: (s + 1, s + x))
    elif step == "take_while":
        ds = ds.take_while(lambda x: x % 50 < 45)
    elif step == "group":
        ds, batched = ds.group_by_window(lambda x: x % k, lambda _, w: w.batch(3), window_size=3), True
    elif step == "choose":
        ds = D.choose_from_datasets(
            [ds, D.range(500, 500 + k)], D.range(2).repeat(), stop_on_empty_dataset=rng.choice([True, False])
        )
    elif step == "assert":
        ds = ds.apply(tf.data.experimental.assert_cardinality(sum(1 for _ in ds)))
    elif step == "unbatch":
        ds, batched = ds.unbatch(), False
    elif step == "rebatch":
        ds = ds.rebatch(k)
    elif step == "filter_batches":
        # The predicate keeps partial batches, because their rows may differ from a local run.
        ds = ds.filter(lambda b: tf.shape(b)[0] > 0)
    elif step == "sum":
        # The result has only sizes, because any rows may share a batch after a shuffle or a filter.
        ds, batched = ds.map(lambda b: tf.size(b, tf.int64)), False
    return Pipeline(ds, pipeline.steps + [f"{step}({k})"], batched, False, shuffled)


def mark(rng: random.Random, pipeline: Pipeline) -> Pipeline:
    """Adds a cache candidate, or nothing."""
    if rng.random() > 0.3:
        return pipeline
    freeze = rng.random() < 0.5
    marked = pipeline.dataset.apply(pecan.cache_candidate("here", freeze_randomness=freeze))
    return dataclasses.replace(pipeline, dataset=marked, steps=[*pipeline.steps, f"candidate({freeze})"])


def choice(seed: int) -> str:
    """The option `cache` of the job of a seed."""
    return random.Random(-seed - 1).choice(["candidates", "auto", "paper", "off"])


def make(seed: int, work: pathlib.Path) -> Pipeline:
    """The pipeline of a seed."""
    rng = random.Random(seed)
    work.mkdir(parents=True, exist_ok=True)
    pipeline = source(rng, work)
    marks = random.Random(-seed)
    for _ in range(rng.randrange(1, 8)):
        pipeline = mark(marks, extend(rng, pipeline, work))
    if not pipeline.batched and rng.random() < 0.3:
        k = rng.choice([2, 3, 5])
        pipeline = Pipeline(
            pipeline.dataset.batch(k, drop_remainder=True), pipeline.steps + [f"batch_drop({k})"], True, True, pipeline.shuffled
        )
    return pipeline


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_pipelines_give_the_local_elements(cutgraph: pathlib.Path, tmp_path: pathlib.Path, first: int) -> None:
    seeds = range(first, min(first + CHUNK, FIRST + COUNT))
    random_pipelines = {f"seed-{seed}": make(seed, tmp_path / f"data-{seed}") for seed in seeds}
    requests = {f"seed-{seed}": (random_pipelines[f"seed-{seed}"].dataset, {"cache": choice(seed)}) for seed in seeds}
    cuts = oracle.cut_all(cutgraph, tmp_path / "graphs", requests)
    failures = []
    for name, m in random_pipelines.items():
        try:
            check(m, cuts[name])
        except (AssertionError, tf.errors.OpError) as error:  # The report starts with the seed and the steps.
            failures.append(f"{name}: {' -> '.join(m.steps)}\n  {str(error)[:300]}\n  {cuts[name].plan}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("first", range(FIRST, FIRST + max(1, COUNT // 5), CHUNK))
def test_random_pipelines_with_many_streams_give_the_local_elements(
    cutgraph: pathlib.Path, tmp_path: pathlib.Path, first: int
) -> None:
    """A user asks for up to 1,024 streams, so that there are groups and their closing streams."""
    rng = random.Random(first)
    seeds = [s for s in range(first, first + 20 * CHUNK) if has_many_splits(s)][: min(CHUNK, max(1, COUNT // 5))]
    built = {f"seed-{seed}": make(seed, tmp_path / f"data-{seed}") for seed in seeds}
    requests = {
        name: (m.dataset, {"streams": rng.choice([17, 33, 40, 101, 1024]), "epochs": 1})
        for name, m in built.items()
        if m.dataset.cardinality() != tf.data.INFINITE_CARDINALITY
    }
    cuts = oracle.cut_all(cutgraph, tmp_path / "graphs", requests)
    failures = []
    for name, cut in cuts.items():
        try:
            check(built[name], cut)
        except (AssertionError, tf.errors.OpError) as error:  # The report starts with the seed and the steps.
            failures.append(f"{name}: {' -> '.join(built[name].steps)}\n  {str(error)[:300]}\n  {cut.plan}")
    assert not failures, "\n".join(failures)
    assert any(cut.group for cut in cuts.values()), "no plan has groups"


def has_many_splits(seed: int) -> bool:
    """Whether the source of a pipeline has at least 40 elements."""
    rng = random.Random(seed)
    kind, n = rng.choice(["range", "range", "slices", "lines", "records", "interleave", "parallel"]), rng.choice([1, 5, 17, 40, 101])
    return kind in ("range", "slices") and n >= 40


def check(m: Pipeline, cut: oracle.Cut) -> None:
    """Compares one pipeline."""
    assert cut.error is None, cut.error
    try:
        local = list(oracle.elements(m.dataset))
    except tf.errors.InvalidArgumentError as error:
        # choose_from_datasets loses its shape, and TensorFlow cannot concatenate anything to it.
        if "Incompatible shapes at component 0: expected" not in str(error):
            raise
        return
    epochs = [oracle.run_streams(cut, m.dataset, epoch=e % cut.epochs) for e in range(cut.repeat)]
    got = list(itertools.chain.from_iterable(itertools.chain.from_iterable(epochs)))
    if m.drops:
        oracle.compare("count", got, local)
    else:
        oracle.compare("rows" if m.batched else "elements", got, local)
    if cut.repeat == 1 and cut.cardinality >= 0:
        assert cut.cardinality == len(local)
