"""Steps that their author keeps where they are, whoever decides the order of the others."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from pecan._src import errors

if typing.TYPE_CHECKING:
    import tensorflow as tf

_Function = typing.TypeVar("_Function", bound=Callable[..., Any])

# The dispatcher finds functions and steps by these names (service/graph.KeepPositionMark).
_MARK = "pecan_keep_position"
_BEGIN, _END = f"{_MARK}_begin", f"{_MARK}_end"


def keep_position(function: _Function) -> _Function:
    """Has the step that uses a function stay where it is: `order="auto"` does not move it, and nothing past it.

    For functions given to `map`, `filter` and the like; `keep_position_of` is for steps that have none. It leaves a
    mark in the function as it is traced, an operation that does nothing. What the function computes is the same with
    and without it, here and on workers, and without `distribute()` it does nothing at all.

    Args:
        function: What the step is to call, with whatever arguments and results it has.

    Returns:
        A function to be given to the step in its place.

    Raises:
        PecanError: If what is given cannot be called (a `TypeError`).

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

    # AutoGraph rewrites this with the function that it calls, as it would rewrite that alone.
    def kept(*arguments: Any, **named: Any) -> Any:
        with tf.name_scope(_MARK + "/"):
            tf.no_op()
        return function(*arguments, **named)

    name = getattr(function, "__name__", "")
    if name.isidentifier():
        # What TensorFlow calls the step by. A lambda's name would have AutoGraph look for a lambda here.
        kept.__name__ = name
    kept.__doc__ = getattr(function, "__doc__", None)
    return typing.cast("_Function", kept)


def keep_position_of(
    steps: Callable[[tf.data.Dataset], tf.data.Dataset],
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Has steps stay where they are, also those that have no function: none of them moves, and nothing past them.

    It puts a step below and one above them that pass every element on (`take(-1)`, which TensorFlow leaves out when it
    runs the dataset) and tell the dispatcher by their names that what lies between stays. `keep_position` does it for
    one `map` or `filter`.

    Args:
        steps: Takes a dataset and gives it with the steps behind it.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Raises:
        PecanError: If what is given is no function, or when it is applied gives no dataset (a `TypeError`).

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
                f"the function given to keep_position_of() gave {type(result).__name__} and no tf.data.Dataset: have "
                "it return the dataset with the steps behind it"
            )
        return result.take(-1, name=_END)

    return apply
