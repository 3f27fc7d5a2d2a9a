"""The streams of ranges near the limits of int64 together give the numbers of a local run.

TensorFlow's counter adds the step once more after the last number. A stream's step is larger than the dataset's step, so
its counter can overflow when a local one does not. Ranges whose local counter overflows are endless, and are left out.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import random

import graph_oracle as oracle
import pytest
import tensorflow as tf

D = tf.data.Dataset
LOW, HIGH = -(2**63), 2**63 - 1


def range_near_a_limit(rng: random.Random) -> tuple[int, int, int]:
    """A range of at most a few hundred numbers that is near a limit or extends from one limit to the other."""
    count = rng.choice([1, 2, 3, 7, 40, 300])
    kind = rng.choice(["up", "down", "far up", "far down"])
    if kind.startswith("far"):
        step = (HIGH - LOW) // (count + 1) - rng.randrange(3)
    else:
        step = rng.choice([1, 1, 2, 3, 1000, 2**40, 2**53])
    span = count * step
    if kind.endswith("up"):
        stop = min(HIGH, HIGH - step + 1 + rng.randrange(step)) - rng.choice([0, 1, 5])
        return max(LOW, stop - span), stop, step
    stop = LOW + step - 1 - rng.randrange(step) + rng.choice([0, 1, 5])
    return min(HIGH, stop + span), stop, -step


def wraps(start: int, stop: int, step: int) -> bool:
    numbers = range(start, stop, step)
    return bool(numbers) and not LOW <= numbers[-1] + step <= HIGH


def variants(rng: random.Random, at: tuple[int, int, int]) -> tf.data.Dataset:
    dataset = D.range(*at)
    if rng.random() < 0.3:
        dataset = dataset.enumerate().map(lambda i, x: x)
    if rng.random() < 0.6:
        dataset = dataset.batch(rng.choice([1, 2, 3, 8]), drop_remainder=rng.random() < 0.3)
    return dataset


RANGES = [(HIGH - 4, HIGH, 1), (LOW + 4, LOW, -1), (HIGH - 300, HIGH, 1), (LOW, LOW + 300, 1), (HIGH, HIGH - 77, -1)]


@pytest.mark.parametrize("first", range(0, 400 if os.environ.get("PECAN_SOAK") else 40, 40))
def test_ranges_near_the_limits_give_the_local_numbers(cutgraph: pathlib.Path, tmp_path: pathlib.Path, first: int) -> None:
    datasets = {}
    for seed in range(first, first + 40):
        rng = random.Random(seed)
        at = RANGES[seed] if seed < len(RANGES) else range_near_a_limit(rng)
        if not wraps(*at):
            datasets[f"seed-{seed}"] = (at, variants(rng, at))
    assert len(datasets) > 20
    cuts = oracle.cut_all(cutgraph, tmp_path, {name: (dataset, {}) for name, (_, dataset) in datasets.items()})
    failures = []
    for name, (at, dataset) in datasets.items():
        local = list(oracle.elements(dataset))
        assert sum(e[0].size for e in local) <= len(range(*at))
        got = list(itertools.chain.from_iterable(oracle.run_streams(cuts[name], dataset, limit=len(local) + 5)))
        if oracle.multiset(got) != oracle.multiset(local):
            failures.append(f"{name}: {at} {dataset}: {len(got)} elements, locally {len(local)}: {cuts[name].plan}")
        if cuts[name].cardinality not in (-2, int(dataset.cardinality())) and int(dataset.cardinality()) == len(local):
            failures.append(f"{name}: cardinality {cuts[name].cardinality}, locally {int(dataset.cardinality())}")
    assert not failures, "\n".join(failures)
