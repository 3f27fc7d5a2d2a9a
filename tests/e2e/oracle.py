"""The oracle compares a distributed run with an independent tf.data run in this process.

It compares dtype, shape and every byte of every component. How much must be equal depends on what local execution
promises for a pipeline:

- `elements`: the multiset of elements is equal, batches included.
- `rows`: the multiset of rows inside the batches and the sizes of the batches are equal. This is for pipelines that
  shuffle before they batch, or that batch elements whose number is unknown. Only the rows that share a batch may differ.
- `subset`: the number and the sizes of batches are equal. Every row is in `pool`, and comes at most as often as there.
  This is for pipelines that drop rows after a shuffle. The dropped rows may differ, and their number may not.

The element spec must always be equal, and the cardinality must be equal if local execution knows it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any, Literal

import numpy as np
import tensorflow as tf

How = Literal["elements", "rows", "subset"]
Fingerprint = tuple


@dataclasses.dataclass
class Run:
    """The result of one pass over a dataset."""

    elements: list[Any]
    spec: Any
    cardinality: int


def run(dataset: tf.data.Dataset, *, limit: int | None = None) -> Run:
    """Reads a dataset to its end, or only its first `limit` elements."""
    elements = list(itertools.islice(iter(dataset), limit))
    return Run(elements, dataset.element_spec, int(dataset.cardinality()))


def fingerprint(element: Any) -> Fingerprint:
    """Structure, dtype, shape and all bytes of an element as a hashable value."""
    tf.nest.assert_same_structure(element, element)
    return tuple(_component(part) for part in tf.nest.flatten(element, expand_composites=True))


def _component(part: Any) -> tuple:
    if part is None:
        return ("none",)
    array = part.numpy() if isinstance(part, tf.Tensor) else np.asarray(part)
    if not isinstance(array, np.ndarray):
        array = np.asarray(array, dtype=object if isinstance(array, bytes) else None)
    values = tuple(array.reshape(-1)) if array.dtype == object else array.tobytes()
    return (part.dtype.name if isinstance(part, tf.Tensor) else str(array.dtype), array.shape, values)


def rows_of(element: Any) -> list[Any]:
    """The rows of a batch, each with the batch's structure."""
    parts = tf.nest.flatten(element)
    return [tf.nest.pack_sequence_as(element, [_row(part, i) for part in parts]) for i in range(batch_size(element))]


def _row(part: Any, i: int) -> Any:
    """A row without zeros at its end. The length of the padding depends on the other rows of the batch."""
    row = part[i]
    if isinstance(row, tf.Tensor) and row.shape.rank == 1 and row.dtype.is_integer:
        values = row.numpy()
        return tf.constant(np.trim_zeros(values, "b"), row.dtype)
    return row


def batch_size(element: Any) -> int:
    """The leading dimension of a batch."""
    first = tf.nest.flatten(element)[0]
    return int(first.shape[0]) if first.shape[0] is not None else int(first.nrows())


def compare(ours: Run, local: Run, how: How, *, pool: Run | None = None) -> None:
    """Fails if a distributed run differs from a local run, and says how."""
    assert ours.spec == local.spec, f"element_spec is {ours.spec}, locally {local.spec}"
    if local.cardinality != tf.data.UNKNOWN_CARDINALITY:
        assert ours.cardinality == local.cardinality, f"cardinality is {ours.cardinality}, locally {local.cardinality}"
    for element in ours.elements:
        tf.nest.assert_same_structure(element, local.spec, expand_composites=True)
    if how == "elements":
        _same(_counted(ours.elements), _counted(local.elements), "elements")
        return
    sizes, wanted = (collections.Counter(batch_size(e) for e in run.elements) for run in (ours, local))
    assert sizes == wanted, f"batches by size are {dict(sizes)}, locally {dict(wanted)}"
    mine = _counted(row for element in ours.elements for row in rows_of(element))
    if how == "rows":
        _same(mine, _counted(row for element in local.elements for row in rows_of(element)), "rows")
        return
    assert pool is not None, "subset needs a pool of rows"
    unexpected = mine - _counted(pool.elements)
    assert not unexpected, (
        f"{sum(unexpected.values())} rows are not in the dataset or came too often: {_shown(unexpected)}"
    )


def _counted(elements: Any) -> collections.Counter:
    return collections.Counter(fingerprint(element) for element in elements)


def _same(ours: collections.Counter, local: collections.Counter, what: str) -> None:
    lost, extra = local - ours, ours - local
    assert not lost and not extra, (
        f"{sum(ours.values())} {what} came, locally {sum(local.values())}; {sum(lost.values())} were lost, such as"
        f" {_shown(lost)}; {sum(extra.values())} were unexpected, such as {_shown(extra)}"
    )


def _shown(counter: collections.Counter) -> str:
    """A few fingerprints in readable form."""
    shown = []
    for parts in itertools.islice(counter, 3):
        readable = [
            list(part[2])[:4] if isinstance(part[2], tuple) else np.frombuffer(part[2], _numpy(part[0]))[:4].tolist()
            for part in parts
            if len(part) == 3
        ]
        shown.append(str(readable))
    return ", ".join(shown) or "none"


def _numpy(name: str) -> Any:
    return tf.as_dtype(name).as_numpy_dtype
