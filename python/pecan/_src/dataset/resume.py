"""Resume states: a trainer saves its position in a dataset with its model, and another process continues there.

TensorFlow prefetches, so Pecan has delivered more elements than the training loop has consumed. The client keeps the
positions of its latest deliveries. The caller of `state_dict` says how many elements the loop has consumed.
"""

from __future__ import annotations

import json
import operator
import re
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pecan._src import errors
from pecan._src.client import native

# Datasets that distribute() and from_dataset_id() returned, with the handles of their jobs.
_jobs: weakref.WeakKeyDictionary[tf.data.Dataset, int] = weakref.WeakKeyDictionary()

# Reasons of errors that replace one element. Such an error counts as the element, unless its message contains _ENDED
# (native/op, handles.go): then no element follows. After an error with another reason the next element is unchanged.
_ELEMENT_REASONS = ("ELEMENT_FAILED", "ELEMENT_SPEC", "ELEMENT_TOO_LARGE", "FILE_NOT_VISIBLE")
_ENDED = "the iterator ends with this error"
_REASON = re.compile(r"\[pecan:([A-Z_]+)\]")


def remember(dataset: tf.data.Dataset, job: int) -> None:
    """Records the job that a dataset reads."""
    _jobs[dataset] = job


def job_of(dataset: Any, what: str) -> int:
    """Returns the job of the one Pecan dataset among the dataset and its inputs."""
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.InvalidTypeError(f"{what} needs a tf.data.Dataset, got {type(dataset).__name__}")
    jobs: list[int] = []
    inputs = [dataset]
    while inputs:
        one = inputs.pop()
        job = _jobs.get(one)
        if job is None:
            inputs += one._inputs()
        else:
            jobs.append(job)
    if len(jobs) != 1:
        raise errors.InvalidArgumentError(
            f"{what} needs a dataset with exactly one input from distribute() or from_dataset_id(), this one has "
            f"{len(jobs)}: give the dataset that was read, or each of them by itself"
        )
    return jobs[0]


def state_dict(dataset: tf.data.Dataset, *, consumed: int) -> dict[str, Any]:
    """Returns the state after the elements that a training loop has consumed. Save it with the model.

    Use this function with loops such as `model.fit`. `pecan.Iterator` counts elements itself.

    Args:
        dataset: A dataset from `distribute()`, or a dataset built on one.
        consumed: Number of elements of `distribute()` that the loop has consumed since the dataset was created or its
            state was loaded, over all its iterators. With a `batch(n)` after `distribute()`, each step consumes n
            elements. An error in place of an element counts as one.

    Returns:
        A dict of plain values for `load_state_dict`. Its size is at most 4 KiB plus 16 bytes per stream.

    Raises:
        PecanError: If fewer elements were delivered, or more than 1,024 deliveries came later. If two iterators read
            the dataset at the same time. If the job is shared, or its sharding is OFF.
    """
    return _state(job_of(dataset, "state_dict()"), 0, _count(consumed), ended=False)


def load_state_dict(dataset: tf.data.Dataset, state: dict[str, Any]) -> None:
    """Makes the next iterator of a dataset start at the position in a state. Open iterators of the dataset end.

    Build the dataset with the same graph, mode and seed as when the state was saved. The workers, their number and the
    dispatcher may differ.

    Args:
        dataset: A dataset from `distribute()`, or a dataset built on one.
        state: The dict from `state_dict`.

    Raises:
        PecanError: If the state is damaged, or belongs to a dataset with other elements (also a `ValueError`).
    """
    _load(job_of(dataset, "load_state_dict()"), state)


def _count(number: Any) -> int:
    try:
        count = operator.index(number)
    except TypeError:
        raise errors.InvalidTypeError(
            f"`consumed` must be an integer, got {number!r} of type {type(number).__name__}"
        ) from None
    if count >> 63 not in (0, -1):
        raise errors.InvalidArgumentError(f"`consumed` must fit into 64 bits, got {count}")
    return count


def _state(job: int, iterator_number: int, consumed: int, *, ended: bool) -> dict[str, Any]:
    return {"token": str(native.load().call("SaveState", job, iterator_number, consumed, ended))}


def _load(job: int, state: Any) -> None:
    if not isinstance(state, dict) or not isinstance(state.get("token"), str):
        raise errors.InvalidArgumentError(f"a state is a dict with a string `token`, got {_short(state)}")
    token = state["token"]
    if not token.isascii() or "\0" in token:
        # Calls into the shared object cannot pass such a text.
        raise errors.InvalidArgumentError("load a state: it was truncated or changed; give the dict from state_dict()")
    native.load().wait("LoadState", job, token)


def _short(value: Any) -> str:
    return f"one with {list(value)[:5]}" if isinstance(value, dict) else type(value).__name__


class Iterator(tf.train.experimental.PythonState):  # type: ignore[misc]
    """An iterator that counts consumed elements, so that another process can continue from its state.

    Example:
        >>> iterator = pecan.Iterator(dataset)
        >>> checkpoint = tf.train.Checkpoint(model=model, iterator=iterator)
        >>> for step, batch in enumerate(iterator):
        ...     train(batch)
        ...     if step % 1000 == 999:
        ...         checkpoint.save(path)

    The iterator raises StopIteration at the end of the dataset; the next call of `next()` starts another pass. After an
    error, `next()` continues at the same position. If the error ended the pass, `next()` raises
    `tf.errors.CancelledError`; then pass `state_dict()` to `load_state_dict()` to continue. Use the iterator from
    one thread only; several threads may share an iterator from `iter(dataset)`.
    """

    def __init__(self, dataset: tf.data.Dataset, *, elements_per_next: int | Callable[[Any], int] = 1) -> None:
        """Creates an iterator. It reads nothing before the first `next()`.

        Args:
            dataset: A dataset from `distribute()`, or a dataset built on one.
            elements_per_next: Number of elements of `distribute()` in one element of `dataset`. It is 1 unless steps
                after `distribute()` batch, filter and so on. A function receives each element and returns the number,
                such as `lambda batch: len(batch)` if the last batch may be smaller.

        Raises:
            PecanError: If the dataset does not have exactly one input from `distribute()`.
        """
        self._dataset = dataset
        self._job = job_of(dataset, "pecan.Iterator")
        self._per_next = elements_per_next
        if not callable(elements_per_next) and _count(elements_per_next) < 1:
            raise errors.InvalidArgumentError(f"`elements_per_next` must be above 0, got {elements_per_next}")
        self._inner: Any = None
        # The number of the inner iterator, and how many of its elements the loop has consumed.
        self._iterator_number = self._consumed = 0
        # Whether the inner iterator may have returned an element that the loop did not get, and the state to rewind to.
        self._uncertain = False
        self._rewind_state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if self._uncertain:
            self._rewind()
        if self._inner is None:
            # The new number separates this pass from other iterators and from elements that TensorFlow prefetched in
            # an earlier pass.
            self._iterator_number, self._consumed = int(native.load().call_json("NewIterator", self._job)), 0
            self._inner = iter(self._dataset)
        self._uncertain = True
        try:
            element = next(self._inner)
        except StopIteration:
            self._inner, self._uncertain = None, False
            raise
        except tf.errors.OpError as error:
            reason = _REASON.search(str(error))
            if reason is None or (reason.group(1) in _ELEMENT_REASONS and _ENDED not in str(error)):
                self._consumed += 1
            self._uncertain = False
            raise
        # An exception before this line (Ctrl-C, another signal handler, `elements_per_next`) leaves
        # the iterator uncertain. The inner iterator may have returned an element that the loop did
        # not get.
        count = self._per_next(element) if callable(self._per_next) else self._per_next
        self._consumed, self._uncertain = self._consumed + count, False
        return element

    def _rewind(self) -> None:
        """Restarts after the last element that the loop got. A dataset without positions continues and may skip one."""
        try:
            self._rewind_state = self._rewind_state or self.state_dict()
        except errors.PecanError:
            self._uncertain = False
            return
        self.load_state_dict(self._rewind_state)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last element of `next()`, or at the start of the next pass.

        Returns:
            A dict of plain values; see `pecan.state_dict`.
        """
        if self._rewind_state is not None:
            return dict(self._rewind_state)
        return _state(self._job, self._iterator_number, self._consumed, ended=self._inner is None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at the position in a state.

        Args:
            state: The dict from `state_dict`; see `pecan.load_state_dict`.
        """
        _load(self._job, state)
        self._inner, self._uncertain, self._rewind_state = None, False, None

    def serialize(self) -> str:
        """Returns the state as text. `tf.train.Checkpoint` calls it when it saves."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: str) -> None:
        """Loads the state from text. `tf.train.Checkpoint` calls it when it restores."""
        try:
            state = json.loads(string_value)
        except ValueError:
            raise errors.InvalidArgumentError(
                "the checkpoint of this iterator was truncated or changed: restore another checkpoint"
            ) from None
        self.load_state_dict(state)
