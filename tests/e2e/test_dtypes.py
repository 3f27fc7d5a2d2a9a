"""Every dtype that tf.data supports on a host arrives unchanged, in every kind of shape.

TensorFlow does not support every operation for every dtype: it cannot batch small floats and integers, for example.
Such a pipeline fails with the same class of error as a local run, and the workers continue.
"""

from __future__ import annotations

import numpy as np
import pecan
import pytest
import tensorflow as tf
from soak import SOAK

D = tf.data.Dataset


def dtypes():
    """All dtypes of the installed TensorFlow whose values are bytes or strings."""
    found = []
    for number in range(1, 100):
        try:
            dtype = tf.as_dtype(number)
        except TypeError:
            continue
        if dtype not in (tf.resource, tf.variant):
            found.append(dtype)
    return found


def _values(dtype):
    if dtype == tf.string:
        return np.array([[b"", b"a"], [b"x" * 30, b"b"], [b"c", b"\xff\x00"]], object)
    return np.arange(6).reshape(3, 2).astype(dtype.as_numpy_dtype)


def _any_shape(dataset):
    spec = tf.TensorSpec(None, dataset.element_spec.dtype)
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(dataset), spec)


SHAPES = {
    "scalars": lambda v: D.from_tensor_slices(v[:, 0]),
    "vectors": D.from_tensor_slices,
    "zero-sized": lambda v: D.from_tensor_slices(np.zeros((3, 0, 3), v.dtype)),
    "unknown shapes": lambda v: _any_shape(D.from_tensor_slices(v)),
    "one tensor": D.from_tensors,
    "batches": lambda v: D.from_tensor_slices(v).batch(2),
    "batches of zero-sized rows": lambda v: D.from_tensor_slices(np.zeros((3, 0), v.dtype)).batch(2),
    "batches after a filter": lambda v: D.from_tensor_slices(v).filter(lambda x: True).batch(2),
    "batches after a filter, mapped": lambda v: D.from_tensor_slices(v).filter(lambda x: True).batch(2).map(tf.identity),
}


# One or two dtypes of each family run in every shape. The others are sent in the same way, and run in these shapes.
FEW_SHAPES = ("vectors", "batches", "batches after a filter, mapped")
EVERY_SHAPE = (tf.string, tf.bool, tf.float32, tf.bfloat16, tf.int64, tf.int8, tf.complex64, tf.qint8, tf.dtypes.experimental.float8_e5m2)


def _read(dataset):
    """The elements as comparable values, or the class of the error."""
    try:
        return sorted(_plain(tensor.numpy()) for tensor in dataset)
    except tf.errors.OpError as error:
        return error.error_code


def _plain(value):
    array = np.asarray(value)
    return (array.shape, repr(array.tolist()) if array.dtype == object or array.dtype.kind == "S" else array.tobytes())


@pytest.mark.parametrize("dtype", dtypes(), ids=lambda dtype: dtype.name)
def test_a_dtype_arrives_unchanged(cluster, dtype):
    # In TensorFlow 2.21 the optimizers of tf.data fail for float8_e5m2 in every pipeline.
    plainly = tf.data.Options()
    plainly.experimental_optimization.apply_default_optimizations = False
    for name in SHAPES if SOAK or dtype in EVERY_SHAPE else FEW_SHAPES:
        make = SHAPES[name]
        dataset = make(_values(dtype))
        local = dataset.with_options(plainly)
        ours = dataset.apply(pecan.distribute(cluster.target))
        assert ours.element_spec == dataset.element_spec, name
        assert int(ours.cardinality()) == int(dataset.cardinality()), name
        if "filter" in name and not isinstance(wanted := _read(local), int):
            # Any rows may share a batch. There is one full batch and a partial one.
            got = list(ours)
            assert sorted(len(batch) for batch in got) == [1, 2], name
            rows = [_plain(row) for batch in got for row in batch.numpy()]
            assert sorted(rows) == sorted(_plain(row) for batch in local for row in batch.numpy()), (name, wanted)
            continue
        assert _read(ours) == _read(local), name
    # The workers still run.
    assert sorted(D.range(5).apply(pecan.distribute(cluster.target)).as_numpy_iterator()) == list(range(5))


def test_a_function_may_use_a_dtype_internally(cluster):
    float8 = tf.dtypes.experimental.float8_e5m2
    dataset = D.range(4).map(lambda i: tf.cast(tf.cast(tf.cast(i, tf.float32), float8), tf.float32))
    ours = dataset.apply(pecan.distribute(cluster.target))
    assert sorted(ours.as_numpy_iterator()) == [0, 1, 2, 3]
