"""`pecan.cache`: the step whose elements workers store."""

from __future__ import annotations

import typing
from collections.abc import Callable

if typing.TYPE_CHECKING:
    import tensorflow as tf

# Workers find the step by this name (service/graph/marks.go).
_MARK = "pecan_cache"


def cache() -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Caches the elements of the steps before it: the first epoch writes them to files, later epochs read them.

    The dataset returns the same elements with and without this step, with one exception, as in `tf.data`'s `cache`:
    random steps before it repeat the values of the first epoch. Put random steps that must differ by epoch after it.

    Workers need a cache directory (`pecan-worker --cache-dir`; the private cluster of a trainer has one), and
    `distribute()` must follow this step. Otherwise the step passes elements on unchanged. The reasons in the plan of a
    job (`pecanctl status`) say if the step has no effect, and why.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Example:
        >>> dataset = files.interleave(tf.data.TFRecordDataset).map(decode).apply(pecan.cache())
        >>> dataset = dataset.map(augment).batch(64).apply(pecan.distribute())
    """

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.take(-1, name=_MARK)

    return apply
