"""Caches of every kind of value, in mode deterministic, where every element must be equal with and without a cache."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from cache_service import D, Service, check_epochs, dense, loose
from test_dtypes import dtypes

# Parts have 16 rows, so that a segment has many elements in a chunk.
ROWS = 1_100


def values(dtype: tf.DType) -> np.ndarray:
    """Small numbers, which every dtype has."""
    numbers = np.arange(2 * ROWS).reshape(ROWS, 2) % 7
    return np.char.encode(numbers.astype(str)) if dtype == tf.string else numbers.astype(dtype.as_numpy_dtype)


PIPELINES = {
    "every dtype": lambda step: D.from_tensor_slices({dtype.name: values(dtype) for dtype in dtypes()}).apply(step()).map(lambda e: e),
    "ragged and sparse values": lambda step: D.range(ROWS).map(loose).apply(step()).map(dense),
    "ragged and sparse batches": lambda step: D.range(ROWS).map(loose).batch(4).apply(step()).map(dense),
    # TensorFlow does not ask whether others hold the input of this op.
    "a step that changes its input": lambda step: D.range(ROWS)
    .map(lambda x: tf.fill([x % 5 + 2000], x))
    .apply(step())
    .map(lambda e: tf.raw_ops.InplaceAdd(x=e, i=[0], v=[1])),
    "ragged and sparse batches of filtered rows": lambda step: D.range(300).filter(lambda x: x % 3 > 0).map(loose).batch(4).apply(step()).map(dense),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest.mark.parametrize("name", PIPELINES)
def test_an_epoch_that_reads_equals_one_that_computes(shared, name):
    # tests/e2e/test_dtypes.py and test_cache.py compare these values with a local run.
    check_epochs(shared, PIPELINES[name], "", deterministic=True)
