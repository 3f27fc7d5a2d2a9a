"""Elements as flat lists of plain tensors, and back.

A worker sends plain tensors only. Composite components are taken apart by a map that is appended to the dataset before
it is serialised, and put together again in the trainer:

| component | travels as |
| --- | --- |
| tensor | itself |
| RaggedTensor, SparseTensor, other composite tensors | their parts |
| row of a RaggedTensor | the plain tensor that it is |
| Optional | whether it has a value, and the parts of the value, or zeros in their place |
| None | nothing |
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
        element_spec: As the dataset has it.
        composite: Whether anything but plain tensors is in it, so that elements need the two maps.
    """

    def __init__(self, element_spec: Any) -> None:
        self.element_spec = element_spec
        self._leaves: list[Any] = tf.nest.flatten(element_spec)
        for number, leaf in enumerate(self._leaves):
            _refuse(leaf, number)
        self.composite = not all(isinstance(leaf, tf.TensorSpec) for leaf in self._leaves)

    @property
    def flat(self) -> list[tf.TensorSpec]:
        """The plain tensors that an element travels as."""
        return [part for leaf in self._leaves for part in _parts(leaf)]

    def take_apart(self, *element: Any) -> tuple[tf.Tensor, ...]:
        """The plain tensors of an element, given as a map function of the dataset gets it."""
        whole: Any = element if isinstance(self.element_spec, tuple) and not _named(self.element_spec) else element[0]
        values = _values(self.element_spec, whole)
        return tuple(
            part for leaf, value in zip(self._leaves, values, strict=True) for part in _take_apart(leaf, value)
        )

    def put_together(self, tensors: Sequence[tf.Tensor]) -> Any:
        """An element of its plain tensors, as a map function gives it to TensorFlow.

        A row of a RaggedTensor is a plain tensor to whoever takes it, and has a RaggedTensorSpec in the dataset; no map
        gives it that. It comes as the variant that tf.data keeps it in, and becomes a tensor again once the dataset has
        its element spec back.
        """
        rest = list(tensors)
        values = [_put_together(leaf, [rest.pop(0) for _ in _parts(leaf)]) for leaf in self._leaves]
        return tf.nest.pack_sequence_as(self.element_spec, values)


def check_spec(element_spec: Any) -> None:
    """Refuses what a caller gives as element spec and no dataset has.

    Raises:
        InvalidTypeError: If something in it is no `tf.TypeSpec`, or a list: tf.data makes tensors of these.
    """
    for part in tf.nest.flatten(element_spec):
        if part is not None and not isinstance(part, tf.TypeSpec):
            raise errors.InvalidTypeError(
                f"`element_spec` must be made of tf.TensorSpec and its like, got {part!r} of type "
                f"{type(part).__name__}: give the element_spec of the dataset that was registered, or leave it out"
            )
    if _has_list(element_spec):
        raise errors.InvalidTypeError(
            f"`element_spec` must not hold lists, which tf.data makes a tensor of, got {element_spec!r}: write a tuple"
        )


def _has_list(spec: Any) -> bool:
    if isinstance(spec, list):
        return True
    inside = spec.values() if isinstance(spec, Mapping) else spec if isinstance(spec, tuple) else ()
    return any(_has_list(part) for part in inside)


def _named(spec: Any) -> bool:
    return hasattr(spec, "_fields")


def _values(spec: Any, element: Any) -> list[Any]:
    # None is a leaf to tf.nest as NoneTensorSpec is, so both flatten alike.
    tf.nest.assert_same_structure(spec, element, check_types=False)
    values: list[Any] = tf.nest.flatten(element)
    return values


def _refuse(leaf: Any, number: int) -> None:
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
            f"component {number} of the elements is {what}, which cannot leave the process it was made in: turn it "
            "into tensors before distribute(), for example with batch() or flat_map(), or make it after distribute() "
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


def _take_apart(leaf: Any, value: Any) -> list[tf.Tensor]:
    if isinstance(leaf, tf.TensorSpec):
        return [value]
    if _is_none(leaf):
        return []
    if isinstance(leaf, tf.OptionalSpec):
        inner = Structure(leaf._element_spec)
        has_value = value.has_value()

        def filled() -> list[tf.Tensor]:
            values = _values(inner.element_spec, value.get_value())
            return [part for sub, whole in zip(inner._leaves, values, strict=True) for part in _take_apart(sub, whole)]

        def blank() -> list[tf.Tensor]:
            return [
                tf.zeros([dim or 0 for dim in part.shape] if part.shape.rank else [], part.dtype) for part in inner.flat
            ]

        return [has_value, *tf.cond(has_value, filled, blank)]
    parts: list[tf.Tensor] = tf.nest.flatten(value, expand_composites=True)
    return parts


def _put_together(leaf: Any, parts: list[tf.Tensor]) -> Any:
    if isinstance(leaf, tf.TensorSpec):
        return parts[0]
    if _is_none(leaf):
        return None
    if isinstance(leaf, tf.OptionalSpec):
        inner = Structure(leaf._element_spec)
        has_value, *rest = parts

        def filled() -> Any:
            for part, spec in zip(rest, inner.flat, strict=True):
                part.set_shape(spec.shape)
            return tf.experimental.Optional.from_value(inner.put_together(rest))

        return tf.cond(has_value, filled, lambda: tf.experimental.Optional.empty(leaf._element_spec))
    if isinstance(leaf, tf.RaggedTensorSpec) and leaf.ragged_rank == 0:
        return leaf._to_tensor_list(parts[0])[0]
    return tf.nest.pack_sequence_as(leaf, parts, expand_composites=True)


def encode_spec(element_spec: Any) -> str:
    """An element spec as text, for whoever reads the dataset by its id."""
    from tensorflow.python.saved_model import nested_structure_coder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that only this process knows; the reader is told when it matters
        return str(nested_structure_coder.encode_structure(element_spec).SerializeToString().hex())


def decode_spec(text: str) -> Any:
    """The inverse of `encode_spec`.

    Raises:
        PecanError: If the text was written for structures that this TensorFlow does not know.
    """
    from tensorflow.python.saved_model import nested_structure_coder

    try:
        message = nested_structure_coder.struct_pb2.StructuredValue.FromString(bytes.fromhex(text))
        return nested_structure_coder.decode_proto(message)
    except Exception as error:
        raise errors.make(
            f"the element spec that was registered cannot be read by TensorFlow {tf.__version__}: {error}; give "
            "element_spec= [pecan:SPEC_MISMATCH]",
            "SPEC_MISMATCH",
            3,
        ) from error


def components_json(specs: Sequence[tf.TensorSpec]) -> list[dict[str, Any]]:
    """Plain tensor specs as the Go side reads them."""
    return [
        {
            "dtype": spec.dtype.as_datatype_enum,
            "dims": None if spec.shape.rank is None else [-1 if dim is None else dim for dim in spec.shape.as_list()],
        }
        for spec in specs
    ]
