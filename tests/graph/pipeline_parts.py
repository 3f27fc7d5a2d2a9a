"""The form of a typical pipeline, and the files and steps that several of them have."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

D = tf.data.Dataset
Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Case:
    """One pipeline. `streams` is the exact number of streams, or 0 for more than one. `how` says what must be equal."""

    build: Callable[[pathlib.Path], tf.data.Dataset]
    streams: int = 0
    kind: str = ""
    strategy: str = "EXACT"
    how: str = "elements"
    repeat: int = 1
    # The number of elements to take from an endless dataset.
    take: int = 0
    # Reading the streams in turn gives the local order.
    ordered: bool = False
    mode: str = "EXACTLY_ONCE"


def lines(work: pathlib.Path, files: int = 6, rows: int = 7) -> list[str]:
    """Writes text files of different lengths, and returns their names."""
    work.mkdir(parents=True, exist_ok=True)
    names = []
    for f in range(files):
        path = work / f"part-{f}.txt"
        path.write_text("".join(f"{f * 100 + r}\n" for r in range(rows + f)))
        names.append(str(path))
    return names


def records(work: pathlib.Path, files: int = 6, rows: int = 7) -> list[str]:
    """Writes TFRecord files of numbers, and returns their names."""
    work.mkdir(parents=True, exist_ok=True)
    names = []
    for f in range(files):
        path = str(work / f"part-{f}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for r in range(rows + f):
                writer.write(str(f * 100 + r).encode())
        names.append(path)
    return names


def fixed(work: pathlib.Path, files: int = 4, rows: int = 6) -> list[str]:
    """Writes files of records of four bytes, and returns their names."""
    work.mkdir(parents=True, exist_ok=True)
    names = []
    for f in range(files):
        path = work / f"part-{f}.bin"
        path.write_bytes(np.arange(f * 100, f * 100 + rows + f, dtype="<i4").tobytes())
        names.append(str(path))
    return names


def number(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_number(text, tf.int64)


def expensive(x: tf.Tensor) -> tf.Tensor:
    """Work that the plan counts as expensive. Returns x."""
    square = tf.linalg.matmul(tf.fill([2, 2], tf.cast(x, tf.float32)), tf.eye(2))
    return tf.cast(square[0, 0], tf.int64)


def ragged_row(x: tf.Tensor) -> tf.Tensor:
    return tf.fill([x % 5 + 1], x)


def list_files(w: pathlib.Path) -> tf.data.Dataset:
    lines(w)
    return D.list_files(str(w / "*.txt"))


def bucketed(w: pathlib.Path) -> tf.data.Dataset:
    return D.range(40).map(ragged_row).bucket_by_sequence_length(lambda x: tf.shape(x)[0], [2, 4], [3, 3, 3])


def options(**fields) -> tf.data.Options:
    o = tf.data.Options()
    for name, value in fields.items():
        setattr(o, name, value)
    return o


def saved(work: pathlib.Path) -> tf.data.Dataset:
    """Saves numbers in several shards and loads them again."""
    D.range(23).save(str(work / "saved"), shard_func=lambda x: x % 3)
    return D.load(str(work / "saved"))


def compressed(work: pathlib.Path, files: int = 4) -> list[str]:
    """Writes compressed TFRecord files, and returns their names. The first file is empty."""
    names = []
    for f in range(files):
        names.append(str(work / f"part-{f}.zlib"))
        with tf.io.TFRecordWriter(names[-1], "ZLIB") as writer:
            for r in range(f * 2):
                writer.write(str(f * 100 + r).encode())
    return names


def table() -> tf.lookup.StaticHashTable:
    keys = tf.constant(range(20), tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 3), -1)
