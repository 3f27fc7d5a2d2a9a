"""Typical pipelines, each with how much of its result local execution promises (see oracle)."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import oracle
import tensorflow as tf

if TYPE_CHECKING:
    from conftest import Files

AUTOTUNE = tf.data.AUTOTUNE
Dataset = tf.data.Dataset


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A pipeline: how to build it, how to compare it, and the pool of its rows if `how` is `subset`."""

    build: Callable[[Files], Dataset]
    how: oracle.How = "elements"
    pool: Callable[[Files], Dataset] | None = None
    # The number of elements to read from an endless pipeline.
    limit: int | None = None


def numbers(n: int = 103) -> Dataset:
    return Dataset.range(n)


def described(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"id": x, "square": x * x, "text": tf.strings.as_string(x), "vector": tf.cast(tf.fill([3], x), tf.float32)}


def odd(x: tf.Tensor) -> tf.Tensor:
    return x % 2 == 1


def uneven(x: tf.Tensor) -> tf.Tensor:
    """A row of 1 to 7 numbers, 1, 2 and so on. It has no zeros, because padding consists of zeros."""
    return tf.range(1, 2 + x % 7)


def number_in(record: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_number(tf.strings.split(record, " ")[1], tf.int64)


def records(name: tf.Tensor) -> Dataset:
    return tf.data.TFRecordDataset(name)


def lines(name: tf.Tensor) -> Dataset:
    return tf.data.TextLineDataset(name).skip(1)


def deterministic(dataset: Dataset) -> Dataset:
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def with_table(files: Files) -> Dataset:
    names = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.range(10, dtype=tf.int64), tf.strings.as_string(tf.range(10))), "none"
    )
    return numbers().map(lambda x: (x, names.lookup(x % 13)))


def with_variable(files: Files) -> Dataset:
    offset = tf.Variable(40, dtype=tf.int64)
    return numbers().map(lambda x: x + offset)


def failing_sometimes(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_none_equal(x % 10, tf.constant(3, tf.int64))]):
        return tf.identity(x)


PIPELINES: dict[str, Pipeline] = {
    # Sources and element-wise steps.
    "range": Pipeline(lambda f: numbers()),
    "range, parallel map to a dict": Pipeline(lambda f: numbers().map(described, num_parallel_calls=AUTOTUNE)),
    "filter": Pipeline(lambda f: numbers().filter(odd)),
    "filter, map, filter": Pipeline(lambda f: numbers().filter(odd).map(lambda x: x * 3).filter(lambda x: x % 5 != 0)),
    "slices of a nested structure": Pipeline(
        lambda f: Dataset.from_tensor_slices(
            ({"a": tf.range(50), "b": tf.reshape(tf.range(150), [50, 3])}, tf.range(50) * 2)
        )
    ),
    "one tensor": Pipeline(lambda f: Dataset.from_tensors(tf.reshape(tf.range(12), [3, 4]))),
    "empty": Pipeline(lambda f: numbers(0).map(described)),
    "table lookup": Pipeline(with_table),
    "captured variable": Pipeline(with_variable),
    "ignore_errors": Pipeline(lambda f: numbers().map(failing_sometimes).ignore_errors()),
    "strings": Pipeline(
        lambda f: numbers().map(lambda x: tf.strings.reduce_join(tf.repeat(tf.constant(["é"]), x % 40)))
    ),
    "ragged component": Pipeline(
        lambda f: numbers().map(lambda x: tf.RaggedTensor.from_row_lengths(tf.range(x % 5), [x % 5, 0]))
    ),
    "sparse component": Pipeline(
        lambda f: numbers().map(lambda x: (x, tf.sparse.from_dense(tf.one_hot(x % 6, 6) * tf.cast(x, tf.float32))))
    ),
    # Batches.
    "batch with a partial batch": Pipeline(lambda f: numbers().batch(8)),
    "batch, drop_remainder": Pipeline(lambda f: numbers().batch(8, drop_remainder=True)),
    "map, parallel batch, map, prefetch": Pipeline(
        lambda f: (
            numbers().map(described).batch(16, num_parallel_calls=2).map(lambda d: d["square"] + d["id"]).prefetch(2)
        )
    ),
    "batch larger than the dataset": Pipeline(lambda f: numbers(5).batch(64)),
    "batch of batches": Pipeline(lambda f: numbers().batch(4).batch(5)),
    "padded batch": Pipeline(lambda f: numbers().map(uneven).padded_batch(8)),
    "ragged batch": Pipeline(lambda f: numbers().map(uneven).ragged_batch(8)),
    "rebatch": Pipeline(lambda f: numbers().batch(10).rebatch(7)),
    "unbatch": Pipeline(lambda f: numbers().batch(10).map(lambda x: x + 1).unbatch()),
    "windows": Pipeline(lambda f: numbers().window(6, shift=6).flat_map(lambda w: w.batch(6))),
    "overlapping windows": Pipeline(
        lambda f: numbers().window(6, shift=2, drop_remainder=True).flat_map(lambda w: w.batch(6))
    ),
    "filter, batch": Pipeline(lambda f: numbers().filter(odd).batch(8), "rows"),
    "filter, batch, map": Pipeline(
        lambda f: numbers().filter(odd).map(described).batch(8).map(lambda d: {**d, "more": d["id"] + 1}), "rows"
    ),
    "filter, batch, drop_remainder, map": Pipeline(
        lambda f: numbers().filter(odd).batch(8, drop_remainder=True).map(lambda x: x + 0),
        "subset",
        lambda f: numbers().filter(odd),
    ),
    "filter, padded batch": Pipeline(lambda f: numbers().filter(odd).map(uneven).padded_batch(8), "rows"),
    "flat_map, batch": Pipeline(
        lambda f: numbers(20).flat_map(lambda x: Dataset.range(x).map(lambda y: x * 100 + y)).batch(9), "rows"
    ),
    "bucket by sequence length": Pipeline(
        lambda f: numbers().map(uneven).bucket_by_sequence_length(tf.size, [3, 5], [4, 4, 4]), "rows"
    ),
    "group by window": Pipeline(
        lambda f: numbers().group_by_window(
            key_func=lambda x: x % 3, reduce_func=lambda _, w: w.batch(5), window_size=5
        )
    ),
    # Positions.
    "take": Pipeline(lambda f: numbers().take(37)),
    "skip": Pipeline(lambda f: numbers().skip(37)),
    "skip, take, batch": Pipeline(lambda f: numbers().skip(10).take(50).batch(8)),
    "map, take, map": Pipeline(lambda f: numbers().map(described).take(31).map(lambda d: d["vector"])),
    "filter, take": Pipeline(lambda f: numbers().filter(odd).take(20)),
    "filter, skip, batch": Pipeline(lambda f: numbers().filter(odd).skip(7).batch(6), "rows"),
    "shard": Pipeline(lambda f: numbers().shard(3, 1)),
    "batch, take": Pipeline(lambda f: numbers().batch(8).take(5)),
    "take while": Pipeline(lambda f: numbers().take_while(lambda x: x < 60)),
    "scan": Pipeline(lambda f: numbers().scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x))),
    "unique": Pipeline(lambda f: numbers().map(lambda x: x % 17).unique()),
    "enumerate": Pipeline(lambda f: numbers().map(lambda x: x * 7).enumerate()),
    "filter, enumerate, batch": Pipeline(lambda f: numbers().filter(odd).enumerate(start=5).batch(4), "rows"),
    "shuffle, take": Pipeline(lambda f: numbers().shuffle(30).take(20).batch(1), "subset", lambda f: numbers()),
    # Several inputs.
    "zip": Pipeline(lambda f: Dataset.zip((numbers(), numbers(90).map(lambda x: x * x)))),
    "zip, batch": Pipeline(lambda f: Dataset.zip({"a": numbers(), "b": numbers().map(described)}).batch(8)),
    "zip of filters": Pipeline(lambda f: Dataset.zip((numbers().filter(odd), numbers().filter(lambda x: x % 3 == 0)))),
    "zip with a skip": Pipeline(lambda f: Dataset.zip((numbers(), numbers().skip(1)))),
    "zip of equally seeded shuffles": Pipeline(
        lambda f: Dataset.zip((numbers().shuffle(20, seed=4), numbers().map(lambda x: -x).shuffle(20, seed=4)))
    ),
    "concatenate": Pipeline(lambda f: numbers(30).concatenate(Dataset.range(100, 145))),
    "concatenate, batch": Pipeline(lambda f: numbers(30).concatenate(Dataset.range(100, 145)).batch(8), "rows"),
    "concatenate of different lengths, map, take": Pipeline(
        lambda f: numbers(7).concatenate(Dataset.range(50, 80)).map(lambda x: x * 2).take(20)
    ),
    "sample from datasets": Pipeline(
        lambda f: Dataset.sample_from_datasets(
            [numbers(40), Dataset.range(100, 130)], weights=[0.7, 0.3], seed=5, stop_on_empty_dataset=False
        )
    ),
    "choose from datasets": Pipeline(
        lambda f: Dataset.choose_from_datasets(
            [numbers(40), Dataset.range(100, 140)], Dataset.range(80).map(lambda x: x % 2), stop_on_empty_dataset=True
        )
    ),
    # Order.
    "shuffle": Pipeline(lambda f: numbers().shuffle(25)),
    "seeded shuffle, batch": Pipeline(lambda f: numbers().shuffle(103, seed=3).batch(8), "rows"),
    "shuffle, map, batch, drop_remainder": Pipeline(
        lambda f: numbers().shuffle(50).map(lambda x: x + 0).batch(10, drop_remainder=True),
        "subset",
        lambda f: numbers(),
    ),
    "deterministic option": Pipeline(lambda f: deterministic(numbers().map(described, num_parallel_calls=4).batch(8))),
    # Repeats.
    "repeat": Pipeline(lambda f: numbers(40).repeat(3)),
    "repeat forever": Pipeline(lambda f: numbers(40).map(lambda x: x + 1).repeat(), limit=120),
    "shuffle, repeat forever": Pipeline(lambda f: numbers(40).shuffle(40).repeat(), limit=80),
    "repeat, batch": Pipeline(lambda f: numbers(10).repeat(4).batch(8), "rows"),
    "shuffle, repeat, batch": Pipeline(lambda f: numbers(30).shuffle(30, seed=1).repeat(2).batch(8), "rows"),
    "batch, repeat": Pipeline(lambda f: numbers(30).batch(8).repeat(2)),
    "one element repeated": Pipeline(lambda f: Dataset.from_tensors(tf.range(5)).repeat(50)),
    "repeat in a flat_map": Pipeline(lambda f: numbers(12).flat_map(lambda x: Dataset.from_tensors(x).repeat(x % 4))),
    # Files.
    "one record file": Pipeline(lambda f: tf.data.TFRecordDataset(f.one_record_file).map(number_in)),
    "one record file, batch": Pipeline(
        lambda f: tf.data.TFRecordDataset(f.one_record_file).map(number_in).batch(8), "rows"
    ),
    "record files": Pipeline(lambda f: tf.data.TFRecordDataset(f.records).map(number_in)),
    "record files read in parallel": Pipeline(
        lambda f: tf.data.TFRecordDataset(f.records, num_parallel_reads=3).map(number_in)
    ),
    "record files, parse, shuffle, batch": Pipeline(
        lambda f: tf.data.TFRecordDataset(f.records).map(number_in).shuffle(20).batch(8).prefetch(AUTOTUNE), "rows"
    ),
    "record files, take": Pipeline(lambda f: tf.data.TFRecordDataset(f.records).take(25)),
    "listed files, interleave, shuffle, batch": Pipeline(
        lambda f: Dataset.list_files(f.pattern).interleave(records, cycle_length=3).map(number_in).shuffle(16).batch(8),
        "rows",
    ),
    "listed files in order": Pipeline(lambda f: Dataset.list_files(f.pattern, shuffle=False).flat_map(records)),
    "interleave over files, parallel": Pipeline(
        lambda f: Dataset.from_tensor_slices(f.records).interleave(
            records, cycle_length=4, block_length=2, num_parallel_calls=AUTOTUNE
        )
    ),
    "files shuffled with a seed, interleave": Pipeline(
        lambda f: Dataset.from_tensor_slices(f.records).shuffle(6, seed=2).interleave(records, cycle_length=2)
    ),
    "files repeated": Pipeline(
        lambda f: Dataset.from_tensor_slices(f.records).repeat(2).flat_map(records).map(number_in)
    ),
    "files with their names": Pipeline(
        lambda f: Dataset.from_tensor_slices(f.records).flat_map(
            lambda name: Dataset.zip((tf.data.TFRecordDataset(name), Dataset.from_tensors(name).repeat()))
        )
    ),
    "a file of lines without its header": Pipeline(lambda f: tf.data.TextLineDataset(f.lines[4]).skip(1)),
    "files of lines without their headers": Pipeline(lambda f: Dataset.from_tensor_slices(f.lines).flat_map(lines)),
    "lines, decoded, batch": Pipeline(
        lambda f: (
            Dataset.from_tensor_slices(f.lines)
            .interleave(lines)
            .map(lambda line: tf.io.decode_csv(line, [tf.constant(0, tf.int64)] * 2))
            .batch(8)
        ),
        "rows",
    ),
    "fixed-length records": Pipeline(lambda f: tf.data.FixedLengthRecordDataset(f.fixed, 8)),
    "zip of two sets of files": Pipeline(
        lambda f: Dataset.zip((tf.data.TFRecordDataset(f.records), tf.data.FixedLengthRecordDataset(f.fixed, 8)))
    ),
    # Caches and asserted cardinalities.
    "memory cache, shuffle": Pipeline(lambda f: numbers().map(described).cache().shuffle(30)),
    "file cache": Pipeline(lambda f: numbers().map(described).cache(str(f.root / f"cache-{uuid.uuid4().hex}"))),
    "file cache of records, batch": Pipeline(
        lambda f: (
            tf.data.TFRecordDataset(f.records).map(number_in).cache(str(f.root / f"cache-{uuid.uuid4().hex}")).batch(8)
        ),
        "rows",
    ),
    "assert_cardinality": Pipeline(
        lambda f: numbers().filter(odd).apply(tf.data.experimental.assert_cardinality(51)).map(lambda x: x * 2)
    ),
    "interleave of ranges": Pipeline(
        lambda f: numbers(15).interleave(lambda x: Dataset.range(x).map(lambda y: x * 100 + y), cycle_length=4)
    ),
    "parallel interleave, deterministic": Pipeline(
        lambda f: numbers(15).interleave(
            lambda x: Dataset.range(x).map(lambda y: x * 100 + y),
            cycle_length=4,
            num_parallel_calls=2,
            deterministic=True,
        )
    ),
}
