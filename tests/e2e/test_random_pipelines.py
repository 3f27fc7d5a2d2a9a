"""Random pipelines on random numbers of workers return the elements and the batches of a local run.

One seed determines each case and is part of its name. `PECAN_RANDOM_PIPELINES` sets the number of cases (20 by default),
and `PECAN_RANDOM_SEED` the first seed. `PECAN_RANDOM_SEED=s PECAN_RANDOM_PIPELINES=1` repeats the case of seed s.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable

import oracle
import pecan
import pytest
import tensorflow as tf

COUNT = int(os.environ.get("PECAN_RANDOM_PIPELINES", "20"))
FIRST = int(os.environ.get("PECAN_RANDOM_SEED", "1"))
WORKERS = (1, 3)
CACHES = ("candidates", "auto", "paper", "off")
Dataset = tf.data.Dataset


@dataclasses.dataclass
class State:
    """A pipeline under construction, and what local execution promises for it."""

    dataset: Dataset
    words: list[str]
    # Every local run has the same order, so steps that depend on positions have one result.
    ordered: bool = True
    # The number of elements is known without a run.
    counted: bool = True
    # The pipeline has a repeat. If its work is expensive, each stream has a share of all passes.
    passes: bool = False
    # Elements are batches.
    batched: bool = False
    # Any rows may share a batch.
    mixed: bool = False

    def then(self, word: str, step: Callable[[Dataset], Dataset], **changes: bool) -> State:
        return dataclasses.replace(self, dataset=step(self.dataset), words=[*self.words, word], **changes)


def any_streams(chance: random.Random) -> int | str:
    """The option `streams`: "auto", or 1 to 1,024. Small numbers are as frequent as large ones. One above that of the splits gives a stream for each split."""
    least = 1 << chance.randrange(11)
    return chance.choice(["auto", *3 * [min(least + chance.randrange(least), 1024)]])


def source(chance: random.Random, files: object) -> State:
    """A source of int64 ids that are all different."""
    n = chance.choice([0, 1, 7, 64, 100, 257, 1500])
    kind = chance.choice(["range", "slices", "records", "interleave", "flat_map", "concatenate", "sample", "zip"])
    if kind == "range":
        return State(Dataset.range(n), [f"range({n})"])
    if kind == "slices":
        return State(Dataset.from_tensor_slices(tf.range(n, dtype=tf.int64) * 3), [f"slices({n})"])
    if kind == "concatenate":
        return State(
            Dataset.range(n).concatenate(Dataset.range(1000, 1000 + n // 2)), [f"range({n}) + range({n // 2})"]
        )
    if kind == "sample":
        parts = [Dataset.range(n), Dataset.range(1000, 1000 + n)]
        mixed = Dataset.sample_from_datasets(parts, seed=chance.randint(1, 99), stop_on_empty_dataset=False)
        return State(mixed, [f"sample({n}, {n})"], ordered=False)
    if kind == "zip":
        pairs = Dataset.zip((Dataset.range(n), Dataset.range(5000, 5000 + n)))
        return State(pairs.map(lambda a, b: a + 10_000 * b), [f"zip({n})"])
    if kind == "flat_map":
        m = min(n, 15)
        return State(
            Dataset.range(m).flat_map(lambda x: Dataset.range(x * 100, x * 100 + x)), [f"flat_map({m})"], counted=False
        )
    read = Dataset.from_tensor_slices(files.records)
    if kind == "records":
        read = read.flat_map(tf.data.TFRecordDataset)
    else:
        cycle = chance.choice([2, 3, 5])
        read = read.interleave(tf.data.TFRecordDataset, cycle_length=cycle, num_parallel_calls=chance.choice([None, 2]))
    number = read.map(lambda r: tf.strings.to_number(tf.strings.split(r, " ")[1], tf.int64))
    return State(number, [kind], counted=False)


def steps(chance: random.Random, state: State) -> list[Callable[[], State]]:
    """The steps that may follow."""
    n, seed = chance.choice([1, 3, 8, 20]), chance.randint(1, 99)
    parallel = chance.choice([None, 2, tf.data.AUTOTUNE])
    found = [
        lambda: state.then("map", lambda d: d.map(lambda x: x * 2 + 1, num_parallel_calls=parallel)),
        lambda: state.then("prefetch", lambda d: d.prefetch(2)),
        lambda: state.then("cache", lambda d: d.cache()),
    ]
    if state.batched:
        found.append(
            lambda: state.then(
                "unbatch",
                lambda d: d.unbatch(),
                batched=False,
                counted=False,
                ordered=state.ordered and not state.mixed,
            )
        )
        if not state.mixed and state.ordered:
            found.append(lambda: state.then(f"take({n})", lambda d: d.take(n)))
        return found
    mixed_rows = state.passes or not (state.ordered and state.counted)
    found += [
        lambda: state.then("filter", lambda d: d.filter(lambda x: x % 3 != 0), counted=False),
        lambda: state.then(
            f"shuffle({n * 5})", lambda d: d.shuffle(n * 5, seed=chance.choice([None, seed])), ordered=False
        ),
        lambda: state.then(f"batch({n})", lambda d: d.batch(n), batched=True, mixed=mixed_rows),
        lambda: state.then(
            "flat_map", lambda d: d.flat_map(lambda x: Dataset.from_tensors(x).repeat(x % 3)), counted=False
        ),
        lambda: state.then("repeat(2)", lambda d: d.repeat(2), passes=True),
    ]
    if state.ordered:
        found += [
            lambda: state.then(f"take({n * 4})", lambda d: d.take(n * 4)),
            lambda: state.then(f"skip({n})", lambda d: d.skip(n)),
            lambda: state.then(f"shard({n}, 0)", lambda d: d.shard(n, 0)),
            lambda: state.then("enumerate", lambda d: d.enumerate().map(lambda i, x: i * 1_000_000 + x)),
            lambda: (
                state.then(f"batch({n}, drop)", lambda d: d.batch(n, drop_remainder=True), batched=True, mixed=False)
                if not mixed_rows
                else state.then("map", lambda d: d.map(lambda x: x + 5))
            ),
        ]
    return found


def pipeline(seed: int, files: object) -> State:
    """The pipeline of a seed. Each call returns the same pipeline."""
    chance, marks = random.Random(seed), random.Random(1000 + seed)
    state = source(chance, files)
    for _ in range(chance.randint(1, 6)):
        state = chance.choice(steps(chance, state))()
        if marks.random() < 0.3:
            step = pecan.cache_candidate("here", freeze_randomness=marks.random() < 0.5)
            state = state.then("candidate", lambda d, step=step: d.apply(step))
    return state


@pytest.fixture(scope="module")
def clusters():
    """Clusters of one and of three workers, which start at their first use."""
    running: dict[int, pecan.LocalCluster] = {}

    def of(workers: int) -> pecan.LocalCluster:
        if workers not in running:
            running[workers] = pecan.LocalCluster(workers=workers)
        return running[workers]

    yield of
    for cluster in running.values():
        cluster.stop()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_pipelines_give_the_elements_of_a_local_run(seed, files, clusters):
    chance = random.Random(-seed)
    state, workers, streams = pipeline(seed, files), chance.choice(WORKERS), any_streams(chance)
    cache = chance.choice(CACHES)
    description = f"seed {seed}, {workers} workers, streams={streams}, cache={cache}: {' → '.join(state.words)}"
    local = oracle.run(state.dataset)
    distribute = pecan.distribute(clusters(workers).target, streams=streams, cache=cache)
    ours = oracle.run(pipeline(seed, files).dataset.apply(distribute))
    try:
        oracle.compare(ours, local, "rows" if state.batched and state.mixed else "elements")
    except AssertionError as difference:
        raise AssertionError(f"{description}\n{difference}") from None
