"""Rows without bytes pass through batches, remainders and unbatch. TensorFlow's own unbatch kernel crashes on them."""

from __future__ import annotations

import oracle
import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset


def _some():
    """Numbers of unknown cardinality."""
    return D.range(23).filter(lambda i: i % 4 > 0)


def _nothing(i):
    return tf.zeros([0, 3]) + tf.cast(i, tf.float32)


BATCHES = {
    "a batch": lambda: _some().map(_nothing).batch(4),
    "a batch, drop_remainder": lambda: _some().map(_nothing).batch(4, drop_remainder=True),
    "a parallel batch": lambda: _some().map(_nothing).batch(4, num_parallel_calls=2),
    "a batch and a map": lambda: _some().map(_nothing).batch(4).map(lambda b: b + 1),
    "a batch of pairs": lambda: _some().map(lambda i: (i, _nothing(i))).batch(4),
    "a batch of pairs and a map": lambda: _some().map(lambda i: (i, _nothing(i))).batch(4).map(lambda i, b: (i + 1, b)),
    "sizes known only at run time": lambda: _some().map(lambda i: (i, tf.zeros(tf.stack([0 * i, 3])))).batch(4),
    "with strings": lambda: _some().map(lambda i: (i, tf.fill([0], ""), tf.as_string(i))).batch(4).map(lambda *b: b),
    "a padded batch": lambda: _some().map(_nothing).padded_batch(4, padded_shapes=[0, 3]),
    "a rebatch": lambda: _some().map(_nothing).batch(4).rebatch(3),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_empty_rows_are_those_of_a_local_run(cluster, name):
    dataset = BATCHES[name]()
    ours = oracle.run(dataset.apply(pecan.distribute(cluster.target, dispatcher_timeout_s=10)))
    oracle.compare(ours, oracle.run(dataset), "rows")


def _unbatch():
    return D.range(8).map(_nothing).batch(2).unbatch().map(lambda row: tf.size(row))


def _unbatch_in_a_function():
    def inner(i):
        return D.range(i, i + 2).map(lambda x: tf.zeros(tf.stack([x * 0, 3]))).batch(2).unbatch()

    return D.range(4).flat_map(inner).map(lambda row: tf.size(row))


def _unbatch_below_one_stream():
    return D.from_tensors(tf.zeros([8, 0])).unbatch().map(lambda row: tf.size(row))


@pytest.mark.parametrize("make", [_unbatch, _unbatch_in_a_function, _unbatch_below_one_stream])
def test_unbatch_gives_empty_rows(cluster, make):
    """The test has no local run to compare with, because that would crash this process."""
    assert list(make().apply(pecan.distribute(cluster.target)).as_numpy_iterator()) == [0] * 8


def test_unbatch_of_a_dtype_that_tensorflow_does_not_support(cluster):
    float8 = tf.dtypes.experimental.float8_e4m3fn
    dataset = D.from_tensors(tf.cast(tf.ones([4, 0]), float8)).unbatch().map(lambda row: tf.size(row))
    assert list(dataset.apply(pecan.distribute(cluster.target)).as_numpy_iterator()) == [0] * 4
