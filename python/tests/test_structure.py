"""Elements are flattened to plain tensors and packed again, in maps of a real dataset."""

import collections
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pecan
import tensorflow as tf
from pecan._src.dataset import structure

D = tf.data.Dataset
Point = collections.namedtuple("Point", "x y")


class Pair(tf.experimental.ExtensionType):
    left: tf.Tensor
    right: tf.RaggedTensor


def _optional(i):
    spec = (tf.TensorSpec([], tf.int64), tf.RaggedTensorSpec([None, None], tf.int64))
    value = (i, tf.RaggedTensor.from_row_lengths(tf.range(i), [i]))
    return tf.cond(
        i % 2 == 0,
        lambda: tf.experimental.Optional.from_value(value),
        lambda: tf.experimental.Optional.empty(spec),
    )


DATASETS = {
    "one tensor": lambda: D.range(3),
    "a tuple": lambda: D.range(3).map(lambda i: (i, tf.as_string(i))),
    "a tuple of one": lambda: D.from_tensors(((1, 2),)),
    "a dict out of order": lambda: D.range(3).map(lambda i: {"b": (i, tf.cast(i, tf.float32)), "a": tf.as_string(i)}),
    "a named tuple": lambda: D.range(3).map(lambda i: Point(i, tf.fill([2], i))),
    "nothing between": lambda: D.range(3).map(lambda i: (i, None, {"q": None, "r": i})),
    "ragged": lambda: D.range(4).map(lambda i: tf.RaggedTensor.from_row_lengths(tf.range(i), [i - i // 2, i // 2])),
    "ragged twice": lambda: D.from_tensors(tf.ragged.constant([[[1], [2, 3]], [[]]])),
    "ragged strings": lambda: D.from_tensors(tf.ragged.constant([["a"], [], ["b", ""]])),
    "sparse": lambda: D.range(4).map(lambda i: tf.sparse.from_dense(tf.one_hot(i, 5))),
    "optional": lambda: D.range(4).map(_optional),
    "a class of one's own": lambda: D.from_tensors(Pair(tf.constant(1), tf.ragged.constant([[1], [2, 3]]))),
    "all of it": lambda: D.range(4).map(
        lambda i: {"o": _optional(i), "p": Point(None, tf.sparse.from_dense(tf.one_hot(i, 3))), "z": i}
    ),
}


def plain(value):
    """Returns an element as Python values."""
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
    if isinstance(value, Pair):
        return ("pair", plain(value.left), plain(value.right))
    if hasattr(value, "has_value"):
        return ("optional", tf.nest.map_structure(plain, value.get_value()) if value.has_value() else None)
    array = value.numpy()
    return (value.dtype.name, array.tolist() if hasattr(array, "tolist") else array)


def elements(dataset):
    return [tf.nest.map_structure(plain, element) for element in dataset]


@pytest.mark.parametrize("name", DATASETS)
def test_flatten_and_pack_return_the_same_elements(name):
    dataset = DATASETS[name]()
    shape = structure.Structure(dataset.element_spec)
    flat = dataset.map(shape.flatten)
    assert all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(flat.element_spec))
    assert len(tf.nest.flatten(flat.element_spec)) == len(shape.flat)
    back = flat.map(lambda *tensors: shape.pack(tensors))
    assert back.element_spec == dataset.element_spec
    assert elements(back) == elements(dataset)


@pytest.mark.parametrize("name", [n for n in DATASETS if "own" not in n])
def test_decode_spec_returns_the_encoded_spec(name):
    spec = DATASETS[name]().element_spec
    assert structure.decode_spec(structure.encode_spec(spec)) == spec


def test_only_composite_elements_need_maps():
    assert not structure.Structure(DATASETS["a dict out of order"]().element_spec).composite
    assert structure.Structure(DATASETS["nothing between"]().element_spec).composite


REFUSED = {
    "datasets": lambda: D.range(3).window(2),
    "variants": lambda: D.range(3).map(lambda i: tf.data.experimental.to_variant(D.range(i))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_components_that_workers_cannot_send_are_refused(name):
    with pytest.raises(pecan.UnsupportedError, match="cannot leave the process"):
        structure.Structure(REFUSED[name]().element_spec)
