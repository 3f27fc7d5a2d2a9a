"""The step whose elements a service keeps."""

from __future__ import annotations

import typing
from collections.abc import Callable

if typing.TYPE_CHECKING:
    import tensorflow as tf

# Workers find the step by this name (service/graph.CacheMark).
_MARK = "pecan_cache"


def cache() -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Marks the place up to which workers keep what they computed: the first epoch writes it, later ones read it.

    What comes out of the dataset is the same with and without it, but for one thing, as with `tf.data`'s own `cache`:
    random steps below it repeat in every epoch what they gave in the first one. Put those that shall not above it.

    It needs workers with a directory for caches (`pecan-worker --cache-dir`; the private cluster of a trainer has one)
    and `distribute()` somewhere behind it. Without either it passes elements on unchanged. The reasons in the plan of a
    job (`pecanctl status`) say when it does nothing, and why.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Example:
        >>> dataset = files.interleave(tf.data.TFRecordDataset).map(decode).apply(pecan.cache())
        >>> dataset = dataset.map(augment).batch(64).apply(pecan.distribute())
    """

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.take(-1, name=_MARK)

    return apply
