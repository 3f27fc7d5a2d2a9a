"""Typical pipelines on two workers return the elements and the batches of a local run."""

from __future__ import annotations

import oracle
import pecan
import pytest
import tensorflow as tf
from pipelines import PIPELINES
from soak import SOAK


@pytest.mark.parametrize("name", PIPELINES)
def test_two_workers_give_the_elements_of_a_local_run(name, cluster, files):
    pipeline = PIPELINES[name]
    local = oracle.run(pipeline.build(files), limit=pipeline.limit)
    # The pipeline is built again, so that it does not use the file cache of the local run.
    ours = oracle.run(pipeline.build(files).apply(pecan.distribute(cluster.target)), limit=pipeline.limit)
    pool = oracle.run(pipeline.pool(files)) if pipeline.pool else None
    oracle.compare(ours, local, pipeline.how, pool=pool)


@pytest.mark.parametrize("name", ["filter, batch, map", "record files, parse, shuffle, batch", "zip", "repeat"])
def test_the_second_pass_has_every_element_again(name, cluster, files):
    pipeline = PIPELINES[name]
    distributed = pipeline.build(files).apply(pecan.distribute(cluster.target))
    local = oracle.run(pipeline.build(files))
    for _ in range(2):
        oracle.compare(oracle.run(distributed), local, pipeline.how)


def test_the_oracle_detects_lost_repeated_changed_and_differently_batched_elements():
    local = oracle.run(tf.data.Dataset.range(20).batch(4))
    for wrong in (
        tf.data.Dataset.range(16).batch(4),
        tf.data.Dataset.range(20).concatenate(tf.data.Dataset.range(4)).batch(4),
        tf.data.Dataset.range(20).map(lambda x: tf.where(x == 7, tf.constant(8, tf.int64), x)).batch(4),
        tf.data.Dataset.range(20).batch(5),
    ):
        for how in ("elements", "rows"):
            with pytest.raises(AssertionError):
                oracle.compare(oracle.run(wrong), local, how)


def test_the_oracle_detects_another_spec_and_another_cardinality():
    local = oracle.run(tf.data.Dataset.range(6))
    with pytest.raises(AssertionError, match="element_spec"):
        oracle.compare(oracle.run(tf.data.Dataset.range(6, output_type=tf.int32)), local, "elements")
    with pytest.raises(AssertionError, match="cardinality"):
        oracle.compare(oracle.run(tf.data.Dataset.range(6).filter(lambda x: True)), local, "elements")


@pytest.mark.skipif(not SOAK, reason="a pipeline that does not agree with itself fails with two workers as well")
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_agrees_with_itself(name, files):
    pipeline = PIPELINES[name]
    first, second = (oracle.run(pipeline.build(files), limit=pipeline.limit) for _ in range(2))
    oracle.compare(second, first, pipeline.how, pool=oracle.run(pipeline.pool(files)) if pipeline.pool else None)
