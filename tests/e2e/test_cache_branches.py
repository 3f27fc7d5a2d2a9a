"""Caches upstream of steps that read several datasets, or a part of one."""

from __future__ import annotations

import pecan
import pytest
import tensorflow as tf
from cache_service import D, Service, check_epochs, elements
from soak import cases

PIPELINES = {
    "the first input of a zip": lambda step: D.zip((D.range(400).map(lambda x: 2 * x).apply(step()), D.range(400).map(lambda x: 3 * x))),
    "the shorter input of a zip": lambda step: D.zip((D.range(900), D.range(400).map(lambda x: 3 * x).apply(step()))).batch(8),
    "a zip and a shuffle": lambda step: D.zip((D.range(400).map(lambda x: 3 * x).apply(step()), D.range(400))).shuffle(100),
    "enumerate": lambda step: D.range(400).map(lambda x: 2 * x).apply(step()).enumerate(),
    "a zip that draws": lambda step: D.zip((D.range(400).map(lambda x: 5 * x).apply(step()), D.range(400).map(
        lambda x: tf.random.uniform([], maxval=9, dtype=tf.int64)))).map(lambda x, y: x + y + tf.random.uniform([], maxval=9, dtype=tf.int64)),
    "take": lambda step: D.range(400).map(lambda x: 2 * x).apply(step()).take(300),
    "skip and a map": lambda step: D.range(400).map(lambda x: 2 * x).apply(step()).map(lambda x: x + 1).skip(100).batch(8),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("deterministic", cases([True, False], soak=[False]))
def test_an_epoch_that_reads_equals_one_that_computes(shared, name, deterministic):
    check_epochs(shared, PIPELINES[name], "" if "draws" in name else "elements", deterministic, streams=8)


def test_a_job_without_the_other_input_does_not_read_the_cache_of_a_zip(shared):
    """The streams of a zip have other positions than those of one dataset with parts."""
    both = D.zip((D.range(400).map(lambda x: 7 * x).apply(pecan.cache()), D.range(400)))
    one = D.range(400).map(lambda x: 7 * x).apply(pecan.cache())
    for dataset, want in ((both, [[7 * i, i] for i in range(400)]), (one, [[7 * i] for i in range(400)])):
        read = shared.read(dataset, streams=8)
        for _ in range(2):
            assert sorted(elements(read)) == want
        assert shared.job()["cache"]["state"] == "used"
