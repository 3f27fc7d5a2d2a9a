"""`pecan.cache` and `pecan.cache_candidate`: the steps whose elements workers may store."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable

from pecan._src import checks, errors

if typing.TYPE_CHECKING:
    import tensorflow as tf

# The service finds the steps by these names (service/graph/marks.go): _MARK, then _UNCHANGING or nothing. A candidate
# also has one of the others, and the user's name.
_MARK, _UNCHANGING = "pecan_cache", "_unchanging"
_CANDIDATE, _FROZEN = "_candidate_", "_frozen_"
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def cache(*, files_never_change: bool = False) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Caches the elements of the steps before it: the first epoch writes them to files, later epochs read them.

    The dataset returns the same elements with and without this step, with one exception. As in `tf.data`'s `cache`,
    random steps before it repeat the values of the first epoch. Put random steps that must differ by epoch after it.

    Workers need a cache directory (`pecan-worker --cache-dir`; the private cluster of a trainer has one), and
    `distribute()` must follow this step, without `cache="off"`. Otherwise the step passes elements on unchanged.
    `explain` and the reasons in the plan of a job (`pecanctl status`) say if the step has no effect, and why.

    Workers notice changed files if the files' names are part of the pipeline, as those of `list_files` are. If a step
    before this one computes the names of files that it opens, nothing is cached without `files_never_change=True`.

    Args:
        files_never_change: Files that steps before this one open never change, so their elements may be cached although
            nobody would notice a change. It matters only if names of files are computed.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Raises:
        PecanError: If an argument is invalid (also a `TypeError`).

    Example:
        >>> dataset = files.interleave(tf.data.TFRecordDataset).map(decode).apply(pecan.cache())
        >>> dataset = dataset.map(augment).batch(64).apply(pecan.distribute())
    """
    return _marked(_promised(files_never_change))


def cache_candidate(
    name: str, freeze_randomness: bool = False, *, files_never_change: bool = False
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Marks a place where the elements of the steps before it may be cached.

    A dataset may have any number of marks, anywhere. A mark changes no element, here and on workers, unless
    `freeze_randomness` is True. The service chooses among at most 12 marks that can be used. `explain` lists all marks,
    and says why one of them is not used.

    The service measures what the steps cost and how fast the cache directory is. It stores the elements of one
    candidate, or of none, so that the job is cheapest over the epochs that it expects. A dataset with `pecan.cache()`
    stores there.

    A cache repeats what was random in the epoch that wrote it. Therefore a candidate after a step that draws random
    values can be used only with `freeze_randomness=True`. The same holds after a `shuffle` that Pecan can neither
    move after the candidate nor replace by a random order of parts of the source.

    Args:
        name: Name of the place: 1 to 64 letters (a-z, A-Z), digits or underscores.
        freeze_randomness: Random steps before the mark repeat the values and the order of the first epoch, whether
            anything is cached or not. `order="auto"` then moves no step past the mark.
        files_never_change: Files that steps before the mark open never change. If such a step computes the names of
            files, the candidate can be used only with this option, because nobody would notice a changed file.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Raises:
        PecanError: If an argument is invalid (also a `ValueError` or a `TypeError`).

    Example:
        >>> dataset = files.interleave(tf.data.TFRecordDataset).apply(pecan.cache_candidate("read"))
        >>> dataset = dataset.map(decode).apply(pecan.cache_candidate("decoded")).map(augment).batch(64)
        >>> dataset = dataset.apply(pecan.distribute())
        >>> pecan.explain(dataset).cache.candidates
    """
    if not isinstance(name, str):
        raise errors.InvalidTypeError(
            f"`name` must be a string, got {name!r} of type {type(name).__name__}: write "
            'dataset.apply(pecan.cache_candidate("decoded"))'
        )
    if not _NAME.fullmatch(name):
        raise errors.InvalidArgumentError(
            f"`name` must be 1 to 64 letters (a-z, A-Z), digits or underscores, got {name!r}"
        )
    kind = _FROZEN if checks.flag("freeze_randomness", freeze_randomness) else _CANDIDATE
    return _marked(_promised(files_never_change) + kind + name)


def _promised(files_never_change: bool) -> str:
    """Returns how the name of a mark begins."""
    return _MARK + (_UNCHANGING if checks.flag("files_never_change", files_never_change) else "")


def _marked(mark: str) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.take(-1, name=mark)

    return apply
