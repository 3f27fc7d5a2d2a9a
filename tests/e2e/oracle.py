"""The oracle: what an independent in-process tf.data run gives, and whether a distributed run gave the same.

Values are compared whole: dtype, shape and every byte of every component. How much must agree depends on what local
execution itself promises for a pipeline:

- `elements`: the multiset of elements, batches included, as they are.
- `rows`: the multiset of rows inside the batches, and the sizes of the batches. For pipelines that shuffle before they
  batch, or whose batches are made of counts that only running tells: which rows meet in a batch is open, and no more.
- `subset`: the number and sizes of batches, and that every row is one of `pool`, taken at most as often as it is
  there. For pipelines that drop or leave out rows after a shuffle: which ones is open, how many is not.

In all of them the element spec must be equal, and the cardinality wherever local execution knows it.
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
    """What one pass over a dataset gave."""

    elements: list[Any]
    spec: Any
    cardinality: int


def run(dataset: tf.data.Dataset, *, limit: int | None = None) -> Run:
    """Reads a dataset to its end, or its first `limit` elements."""
    elements = list(itertools.islice(iter(dataset), limit))
    return Run(elements, dataset.element_spec, int(dataset.cardinality()))


def fingerprint(element: Any) -> Fingerprint:
    """Structure, dtype, shape and all bytes of an element, as something that can be counted."""
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
    """A row without the zeros that padding may have put at its end: how many depends on which rows met."""
    row = part[i]
    if isinstance(row, tf.Tensor) and row.shape.rank == 1 and row.dtype.is_integer:
        values = row.numpy()
        return tf.constant(np.trim_zeros(values, "b"), row.dtype)
    return row


def batch_size(element: Any) -> int:
    """Leading dimension of a batch."""
    first = tf.nest.flatten(element)[0]
    return int(first.shape[0]) if first.shape[0] is not None else int(first.nrows())


def compare(ours: Run, local: Run, how: How, *, pool: Run | None = None) -> None:
    """Fails with a sentence when our run is not what local execution would have given."""
    assert ours.spec == local.spec, f"element_spec is {ours.spec}, locally {local.spec}"
    if local.cardinality != tf.data.UNKNOWN_CARDINALITY:
        assert ours.cardinality == local.cardinality, f"cardinality is {ours.cardinality}, locally {local.cardinality}"
    for element in ours.elements:
        tf.nest.assert_same_structure(element, local.spec, expand_composites=True)
    if how == "elements":
        _same(_counted(ours.elements), _counted(local.elements), "elements")
        return
    sizes, wanted = (collections.Counter(batch_size(e) for e in run.elements) for run in (ours, local))
    assert sizes == wanted, f"sizes of batches (size: how many) are {dict(sizes)}, locally {dict(wanted)}"
    mine = _counted(row for element in ours.elements for row in rows_of(element))
    if how == "rows":
        _same(mine, _counted(row for element in local.elements for row in rows_of(element)), "rows")
        return
    assert pool is not None, "subset needs the pool that the rows come from"
    strangers = mine - _counted(pool.elements)
    assert not strangers, (
        f"{sum(strangers.values())} rows are not of the dataset or came too often: {_shown(strangers)}"
    )


def _counted(elements: Any) -> collections.Counter:
    return collections.Counter(fingerprint(element) for element in elements)


def _same(ours: collections.Counter, local: collections.Counter, what: str) -> None:
    lost, extra = local - ours, ours - local
    assert not lost and not extra, (
        f"{sum(ours.values())} {what} came, locally {sum(local.values())}; {sum(lost.values())} were lost, such as"
        f" {_shown(lost)}; {sum(extra.values())} came that should not, such as {_shown(extra)}"
    )


def _shown(counter: collections.Counter) -> str:
    """A few fingerprints, readable."""
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
