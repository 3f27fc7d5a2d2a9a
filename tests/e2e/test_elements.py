"""Every kind of element arrives unchanged."""

from __future__ import annotations

import collections

import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset
Point = collections.namedtuple("Point", "x y")
LONG = "ä" * 40


def _optional(i):
    spec = (tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.string))
    value = (i, tf.fill([i], "text"))
    return tf.cond(
        i % 2 == 0,
        lambda: tf.experimental.Optional.from_value(value),
        lambda: tf.experimental.Optional.empty(spec),
    )


def _numbers(dtype):
    return lambda: D.range(4).map(lambda i: tf.cast(tf.cast(i, tf.float32) - 1.0, dtype))


def _bits(dtype):
    return lambda: D.range(4).map(lambda i: tf.bitcast(tf.cast(tf.fill([3], i), tf.int8), dtype))


DATASETS = {
    "scalars": lambda: D.range(5),
    "booleans": lambda: D.range(5).map(lambda i: i % 2 == 0),
    "strings of every length": lambda: D.from_tensor_slices(["", "a", "x" * 22, "y" * 23, "z" * 24, LONG * 1000]),
    "batches of strings": lambda: D.from_tensor_slices(["", "a", LONG, "b", ""]).batch(2),
    "bytes that are not text": lambda: D.from_tensor_slices([b"\x00\xff", b"\x00", b""]),
    "a dict, a tuple, a string": lambda: D.range(4).map(lambda i: {"b": (i, i > 1), "a": tf.fill([], "t")}),
    "named tuples": lambda: D.range(4).map(lambda i: Point(i, tf.fill([3], i))),
    "None as a component": lambda: D.range(4).map(lambda i: (i, None, {"q": None, "r": i})),
    "ragged": lambda: D.range(5).map(lambda i: tf.RaggedTensor.from_row_lengths(tf.range(i), [i - i // 2, i // 2])),
    "ragged batches": lambda: D.range(6).map(lambda i: tf.range(i)).ragged_batch(4),
    "rows of a ragged tensor": lambda: D.from_tensor_slices(tf.ragged.constant([[1, 2], [], [3]])),
    "rows of a ragged tensor with other components": lambda: D.from_tensor_slices(
        {"a": tf.ragged.constant([["a"], [], ["b", "c"]]), "b": tf.ragged.constant([[[1]], [], [[2]]]), "c": [1, 2, 3]}
    ),
    "batches of a ragged tensor's rows": lambda: D.from_tensor_slices(tf.ragged.constant([[1, 2], [], [3]])).batch(2),
    "rows of batches of rows": lambda: D.from_tensor_slices(tf.ragged.constant([[1], [], [2]])).batch(3).unbatch(),
    "sparse": lambda: D.range(5).map(lambda i: tf.sparse.from_dense(tf.one_hot(i, 5))),
    "sparse batches": lambda: D.range(5).map(lambda i: tf.sparse.from_dense(tf.one_hot(i, 5))).batch(2),
    "optional": lambda: D.range(5).map(_optional),
    "different shapes": lambda: D.range(5).map(lambda i: tf.ensure_shape(tf.zeros(tf.stack([i, 2])), [None, None])),
    "unknown rank": lambda: D.range(5).map(
        lambda i: tf.cond(i > 2, lambda: tf.reshape(tf.range(4), [2, 2]), lambda: tf.range(4))
    ),
    "padded batches": lambda: D.range(7).map(lambda i: tf.range(i)).padded_batch(3),
    "zero-sized": lambda: D.range(3).map(lambda i: tf.zeros([0, 3])),
    "zero-sized with other components": lambda: D.range(3).map(lambda i: (i, tf.zeros([2, 0], tf.int32), tf.fill([0], ""))),
    "no elements": lambda: D.range(0),
    "rows of 16 KiB": lambda: D.range(40).map(lambda i: tf.fill([16, 1024], tf.cast(i, tf.uint8))),
    "megabytes": lambda: D.range(4).map(lambda i: tf.fill([1000, 1000], i)),
    "many components": lambda: D.range(3).map(lambda i: tuple(tf.fill([k % 3], i + k) for k in range(60))),
    "a rank of 9": lambda: D.range(3).map(lambda i: tf.fill([1, 2, 1, 1, 2, 1, 1, 1, 2], i)),
    # tests/e2e/test_dtypes.py tests all dtypes.
    **{dtype.name: _numbers(dtype) for dtype in (tf.bfloat16, tf.complex128, tf.int8)},
    "qint8": _bits(tf.qint8),
}  # fmt: skip


def plain(value):
    """An element as comparable Python values."""
    if value is None:
        return None
    if isinstance(value, tf.RaggedTensor):
        return ("ragged", value.dtype.name, value.to_list())
    if isinstance(value, tf.SparseTensor):
        return (
            "sparse",
            value.indices.numpy().tolist(),
            value.values.numpy().tolist(),
            value.dense_shape.numpy().tolist(),
        )
    if hasattr(value, "has_value"):
        return ("optional", tf.nest.map_structure(plain, value.get_value()) if value.has_value() else None)
    array = value.numpy()
    bytes_of = repr(array) if value.dtype == tf.string else array.tobytes()
    return (value.dtype.name, tuple(value.shape), bytes_of)


def elements(dataset):
    return [tf.nest.map_structure(plain, element) for element in dataset]


@pytest.mark.parametrize("protocol", ["shm", "tcp"])
@pytest.mark.parametrize("name", DATASETS)
def test_elements_arrive_unchanged(cluster, name, protocol):
    dataset = DATASETS[name]()
    ours = dataset.apply(
        pecan.distribute(cluster.target, deterministic=True, data_transfer_protocol=protocol, compression=None)
    )
    assert ours.element_spec == dataset.element_spec
    assert type(ours.element_spec) is type(dataset.element_spec)
    assert int(ours.cardinality()) == int(dataset.cardinality())
    assert elements(ours) == elements(dataset)


def test_snappy_gives_the_same(cluster):
    dataset = D.range(50).map(lambda i: (tf.fill([1000], i), tf.as_string(i)))
    ours = dataset.apply(
        pecan.distribute(cluster.target, deterministic=True, data_transfer_protocol="tcp", compression="snappy")
    )
    assert elements(ours) == elements(dataset)


CARDINALITIES = {
    "a range": (lambda: D.range(7), 7),
    "batches": (lambda: D.range(7).batch(3), 3),
    "batches, drop_remainder": (lambda: D.range(7).batch(3, drop_remainder=True), 2),
    "repeated": (lambda: D.range(7).repeat(3), 21),
    "endless": (lambda: D.range(7).repeat(), tf.data.INFINITE_CARDINALITY),
    "filtered": (lambda: D.range(7).filter(lambda i: i > 2), tf.data.UNKNOWN_CARDINALITY),
    "asserted": (lambda: D.range(7).filter(lambda i: i > 2).apply(tf.data.experimental.assert_cardinality(4)), 4),
    "nothing": (lambda: D.range(0), 0),
    "filtered and repeated forever": (lambda: D.range(7).filter(lambda i: i > 2).repeat(), tf.data.INFINITE_CARDINALITY),
    "shuffled and repeated in one step": (lambda: D.range(7).apply(tf.data.experimental.shuffle_and_repeat(3, 2)), 14),
    "a list": (lambda: tf.data.experimental.from_list([1, 2, 3]), 3),
    "a random source": (lambda: D.random(seed=3), tf.data.INFINITE_CARDINALITY),
    "up to the largest number": (lambda: D.range(2**63 - 5, 2**63 - 1), tf.data.INFINITE_CARDINALITY),
}


@pytest.mark.parametrize("name", CARDINALITIES)
def test_known_cardinality_equals_the_local_one(cluster, name):
    make, expected = CARDINALITIES[name]
    dataset = make()
    assert int(dataset.cardinality()) == expected
    ours = dataset.apply(pecan.distribute(cluster.target))
    assert int(ours.cardinality()) == expected
    if expected != tf.data.INFINITE_CARDINALITY:
        assert len(list(ours)) == len(list(dataset))
        assert len(list(ours.repeat(2))) == 2 * len(list(dataset))


@pytest.mark.parametrize("deterministic", [False, True], ids=["exactly once", "deterministic"])
@pytest.mark.parametrize("size", [1, 3000])
def test_an_asserted_cardinality_that_is_too_small_is_an_error_after_all_its_elements(cluster, size, deterministic):
    dataset = D.range(50).filter(lambda i: i >= 0).map(lambda i: tf.fill([size], i))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(40))
    for each in (dataset, dataset.apply(pecan.distribute(cluster.target, deterministic=deterministic))):
        assert int(each.cardinality()) == 40
        seen = []
        with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 40"):
            seen.extend(int(element[0]) for element in each)


def test_cardinality_of_a_saved_dataset_is_known(cluster, tmp_path):
    D.range(7).save(str(tmp_path / "saved"))
    ours = D.load(str(tmp_path / "saved")).batch(2).apply(pecan.distribute(cluster.target))
    assert int(ours.cardinality()) == 4
    assert sorted(len(batch) for batch in ours) == [1, 2, 2, 2]


def test_cardinality_of_a_hinted_dataset_is_unknown(cluster):
    hint = tf.data.experimental.SHARD_HINT
    dataset = D.range(7).shard(hint, hint).batch(2)
    ours = dataset.apply(pecan.distribute(cluster.target, sharding=pecan.ShardingPolicy.HINT))
    assert int(ours.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert sum(len(batch) for batch in ours) == 7


def test_cardinality_of_a_shared_job_is_unknown(cluster):
    ours = D.range(7).apply(pecan.distribute(cluster.target, job_name="shared-cardinality"))
    assert int(ours.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert len(list(ours)) == 7


def test_mode_off_returns_every_element_once_per_worker(cluster):
    ours = D.range(7).apply(pecan.distribute(cluster.target, processing_mode=pecan.ShardingPolicy.OFF))
    assert int(ours.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert sorted(ours.as_numpy_iterator()) == sorted([*range(7)] * 2)


def test_a_registered_dataset_is_read_by_its_id(cluster):
    dataset = D.range(9).map(lambda i: {"ragged": tf.RaggedTensor.from_row_lengths(tf.range(i), [i]), "i": i})
    identity = pecan.register_dataset(cluster.target, dataset, dataset_id="by-id")
    assert identity.numpy() == b"by-id"
    for spec in (None, dataset.element_spec):
        ours = pecan.from_dataset_id(None, cluster.target, identity, spec, deterministic=True)
        assert ours.element_spec == dataset.element_spec
        assert elements(ours) == elements(dataset)


def test_equal_datasets_have_one_id(cluster):
    def make(n):
        return D.range(n).map(lambda i: i + 1).batch(2)

    first = pecan.register_dataset(cluster.target, make(5))
    assert pecan.register_dataset(cluster.target, make(5)).numpy() == first.numpy()
    assert pecan.register_dataset(cluster.target, make(6)).numpy() != first.numpy()
