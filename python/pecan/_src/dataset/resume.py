"""Where a trainer stands in a dataset: saved with its model, and gone on from by another process.

TensorFlow reads ahead of the training loop, so what Pecan handed over is more than what the loop has used. The client
remembers the positions of what it handed over last; who saves says how many elements the loop has really had.
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

# Handles of the jobs behind the datasets that distribute() gave.
_jobs: weakref.WeakKeyDictionary[tf.data.Dataset, int] = weakref.WeakKeyDictionary()

# Errors of Pecan's that come in the place of an element, unless these words (native/op, handles.go) say that nothing
# comes behind them. After others of its errors the next element is still the same.
_OF_AN_ELEMENT = ("ELEMENT_FAILED", "ELEMENT_SPEC", "ELEMENT_TOO_LARGE", "FILE_NOT_VISIBLE")
_ENDED = "the iterator ends with this error"
_REASON = re.compile(r"\[pecan:([A-Z_]+)\]")


def remember(dataset: tf.data.Dataset, job: int) -> None:
    """Notes the job behind a dataset."""
    _jobs[dataset] = job


def job_of(dataset: Any, what: str) -> int:
    """The job of the one Pecan dataset that a dataset is made of."""
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.InvalidTypeError(f"{what} needs a tf.data.Dataset, got {type(dataset).__name__}")
    found: list[int] = []
    below = [dataset]
    while below:
        one = below.pop()
        job = _jobs.get(one)
        if job is None:
            below += one._inputs()
        else:
            found.append(job)
    if len(found) != 1:
        raise errors.InvalidArgumentError(
            f"{what} needs a dataset made of exactly one that distribute() or from_dataset_id() gave, this one is made "
            f"of {len(found)}: give the one that was read, or each of them by itself"
        )
    return found[0]


def state_dict(dataset: tf.data.Dataset, *, consumed: int) -> dict[str, Any]:
    """The position behind the elements that a training loop has used, to be saved with its model.

    For loops that are not your own, as `model.fit`; `pecan.Iterator` counts by itself.

    Args:
        dataset: What `distribute()` gave, or a dataset made of it.
        consumed: How many elements of what `distribute()` gave the loop has used since the dataset was made, or its
            state loaded, over all its iterators. With a `batch(n)` behind `distribute()`, each step uses n of them. An
            error that came in an element's place counts as one.

    Returns:
        A dict of plain values, of at most 4 KiB and 16 bytes per stream, for `load_state_dict`.

    Raises:
        PecanError: If so many elements were not handed over, or more than 1,024 deliveries came since; if two iterators
            read the dataset at once; for datasets of a shared job, or with sharding OFF.
    """
    return _state(job_of(dataset, "state_dict()"), 0, _count(consumed), ended=False)


def load_state_dict(dataset: tf.data.Dataset, state: dict[str, Any]) -> None:
    """Has the next iterator of a dataset begin behind what a training loop had used; iterators that are open end.

    The dataset has to be made as it was made when the state was saved: by the same graph, mode and seed. Which workers
    run it, how many, and which dispatcher, is another matter.

    Args:
        dataset: What `distribute()` gave, or a dataset made of it.
        state: What `state_dict` gave.

    Raises:
        PecanError: If the state is damaged, or of a dataset that gives other elements (a `ValueError`).
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


def _state(job: int, reading: int, consumed: int, *, ended: bool) -> dict[str, Any]:
    return {"token": str(native.load().call("SaveState", job, reading, consumed, ended))}


def _load(job: int, state: Any) -> None:
    if not isinstance(state, dict) or not isinstance(state.get("token"), str):
        raise errors.InvalidArgumentError(f"a state is a dict with a string `token`, got {_short(state)}")
    token = state["token"]
    if not token.isascii() or "\0" in token:
        # What no call into the shared object can carry.
        raise errors.InvalidArgumentError("load a state: it was cut or changed; give what state_dict() gave")
    native.load().wait("LoadState", job, token)


def _short(value: Any) -> str:
    return f"one with {list(value)[:5]}" if isinstance(value, dict) else type(value).__name__


class Iterator(tf.train.experimental.PythonState):  # type: ignore[misc]
    """An iterator that knows what was taken from it, and can go on in another process.

    Example:
        >>> iterator = pecan.Iterator(dataset)
        >>> checkpoint = tf.train.Checkpoint(model=model, iterator=iterator)
        >>> for step, batch in enumerate(iterator):
        ...     train(batch)
        ...     if step % 1000 == 999:
        ...         checkpoint.save(path)

    It ends with the dataset, and begins the next pass when it is asked again. After an error it goes on where it stood,
    or raises the error again as a `tf.errors.CancelledError` where that has ended the pass: `load_state_dict` of its
    own `state_dict` goes on then. It counts for one thread; many threads may share what `iter(dataset)` gives.
    """

    def __init__(self, dataset: tf.data.Dataset, *, elements_per_next: int | Callable[[Any], int] = 1) -> None:
        """Makes an iterator; nothing is read before the first `next()`.

        Args:
            dataset: What `distribute()` gave, or a dataset made of it.
            elements_per_next: How many elements of what `distribute()` gave make one of `dataset`: 1 unless it is
                batched, filtered or the like behind `distribute()`. A function is given each element and tells the
                number, as `lambda batch: len(batch)` where the last batch may be short.

        Raises:
            PecanError: If the dataset is not made of exactly one that `distribute()` gave.
        """
        self._dataset = dataset
        self._job = job_of(dataset, "pecan.Iterator")
        self._per_next = elements_per_next
        if not callable(elements_per_next) and _count(elements_per_next) < 1:
            raise errors.InvalidArgumentError(f"`elements_per_next` must be above 0, got {elements_per_next}")
        self._inner: Any = None
        # The number of the inner iterator, and how many elements it has given.
        self._reading = self._consumed = 0
        # Whether the inner iterator may have given one more, which nobody got, and the state that is gone back to then.
        self._unsure = False
        self._back: dict[str, Any] | None = None

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if self._unsure:
            self._go_back()
        if self._inner is None:
            # What others read still, and what TensorFlow read ahead in an earlier pass, is not of this one.
            self._reading, self._consumed = int(native.load().call_json("NewIterator", self._job)), 0
            self._inner = iter(self._dataset)
        self._unsure = True
        try:
            element = next(self._inner)
        except StopIteration:
            self._inner, self._unsure = None, False
            raise
        except tf.errors.OpError as error:
            word = _REASON.search(str(error))
            if word is None or (word.group(1) in _OF_AN_ELEMENT and _ENDED not in str(error)):
                self._consumed += 1
            self._unsure = False
            raise
        # What is raised up to here, by Ctrl-C, another handler or `elements_per_next`, leaves it unsure: between two
        # steps of Python nobody can tell whether an element was taken, and the loop has not had it.
        count = self._per_next(element) if callable(self._per_next) else self._per_next
        self._consumed, self._unsure = self._consumed + count, False
        return element

    def _go_back(self) -> None:
        """Begins anew behind what `next()` has given. What has no positions goes on, without what may be missing."""
        try:
            self._back = self._back or self.state_dict()
        except errors.PecanError:
            self._unsure = False
            return
        self.load_state_dict(self._back)

    def state_dict(self) -> dict[str, Any]:
        """The position behind what `next()` gave, or the start of the next pass; see `pecan.state_dict`."""
        if self._back is not None:
            return dict(self._back)
        return _state(self._job, self._reading, self._consumed, ended=self._inner is None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind what had been taken when the state was saved; see `pecan.load_state_dict`."""
        _load(self._job, state)
        self._inner, self._unsure, self._back = None, False, None

    def serialize(self) -> str:
        """The state as `tf.train.Checkpoint` saves it."""
        return json.dumps(self.state_dict())

    def deserialize(self, string_value: str) -> None:
        """Takes over the state that a `tf.train.Checkpoint` restores."""
        try:
            state = json.loads(string_value)
        except ValueError:
            raise errors.InvalidArgumentError(
                "restore an iterator from a checkpoint: what it holds was cut or changed; give another checkpoint"
            ) from None
        self.load_state_dict(state)
