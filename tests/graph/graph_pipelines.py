"""Typical pipelines for the oracle, with the expected plan of each."""

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


CASES: dict[str, Case] = {
    # Sources.
    "range": Case(lambda w: D.range(100), 16, "ELEMENTS", ordered=True),
    "range_with_step": Case(lambda w: D.range(3, 200, 7), 0, "ELEMENTS", ordered=True),
    "range_down": Case(lambda w: D.range(200, 3, -7), 0, "ELEMENTS", ordered=True),
    "range_tiny": Case(lambda w: D.range(2), 2, "ELEMENTS"),
    "range_one": Case(lambda w: D.range(1), 1, "NONE"),
    "range_empty": Case(lambda w: D.range(0), 1, "NONE"),
    "range_of_int32": Case(lambda w: D.range(3, 100, 2, output_type=tf.int32).batch(4), 0, "BLOCKS", ordered=True),
    "range_too_long_to_list": Case(lambda w: D.range(7, 3_600_005, 3).batch(5000), 0, "BLOCKS", ordered=True),
    "range_too_long_to_list_down": Case(lambda w: D.range(1_200_005, -7, -1).batch(7000).map(lambda b: b[:3]), 0, "BLOCKS", ordered=True),
    "enumerate_then_batch": Case(lambda w: D.range(100, 160).enumerate().batch(7), 0, "BLOCKS", ordered=True),
    "slices": Case(lambda w: D.from_tensor_slices(np.arange(50, dtype=np.float32)), 0, "ELEMENTS", ordered=True),
    "slices_of_a_dict": Case(
        lambda w: D.from_tensor_slices({"a": np.arange(30), "b": np.arange(60).reshape(30, 2)}), 0, "ELEMENTS"
    ),
    "slices_of_strings": Case(
        lambda w: D.from_tensor_slices([f"{'s' * i}{i}" for i in range(40)]), 0, "ELEMENTS", ordered=True
    ),
    "slices_of_one_value": Case(lambda w: D.from_tensor_slices(np.zeros((40, 3), np.int32)).batch(4), 0, "BLOCKS"),
    "slices_of_bools": Case(lambda w: D.from_tensor_slices([True, False, True, True] * 8), 0, "ELEMENTS"),
    "one_tensor": Case(lambda w: D.from_tensors([1, 2, 3]), 1, "NONE"),
    "named_tuples": Case(
        lambda w: D.from_tensor_slices(Point(np.arange(20), {"z": np.arange(20.0)})).batch(3), 0, "BLOCKS", ordered=True
    ),
    # Files.
    "list_files": Case(list_files, 0, "ELEMENTS"),
    "list_files_of_lines": Case(lambda w: list_files(w).interleave(tf.data.TextLineDataset), 6, "FILES"),
    "lines_of_many_files": Case(lambda w: tf.data.TextLineDataset(lines(w)), 6, "FILES"),
    "lines_of_one_file": Case(lambda w: tf.data.TextLineDataset(lines(w, 1)), 1, "NONE"),
    "lines_of_one_file_decoded": Case(
        lambda w: tf.data.TextLineDataset(lines(w, 1, 30)).map(number).map(expensive), 4, "ELEMENTS", ordered=True
    ),
    "lines_of_one_file_decoded_in_batches": Case(
        lambda w: tf.data.TextLineDataset(lines(w, 1, 30)).map(number).map(expensive).batch(4), 4, "BLOCKS", ordered=True
    ),
    "records_of_many_files": Case(lambda w: tf.data.TFRecordDataset(records(w)).map(number), 6, "FILES"),
    "records_read_in_parallel": Case(
        lambda w: tf.data.TFRecordDataset(records(w), num_parallel_reads=3).map(number), 6, "FILES"
    ),
    "records_of_fixed_length": Case(lambda w: tf.data.FixedLengthRecordDataset(fixed(w), 4), 4, "FILES"),
    "interleaved_in_parallel": Case(
        lambda w: D.from_tensor_slices(records(w)).interleave(
            lambda f: tf.data.TFRecordDataset(f).map(number), cycle_length=3, num_parallel_calls=2, deterministic=False
        ),
        6,
        "FILES",
    ),
    "flat_map_over_files": Case(
        lambda w: D.from_tensor_slices(lines(w)).flat_map(lambda f: tf.data.TextLineDataset(f).skip(1)), 6, "FILES"
    ),
    "the_usual_training_chain": Case(
        lambda w: (
            list_files(w)
            .interleave(tf.data.TextLineDataset, num_parallel_calls=2)
            .shuffle(20)
            .map(number, num_parallel_calls=2)
            .batch(4)
            .prefetch(tf.data.AUTOTUNE)
        ),
        6,
        "FILES",
        "REMAINDER",
        "rows",
    ),
    # Maps and filters.
    "map": Case(lambda w: D.range(60).map(lambda x: x * 2, num_parallel_calls=4), 0, "ELEMENTS", ordered=True),
    "filter": Case(lambda w: D.range(100).filter(lambda x: x % 3 == 0).map(lambda x: x + 1), 0, "ELEMENTS"),
    "flat_map": Case(lambda w: D.range(20).flat_map(lambda x: D.range(x)), 0, "ELEMENTS"),
    "filter_then_batch": Case(
        lambda w: D.range(100).filter(lambda x: x % 3 == 0).batch(4), 0, "ELEMENTS", "REMAINDER", "rows"
    ),
    "filter_then_batch_drop": Case(
        lambda w: D.range(100).filter(lambda x: x % 3 == 0).batch(4, drop_remainder=True).prefetch(1),
        0,
        "ELEMENTS",
        "REMAINDER",
        "count",
    ),
    "filter_batch_map": Case(
        lambda w: D.range(100).filter(lambda x: x % 3 == 0).batch(4).map(lambda b: b * 10),
        0,
        "ELEMENTS",
        "CLOSING",
        "rows",
    ),
    "filter_batch_drop_map": Case(
        lambda w: (
            D.range(100)
            .filter(lambda x: x % 3 == 0)
            .batch(4, drop_remainder=True)
            .map(lambda b: tf.reshape(b, [4]) * 10)
        ),
        0,
        "ELEMENTS",
        "CLOSING",
        "count",
    ),
    "files_batch_map_filter": Case(
        lambda w: tf.data.TextLineDataset(lines(w)).batch(5).map(number).filter(lambda b: tf.shape(b)[0] > 0),
        6,
        "FILES",
        "CLOSING",
        "rows",
    ),
    "files_batch_cache_map": Case(
        lambda w: tf.data.TextLineDataset(lines(w)).batch(5).cache().map(number).shuffle(3), 6, "FILES", "CLOSING", "rows"),
    "files_batch_file_cache": Case(
        lambda w: tf.data.TextLineDataset(lines(w)).map(number).batch(5, drop_remainder=True).cache(str(w / "cache")), 6, "FILES", "CLOSING", "count"),
    "files_batch_of_pairs_map": Case(
        lambda w: tf.data.TextLineDataset(lines(w)).map(lambda x: (x, number(x))).batch(5).map(lambda a, b: {"text": a, "n": b * 2}), 6, "FILES", "CLOSING", "rows"),
    "unbatch": Case(lambda w: D.range(60).batch(4).map(lambda b: b + 1).unbatch(), 0, "BLOCKS"),
    "unbatch_of_filtered_batches": Case(
        lambda w: D.range(60).filter(lambda x: x % 7 > 0).batch(4).unbatch(), 0, "ELEMENTS"
    ),
    "unbatch_of_rows_of_any_size": Case(lambda w: D.range(40).map(ragged_row).batch(1).map(lambda b: b + 1).unbatch(), 0, "ELEMENTS"),
    "unbatch_in_a_function": Case(
        lambda w: D.range(12).flat_map(lambda x: D.range(x, x + 3).map(ragged_row).padded_batch(2).unbatch()), 0, "ELEMENTS"),
    "unbatch_of_pairs_of_any_size": Case(
        lambda w: D.range(40).map(lambda x: {"a": x, "b": ragged_row(x), "c": tf.strings.as_string(ragged_row(x))}).padded_batch(4).unbatch(),
        0, "BLOCKS"),
    "filter_batch_of_empty_rows": Case(
        lambda w: D.range(60).filter(lambda x: x % 7 > 0).map(lambda x: (x, tf.zeros([0, 3]))).batch(4).map(lambda x, z: (x + 1, z)),
        0, "ELEMENTS", "CLOSING", "rows"),
    # Batches.
    "batch": Case(lambda w: D.range(103).batch(5), 0, "BLOCKS", ordered=True),
    "batch_drop": Case(lambda w: D.range(103).batch(5, drop_remainder=True), 0, "BLOCKS", ordered=True),
    "batch_of_batches": Case(lambda w: D.range(105).batch(5).batch(3), 0, "BLOCKS"),
    "parallel_batch": Case(lambda w: D.range(103).batch(5, num_parallel_calls=2), 0, "BLOCKS", ordered=True),
    "map_and_batch_of_pairs": Case(
        lambda w: D.range(50).map(lambda x: (x, tf.cast(x, tf.float32))).batch(6), 0, "BLOCKS", ordered=True
    ),
    "padded_batch": Case(lambda w: D.range(50).map(ragged_row).padded_batch(4), 0, "BLOCKS", ordered=True),
    "padded_batch_after_filter": Case(
        lambda w: D.range(50).filter(lambda x: x % 2 == 0).map(ragged_row).padded_batch(4, padded_shapes=[5]),
        0,
        "ELEMENTS",
        "REMAINDER",
        "rows",
    ),
    "ragged_batch": Case(lambda w: D.range(50).map(ragged_row).ragged_batch(4), 0, "BLOCKS", ordered=True),
    "batch_of_one_component_of_any_shape": Case(
        lambda w: D.range(50).map(ragged_row).batch(1), 0, "ELEMENTS", ordered=True
    ),
    "shuffle_then_batch": Case(lambda w: D.range(103).shuffle(30).batch(5), 0, "BLOCKS", how="rows"),
    "shuffle_of_records_then_batch": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).shuffle(10, seed=3).batch(4), 6, "FILES", "REMAINDER", "rows"
    ),
    "rebatch": Case(lambda w: D.range(80).batch(4).rebatch(3), 0, "BLOCKS"),
    "rebatch_after_filter": Case(
        lambda w: D.range(50).filter(lambda x: x % 5 > 0).batch(4).rebatch(6), 0, "ELEMENTS", "REMAINDER", "rows"
    ),
    # Windows.
    "windows": Case(lambda w: D.range(50).window(5, drop_remainder=True).flat_map(lambda x: x.batch(5)), 0, "BLOCKS"),
    "overlapping_windows": Case(
        lambda w: D.range(50).window(5, shift=1, drop_remainder=True).flat_map(lambda x: x.batch(5)), 0, "ELEMENTS"
    ),
    # Positions.
    "take": Case(lambda w: D.range(100).take(37), 0, "ELEMENTS", ordered=True),
    "skip": Case(lambda w: D.range(100).skip(37).batch(4), 0, "BLOCKS", ordered=True),
    "take_after_a_map": Case(lambda w: D.range(100).map(expensive).take(37).batch(4), 0, "BLOCKS", ordered=True),
    "skip_after_shuffle": Case(
        lambda w: D.range(100).shuffle(10, seed=1).skip(5).map(expensive), 0, "ELEMENTS", how="count"
    ),
    "shard": Case(lambda w: D.range(100).shard(3, 1).batch(4), 0, "BLOCKS", ordered=True),
    "take_of_records": Case(lambda w: tf.data.TFRecordDataset(records(w)).take(20).map(number), 1, "NONE"),
    "take_of_records_decoded": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).take(20).map(number).map(expensive), 4, "ELEMENTS", ordered=True
    ),
    "take_while": Case(lambda w: D.range(100).take_while(lambda x: x < 40).map(expensive), 0, "ELEMENTS"),
    "scan": Case(
        lambda w: D.range(40).scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x)).map(expensive), 0, "ELEMENTS"
    ),
    "unique": Case(lambda w: D.range(40).map(lambda x: x % 7).unique().map(expensive), 0, "ELEMENTS"),
    "enumerate": Case(
        lambda w: D.range(100, 160).map(lambda x: x * 2).enumerate().filter(lambda i, x: i % 2 == 0), 0, "ELEMENTS"
    ),
    "enumerate_records": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).enumerate().map(lambda i, x: (i, expensive(number(x)))), 4, "ELEMENTS"
    ),
    "group_by_window": Case(
        lambda w: D.range(60).group_by_window(lambda x: x % 3, lambda k, x: x.batch(4), window_size=4), 1, "NONE"
    ),
    "group_by_window_then_work": Case(
        lambda w: (
            D.range(60).group_by_window(lambda x: x % 3, lambda k, x: x.batch(4), window_size=4).unbatch().map(expensive)
        ),
        8,
        "ELEMENTS",
    ),
    "bucket_by_sequence_length": Case(bucketed, 1, "NONE"),
    # Several inputs.
    "zip": Case(lambda w: D.zip((D.range(50), D.range(100, 140).map(lambda x: x * 2))), 0, "ELEMENTS", ordered=True),
    "zip_of_a_dataset_with_itself": Case(lambda w: (lambda d: D.zip((d, d.map(lambda x: x * 2))))(D.range(40).map(lambda x: x + 1)), 0, "ELEMENTS", ordered=True),
    "a_dataset_captured_by_a_function": Case(
        lambda w: (lambda inner: D.range(12).flat_map(lambda x: inner.map(lambda y: x * 10 + y)))(D.range(3)), 0, "ELEMENTS"),
    "zip_of_batches": Case(
        lambda w: D.zip((D.range(50).batch(4), D.range(10))).map(lambda a, b: a + b), 0, "BLOCKS", ordered=True
    ),
    "zip_of_equally_seeded_shuffles": Case(
        lambda w: D.zip((D.range(50).shuffle(20, seed=5), D.range(100, 150).shuffle(20, seed=5))), 0, "ELEMENTS"
    ),
    "zip_of_mapped_equally_seeded_shuffles": Case(
        lambda w: D.zip((D.range(50).shuffle(20, seed=5), D.range(50).map(lambda x: x * 10).shuffle(20, seed=5))),
        1,
        "NONE",
    ),
    "zip_of_record_files": Case(
        lambda w: D.zip((tf.data.TFRecordDataset(records(w)), tf.data.TextLineDataset(lines(w)))).map(
            lambda a, b: expensive(number(a) * 1000 + number(b))
        ),
        4,
        "ELEMENTS",
    ),
    "concatenate": Case(lambda w: D.range(30).concatenate(D.range(50, 75).map(lambda x: x * 2)), 0, "ELEMENTS"),
    "concatenate_then_batch": Case(
        lambda w: D.range(30).concatenate(D.range(50, 75)).batch(4), 0, "BLOCKS", ordered=True
    ),
    "concatenate_files_then_batch": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).concatenate(tf.data.TextLineDataset(lines(w))).batch(4),
        6,
        "FILES",
        "REMAINDER",
        "rows",
    ),
    "sample_from_datasets": Case(
        lambda w: D.sample_from_datasets(
            [D.range(20), D.range(100, 150)], [0.3, 0.7], seed=2, stop_on_empty_dataset=False
        ),
        0,
        "ELEMENTS",
    ),
    "sample_until_one_is_empty": Case(
        lambda w: D.sample_from_datasets(
            [D.range(20), D.range(100, 150)], [0.3, 0.7], seed=2, stop_on_empty_dataset=True
        ).map(expensive),
        0,
        "ELEMENTS",
    ),
    "choose_from_datasets": Case(
        lambda w: D.choose_from_datasets([D.range(10), D.range(50, 60)], D.range(2).repeat(10)).map(expensive),
        0,
        "ELEMENTS",
        ordered=True,
    ),
    # Repeats.
    "repeat": Case(lambda w: D.range(30).shuffle(10).repeat(3), 0, "ELEMENTS", repeat=3),
    "one_tensor_repeated": Case(lambda w: D.from_tensors(np.ones((2, 3))).repeat(90), 4, "ELEMENTS"),
    "one_tensor_for_ever": Case(lambda w: D.from_tensors(np.ones((2, 3))).repeat(), 4, "ELEMENTS", take=20),
    "repeat_then_batch_that_fits": Case(lambda w: D.range(32).repeat(2).batch(8), 0, "BLOCKS", repeat=2),
    "repeat_then_batch": Case(lambda w: D.range(30).repeat(2).batch(8), 0, "BLOCKS"),
    "repeat_files_then_batch": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).repeat(2).batch(8), 6, "FILES", "REMAINDER", "rows"
    ),
    "batch_then_repeat": Case(lambda w: D.range(30).batch(8).repeat(2), 0, "BLOCKS", repeat=2),
    "repeat_then_shuffle": Case(lambda w: D.range(30).repeat(2).shuffle(10), 0, "ELEMENTS"),
    "endless_repeat": Case(lambda w: D.range(30).map(lambda x: x + 1).repeat(), 0, "ELEMENTS", repeat=-1, take=60),
    "endless_repeat_of_batches": Case(
        lambda w: D.range(30).shuffle(9).batch(4).repeat(), 0, "BLOCKS", how="rows", repeat=-1, take=16
    ),
    "endless_repeat_then_batch": Case(lambda w: D.range(32).repeat().batch(8), 0, "BLOCKS", repeat=-1, take=8),
    "endless_repeat_of_files_then_batch": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).repeat().batch(8), 1, "NONE", take=20
    ),
    "take_of_an_endless_repeat": Case(lambda w: D.range(30).repeat().take(70).map(expensive), 0, "ELEMENTS", ordered=True),
    # Caches, options, asserted cardinalities.
    "cache_in_memory": Case(
        lambda w: D.range(50).map(lambda x: x * 2).cache().map(lambda x: x + 1), 0, "ELEMENTS", ordered=True
    ),
    "cache_in_a_file": Case(
        lambda w: D.range(50).map(lambda x: x * 2).cache(str(w / "cache")), 0, "ELEMENTS", ordered=True
    ),
    "cache_then_repeat": Case(lambda w: D.range(50).map(lambda x: x * 2).cache().shuffle(9).repeat(3).map(lambda x: x + 1), 0, "ELEMENTS"),
    "cache_then_endless_repeat": Case(lambda w: D.range(50).cache().repeat(), 0, "ELEMENTS", repeat=-1, take=100),
    "file_cache_then_repeat": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).cache(str(w / "cache")).repeat(3).batch(4), 6, "FILES", "REMAINDER", "rows"),
    "file_cache_then_endless_repeat": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).map(number).map(expensive).cache(str(w / "cache")).repeat(), 1, "NONE", take=120),
    "snapshot": Case(lambda w: D.range(50).snapshot(str(w / "snapshot")), 0, "ELEMENTS", mode="AT_LEAST_ONCE"),
    "assert_cardinality": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).apply(tf.data.experimental.assert_cardinality(57)), 6, "FILES"
    ),
    "assert_cardinality_then_batch": Case(
        lambda w: (
            tf.data.TFRecordDataset(records(w)).map(number).apply(tf.data.experimental.assert_cardinality(57)).batch(5)
        ),
        6,
        "FILES",
        "REMAINDER",
        "rows",
    ),
    "options": Case(
        lambda w: D.range(50).map(lambda x: x + 1, num_parallel_calls=2).with_options(options(deterministic=False)),
        0,
        "ELEMENTS",
    ),
    "ignore_errors": Case(
        lambda w: (
            D.range(40)
            .map(lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x % 4, tf.float32), "zero"))
            .ignore_errors()
        ),
        0,
        "ELEMENTS",
    ),
    "named_take": Case(lambda w: D.range(40).map(lambda x: x + 1).take(-1, name="mark"), 0, "ELEMENTS", ordered=True),
    "prefetch_everywhere": Case(
        lambda w: D.range(40).prefetch(2).map(lambda x: x + 1).prefetch(2).batch(3).prefetch(2),
        0,
        "BLOCKS",
        ordered=True,
    ),
    "random_values": Case(lambda w: D.range(40).map(lambda x: tf.random.uniform([2])), 0, "ELEMENTS", how="count"),
    "nested_shuffle": Case(
        lambda w: D.range(12).interleave(lambda x: D.range(x * 10, x * 10 + 5).shuffle(5)), 0, "ELEMENTS"
    ),
    "table_lookup": Case(lambda w: D.range(20).map(table().lookup), 0, "ELEMENTS"),
    "variable": Case(lambda w: D.range(20).map(lambda x, v=tf.Variable(5, dtype=tf.int64): x + v), 0, "ELEMENTS"),
    "sparse_elements": Case(lambda w: D.range(20).map(lambda x: tf.sparse.from_dense(tf.fill([3], x))), 0, "ELEMENTS"),
    "two_file_caches": Case(
        lambda w: D.range(40).map(expensive).cache(str(w / "a")).map(lambda x: x + 1).cache(str(w / "b")).batch(3), 0, "BLOCKS", ordered=True),
    "zip_of_batches_of_equally_seeded_shuffles": Case(
        lambda w: (lambda d: D.zip((d(), d())).map(lambda a, b: a - b))(lambda: D.range(40).shuffle(40, seed=3).batch(4)), 0, "BLOCKS"),
    "maps_and_filter_after_batch_over_filter": Case(
        lambda w: D.range(60).filter(lambda x: x % 5 > 0).batch(7).map(lambda b: b * 2).map(lambda b: b + 1).filter(lambda b: tf.size(b) > 1),
        0, "ELEMENTS", "CLOSING", "rows"),
    "padded_to_the_longest_after_filter_then_map": Case(
        lambda w: D.range(60).filter(lambda x: x % 5 > 0).map(ragged_row).padded_batch(4).map(lambda b: b + 1), 0, "BLOCKS", ordered=True),
    "assert_cardinality_then_zip": Case(
        lambda w: D.zip((tf.data.TextLineDataset(lines(w)).map(number).apply(tf.data.experimental.assert_cardinality(57)), D.range(100))), 1, "NONE"),
    "enumerate_of_batches": Case(
        lambda w: D.range(50).batch(4).enumerate().flat_map(lambda i, b: D.from_tensor_slices(b).map(lambda x: x + i * 1000)), 0, "BLOCKS"),
    "bucket_without_padding_drops": Case(
        lambda w: D.range(50).map(ragged_row).bucket_by_sequence_length(lambda x: tf.shape(x)[0], [3], [4, 4], drop_remainder=True), 1, "NONE"),
    "interleave_of_takes_then_batch": Case(
        lambda w: D.from_tensor_slices(lines(w)).interleave(
            lambda f: tf.data.TextLineDataset(f).map(number).skip(2).take(3), cycle_length=2).batch(4), 6, "FILES", "REMAINDER", "rows"),
    "flat_map_in_flat_map": Case(
        lambda w: D.range(9).flat_map(lambda x: D.range(x).flat_map(lambda y: D.range(y).map(lambda z: x * 100 + y * 10 + z))), 0, "ELEMENTS"),
    "windows_of_windows": Case(
        lambda w: D.range(50).window(10).flat_map(
            lambda a: a.window(3, shift=1, drop_remainder=True).flat_map(lambda b: b.batch(3))), 0, "BLOCKS"),
    "windows_with_gaps": Case(lambda w: D.range(50).window(3, shift=5).flat_map(lambda a: a.batch(3)), 0, "ELEMENTS"),
    "windows_over_a_filter": Case(lambda w: D.range(50).filter(lambda x: x % 3 > 0).window(4).flat_map(lambda a: a.batch(4)), 0, "BLOCKS"),
    "take_while_then_shuffle_and_batch": Case(lambda w: D.range(50).take_while(lambda x: x < 30).shuffle(7).batch(4), 1, "NONE", how="rows"),
    "rebatch_to_several_sizes": Case(lambda w: D.range(50).batch(6).rebatch([1, 2, 3]), 0, "ELEMENTS"),
    "rebatch_of_mapped_batches": Case(lambda w: D.range(50).batch(4).map(lambda b: b - tf.reduce_min(b)).rebatch(3), 0, "BLOCKS", "REMAINDER", "rows"),
    "unbatch_of_mapped_batches_then_batch": Case(
        lambda w: D.range(50).batch(4).map(lambda b: b - tf.reduce_min(b)).unbatch().batch(3), 0, "BLOCKS", "REMAINDER", "rows"),
    "choose_until_all_are_empty_then_batch": Case(
        lambda w: D.choose_from_datasets([D.range(7), D.range(100, 120)], D.range(2).repeat(), stop_on_empty_dataset=False).batch(4),
        0, "BLOCKS"),
    "choose_from_an_endless_one": Case(
        lambda w: D.choose_from_datasets([D.range(7).repeat(), D.range(100, 120)], D.range(2).repeat()), 0, "ELEMENTS"),
    "rejection_resample": Case(
        lambda w: D.range(80).rejection_resample(lambda x: tf.cast(x % 2, tf.int32), [0.0, 1.0], [0.5, 0.5], seed=1).map(lambda c, x: x),
        0, "ELEMENTS"),
    "parallel_interleave": Case(
        lambda w: D.from_tensor_slices(lines(w)).apply(
            tf.data.experimental.parallel_interleave(tf.data.TextLineDataset, cycle_length=3, sloppy=True)).batch(4),
        6, "FILES", "REMAINDER", "rows"),
    "loaded": Case(lambda w: saved(w).map(expensive).batch(4), 1, "NONE", how="rows"),
    "comma_separated": Case(
        lambda w: tf.data.experimental.CsvDataset(lines(w), [tf.int64]).batch(4), 1, "NONE", how="rows"),
    "compressed_records": Case(
        lambda w: D.from_tensor_slices(compressed(w)).interleave(
            lambda f: tf.data.TFRecordDataset(f, compression_type="ZLIB").map(number), cycle_length=4, num_parallel_calls=4), 4, "FILES"),
    "many_files_with_few_lines": Case(lambda w: tf.data.TextLineDataset(lines(w, 20, 0)).batch(3), 8, "FILES", "REMAINDER", "rows"),
    "empty_files": Case(lambda w: tf.data.TextLineDataset(lines(w, 5, -5)).batch(4).map(number), 5, "FILES", "CLOSING", "rows"),
    "only_empty_files": Case(lambda w: tf.data.TextLineDataset(lines(w, 5, -9)).batch(4).map(number), 5, "FILES", "CLOSING", "rows"),
    "take_of_an_endless_filter": Case(lambda w: D.range(20).filter(lambda x: x % 2 > 0).repeat().take(33).batch(4), 1, "NONE"),
    "zip_of_a_flat_map_and_a_range": Case(lambda w: D.zip((D.range(6).flat_map(lambda x: D.range(x)), D.range(20))).batch(4), 1, "NONE"),
    "errors_ignored_before_enumerate": Case(
        lambda w: D.range(40).map(lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32) / tf.cast(x % 4, tf.float32), "none"))
        .ignore_errors().enumerate(), 1, "NONE"),
    "group_by_reducer": Case(
        lambda w: D.range(30).apply(tf.data.experimental.group_by_reducer(
            lambda x: x % 4, tf.data.experimental.Reducer(lambda _: np.int64(0), lambda s, x: s + x, lambda s: s))), 1, "NONE"),
    "ragged_elements_after_filter": Case(
        lambda w: D.range(60).filter(lambda x: x % 3 > 0).map(ragged_row).ragged_batch(4), 0, "BLOCKS", ordered=True
    ),
}


def table() -> tf.lookup.StaticHashTable:
    keys = tf.constant(range(20), tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 3), -1)
