"""Converts elements to flat lists of plain tensors, and back.

Workers send plain tensors only. If a dataset has composite components, `graph` appends a map with `Structure.flatten`
before it serialises the dataset. In the trainer, `reader` appends a map with `Structure.pack`:

| component | plain tensors |
| --- | --- |
| tensor | the tensor |
| RaggedTensor, SparseTensor, other composite tensors | their parts |
| row of a RaggedTensor | the row as one plain tensor |
| Optional | a bool, true if it has a value; then the parts of the value, or zeros in their place |
| None | none |
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from pecan._src import errors


class Structure:
    """The structure of a dataset's elements.

    Attributes:
        element_spec: The element spec of the dataset.
        composite: Whether it has a component that is not a plain tensor. Elements then need both maps.

    Raises:
        UnsupportedError: At construction, if workers cannot send a component, for example a dataset.
    """

    def __init__(self, element_spec: Any) -> None:
        self.element_spec = element_spec
        self._leaves: list[Any] = tf.nest.flatten(element_spec)
        for number, leaf in enumerate(self._leaves):
            _check_leaf(leaf, number)
        self.composite = not all(isinstance(leaf, tf.TensorSpec) for leaf in self._leaves)

    @property
    def flat(self) -> list[tf.TensorSpec]:
        """Specs of the plain tensors of an element, with their shapes and dtypes."""
        return [part for leaf in self._leaves for part in _parts(leaf)]

    def flatten(self, *element: Any) -> tuple[tf.Tensor, ...]:
        """Returns the plain tensors of an element.

        Args:
            *element: The arguments that tf.data passes to a map function: the parts of a tuple, or one value.
        """
        whole: Any = (
            element if isinstance(self.element_spec, tuple) and not _is_namedtuple(self.element_spec) else element[0]
        )
        values = _flat_values(self.element_spec, whole)
        return tuple(
            part for leaf, value in zip(self._leaves, values, strict=True) for part in _flatten_leaf(leaf, value)
        )

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns the element with the given plain tensors, as the result of a map function.

        Iteration returns a row of a RaggedTensor as a plain tensor, but the element spec has a RaggedTensorSpec for it.
        No map can return that combination. Therefore `pack` returns the row in tf.data's own form, a variant. The row
        becomes a tensor again when the reader restores the element spec of the dataset.
        """
        rest = list(tensors)
        values = [_pack_leaf(leaf, [rest.pop(0) for _ in _parts(leaf)]) for leaf in self._leaves]
        return tf.nest.pack_sequence_as(self.element_spec, values)


def check_spec(element_spec: Any) -> None:
    """Raises if no dataset can have the element spec that the caller gave.

    Raises:
        InvalidTypeError: If it contains a value that is not a `tf.TypeSpec`, or a list. tf.data converts lists to
            tensors.
    """
    for part in tf.nest.flatten(element_spec):
        if part is not None and not isinstance(part, tf.TypeSpec):
            raise errors.InvalidTypeError(
                f"`element_spec` must consist of tf.TensorSpec and other tf.TypeSpec, got {part!r} of type "
                f"{type(part).__name__}: give the element_spec of the dataset that was registered, or leave it out"
            )
    if _has_list(element_spec):
        raise errors.InvalidTypeError(
            f"`element_spec` must not contain lists, which tf.data converts to tensors, got {element_spec!r}: write a "
            "tuple"
        )


def _has_list(spec: Any) -> bool:
    if isinstance(spec, list):
        return True
    inside = spec.values() if isinstance(spec, Mapping) else spec if isinstance(spec, tuple) else ()
    return any(_has_list(part) for part in inside)


def _is_namedtuple(spec: Any) -> bool:
    return hasattr(spec, "_fields")


def _flat_values(spec: Any, element: Any) -> list[Any]:
    # tf.nest treats None and NoneTensorSpec as leaves, so spec and element have the same number of leaves.
    tf.nest.assert_same_structure(spec, element, check_types=False)
    values: list[Any] = tf.nest.flatten(element)
    return values


def _check_leaf(leaf: Any, number: int) -> None:
    what = None
    if isinstance(leaf, tf.data.DatasetSpec):
        what = "a dataset"
    elif isinstance(leaf, tf.TensorArraySpec):
        what = "a TensorArray"
    else:
        for part in _parts(leaf):
            if not isinstance(part, tf.TensorSpec) or part.dtype in (tf.variant, tf.resource):
                what = repr(leaf)
    if what is not None:
        raise errors.make(
            f"component {number} of the elements is {what}, which cannot leave the process that creates it: convert it "
            "to tensors before distribute(), for example with batch() or flat_map(), or create it after distribute() "
            "[pecan:UNSUPPORTED]",
            "UNSUPPORTED",
            12,
        )


def _is_none(leaf: Any) -> bool:
    return type(leaf).__name__ == "NoneTensorSpec"


def _parts(leaf: Any) -> list[tf.TensorSpec]:
    if isinstance(leaf, tf.TensorSpec):
        return [leaf]
    if _is_none(leaf):
        return []
    if isinstance(leaf, tf.OptionalSpec):
        inner = Structure(leaf._element_spec)
        return [tf.TensorSpec((), tf.bool), *(tf.TensorSpec(None, part.dtype) for part in inner.flat)]
    parts: list[tf.TensorSpec] = tf.nest.flatten(leaf, expand_composites=True)
    return parts


def _flatten_leaf(leaf: Any, value: Any) -> list[tf.Tensor]:
    if isinstance(leaf, tf.TensorSpec):
        return [value]
    if _is_none(leaf):
        return []
    if isinstance(leaf, tf.OptionalSpec):
        inner = Structure(leaf._element_spec)
        has_value = value.has_value()

        def value_parts() -> list[tf.Tensor]:
            values = _flat_values(inner.element_spec, value.get_value())
            return [part for sub, one in zip(inner._leaves, values, strict=True) for part in _flatten_leaf(sub, one)]

        def zero_parts() -> list[tf.Tensor]:
            return [
                tf.zeros([dim or 0 for dim in part.shape] if part.shape.rank else [], part.dtype) for part in inner.flat
            ]

        return [has_value, *tf.cond(has_value, value_parts, zero_parts)]
    parts: list[tf.Tensor] = tf.nest.flatten(value, expand_composites=True)
    return parts


def _pack_leaf(leaf: Any, parts: list[tf.Tensor]) -> Any:
    if isinstance(leaf, tf.TensorSpec):
        return parts[0]
    if _is_none(leaf):
        return None
    if isinstance(leaf, tf.OptionalSpec):
        inner = Structure(leaf._element_spec)
        has_value, *rest = parts

        def with_value() -> Any:
            for part, spec in zip(rest, inner.flat, strict=True):
                part.set_shape(spec.shape)
            return tf.experimental.Optional.from_value(inner.pack(rest))

        return tf.cond(has_value, with_value, lambda: tf.experimental.Optional.empty(leaf._element_spec))
    if isinstance(leaf, tf.RaggedTensorSpec) and leaf.ragged_rank == 0:
        return leaf._to_tensor_list(parts[0])[0]
    return tf.nest.pack_sequence_as(leaf, parts, expand_composites=True)


def encode_spec(element_spec: Any) -> str:
    """Returns an element spec as hexadecimal text, for readers that know only the dataset's id."""
    from tensorflow.python.saved_model import nested_structure_coder

    with warnings.catch_warnings():
        # TensorFlow warns about classes that only this process knows. decode_spec() raises for them where needed.
        warnings.simplefilter("ignore")
        return str(nested_structure_coder.encode_structure(element_spec).SerializeToString().hex())


def decode_spec(text: str) -> Any:
    """Returns the element spec for a text from `encode_spec`.

    Raises:
        PecanError: If this process or its TensorFlow does not know a class in the spec.
    """
    from tensorflow.python.saved_model import nested_structure_coder

    try:
        message = nested_structure_coder.struct_pb2.StructuredValue.FromString(bytes.fromhex(text))
        return nested_structure_coder.decode_proto(message)
    except Exception as error:
        raise errors.make(
            f"TensorFlow {tf.__version__} cannot read the registered element spec: {error}; give element_spec= "
            "[pecan:SPEC_MISMATCH]",
            "SPEC_MISMATCH",
            3,
        ) from error


def components_json(specs: Sequence[tf.TensorSpec]) -> list[dict[str, Any]]:
    """Returns plain tensor specs in the form that the Go package bindings reads.

    `dtype` is TensorFlow's DataType number. `dims` is None for an unknown rank; -1 stands for an unknown dimension.
    """
    return [
        {
            "dtype": spec.dtype.as_datatype_enum,
            "dims": None if spec.shape.rank is None else [-1 if dim is None else dim for dim in spec.shape.as_list()],
        }
        for spec in specs
    ]
