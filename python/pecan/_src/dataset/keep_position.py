"""`pecan.keep_position`: steps that the author pins while the service reorders the others."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from pecan._src import errors

if typing.TYPE_CHECKING:
    import tensorflow as tf

_Function = typing.TypeVar("_Function", bound=Callable[..., Any])

# The dispatcher finds functions and steps by these names (service/graph/marks.go).
_MARK = "pecan_keep_position"
_BEGIN, _END = f"{_MARK}_begin", f"{_MARK}_end"


def keep_position(function: _Function) -> _Function:
    """Pins the step that uses a function: `order="auto"` moves neither the step nor any other step past it.

    Use it for functions of `map`, `filter` and similar steps, and `keep_position_of` for steps without a function. It
    adds a no-op to the function as a mark. The function computes the same values, here and on workers. Without
    `distribute()` the mark has no effect.

    Args:
        function: The function of the step, with any arguments and results.

    Returns:
        A function for the step, with the same arguments and results.

    Raises:
        PecanError: If the argument is not callable (also a `TypeError`).

    Example:
        >>> dataset = dataset.map(decode).map(pecan.keep_position(normalise)).map(crop)
    """
    if not callable(function):
        raise errors.InvalidTypeError(
            f"keep_position() needs a function, got {type(function).__name__}: write "
            "dataset.map(pecan.keep_position(function))"
        )
    import tensorflow as tf

    if isinstance(function, tf.data.Dataset):
        raise errors.InvalidTypeError(
            "keep_position() takes a step's function, not a dataset: for steps without one write "
            "dataset.apply(pecan.keep_position_of(lambda ds: ds.shuffle(100).batch(8)))"
        )

    # AutoGraph converts this function and the function that it calls in the same way.
    def kept(*arguments: Any, **named: Any) -> Any:
        with tf.name_scope(_MARK + "/"):
            tf.no_op()
        return function(*arguments, **named)

    name = getattr(function, "__name__", "")
    if name.isidentifier():
        # TensorFlow names the step after the function. A lambda has no such name; with "<lambda>" AutoGraph would
        # look for a lambda in this file.
        kept.__name__ = name
    kept.__doc__ = getattr(function, "__doc__", None)
    return typing.cast("_Function", kept)


def keep_position_of(
    steps: Callable[[tf.data.Dataset], tf.data.Dataset],
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Pins several steps, with or without functions: none of them moves, and no other step moves past them.

    It adds a `take(-1)` before and after the steps. The dispatcher recognises both by their names; TensorFlow removes
    them when it runs the dataset. `keep_position` pins a single `map` or `filter`.

    Args:
        steps: A function that takes a dataset and returns it with the steps appended.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Raises:
        PecanError: If the argument is not callable, or does not return a dataset when applied (also a `TypeError`).

    Example:
        >>> dataset = dataset.map(decode).apply(pecan.keep_position_of(lambda ds: ds.shuffle(100).batch(8)))
    """
    if not callable(steps):
        raise errors.InvalidTypeError(
            f"keep_position_of() needs a function from a dataset to a dataset, got {type(steps).__name__}: write "
            "dataset.apply(pecan.keep_position_of(lambda ds: ds.batch(8)))"
        )

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        import tensorflow as tf

        result = steps(dataset.take(-1, name=_BEGIN))
        if not isinstance(result, tf.data.Dataset):
            raise errors.InvalidTypeError(
                f"the function given to keep_position_of() returned {type(result).__name__}, not a tf.data.Dataset: "
                "have it return the dataset with the steps appended"
            )
        return result.take(-1, name=_END)

    return apply
