"""Typical pipelines for the oracle, with the expected plan of each."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from graph_batches import BATCHES
from pipeline_parts import (
    Case,
    bucketed,
    compressed,
    expensive,
    fixed,
    lines,
    list_files,
    number,
    options,
    ragged_row,
    records,
    table,
)

D = tf.data.Dataset

CASES: dict[str, Case] = {
    # Sources.
    "range": Case(lambda w: D.range(100), 16, "ELEMENTS", ordered=True),
    "range_with_step": Case(lambda w: D.range(3, 200, 7), 0, "ELEMENTS", ordered=True),
    "range_down": Case(lambda w: D.range(200, 3, -7), 0, "ELEMENTS", ordered=True),
    "range_tiny": Case(lambda w: D.range(2), 2, "ELEMENTS"),
    "range_one": Case(lambda w: D.range(1), 1, "NONE"),
    "range_empty": Case(lambda w: D.range(0), 1, "NONE"),
    "slices": Case(lambda w: D.from_tensor_slices(np.arange(50, dtype=np.float32)), 0, "ELEMENTS", ordered=True),
    "slices_of_a_dict": Case(
        lambda w: D.from_tensor_slices({"a": np.arange(30), "b": np.arange(60).reshape(30, 2)}), 0, "ELEMENTS"
    ),
    "slices_of_strings": Case(
        lambda w: D.from_tensor_slices([f"{'s' * i}{i}" for i in range(40)]), 0, "ELEMENTS", ordered=True
    ),
    "slices_of_bools": Case(lambda w: D.from_tensor_slices([True, False, True, True] * 8), 0, "ELEMENTS"),
    "one_tensor": Case(lambda w: D.from_tensors([1, 2, 3]), 1, "NONE"),
    # Files.
    "list_files": Case(list_files, 0, "ELEMENTS"),
    "list_files_of_lines": Case(lambda w: list_files(w).interleave(tf.data.TextLineDataset), 6, "FILES"),
    "lines_of_many_files": Case(lambda w: tf.data.TextLineDataset(lines(w)), 6, "FILES"),
    "lines_of_one_file": Case(lambda w: tf.data.TextLineDataset(lines(w, 1)), 1, "NONE"),
    "lines_of_one_file_decoded": Case(
        lambda w: tf.data.TextLineDataset(lines(w, 1, 30)).map(number).map(expensive), 4, "ELEMENTS", ordered=True
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
    # Maps and filters.
    "map": Case(lambda w: D.range(60).map(lambda x: x * 2, num_parallel_calls=4), 0, "ELEMENTS", ordered=True),
    "filter": Case(lambda w: D.range(100).filter(lambda x: x % 3 == 0).map(lambda x: x + 1), 0, "ELEMENTS"),
    "flat_map": Case(lambda w: D.range(20).flat_map(lambda x: D.range(x)), 0, "ELEMENTS"),
    # Positions.
    "take": Case(lambda w: D.range(100).take(37), 0, "ELEMENTS", ordered=True),
    "skip_after_shuffle": Case(
        lambda w: D.range(100).shuffle(10, seed=1).skip(5).map(expensive), 0, "ELEMENTS", how="count"
    ),
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
    "bucket_by_sequence_length": Case(bucketed, 1, "NONE"),
    # Several inputs.
    "zip": Case(lambda w: D.zip((D.range(50), D.range(100, 140).map(lambda x: x * 2))), 0, "ELEMENTS", ordered=True),
    "zip_of_a_dataset_with_itself": Case(lambda w: (lambda d: D.zip((d, d.map(lambda x: x * 2))))(D.range(40).map(lambda x: x + 1)), 0, "ELEMENTS", ordered=True),
    "a_dataset_captured_by_a_function": Case(
        lambda w: (lambda inner: D.range(12).flat_map(lambda x: inner.map(lambda y: x * 10 + y)))(D.range(3)), 0, "ELEMENTS"),
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
    "repeat_then_shuffle": Case(lambda w: D.range(30).repeat(2).shuffle(10), 0, "ELEMENTS"),
    "endless_repeat": Case(lambda w: D.range(30).map(lambda x: x + 1).repeat(), 0, "ELEMENTS", repeat=-1, take=60),
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
    "file_cache_then_endless_repeat": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).map(number).map(expensive).cache(str(w / "cache")).repeat(), 1, "NONE", take=120),
    "snapshot": Case(lambda w: D.range(50).snapshot(str(w / "snapshot")), 0, "ELEMENTS", mode="AT_LEAST_ONCE"),
    "assert_cardinality": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).apply(tf.data.experimental.assert_cardinality(57)), 6, "FILES"
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
    "random_values": Case(lambda w: D.range(40).map(lambda x: tf.random.uniform([2])), 0, "ELEMENTS", how="count"),
    "nested_shuffle": Case(
        lambda w: D.range(12).interleave(lambda x: D.range(x * 10, x * 10 + 5).shuffle(5)), 0, "ELEMENTS"
    ),
    "table_lookup": Case(lambda w: D.range(20).map(table().lookup), 0, "ELEMENTS"),
    "variable": Case(lambda w: D.range(20).map(lambda x, v=tf.Variable(5, dtype=tf.int64): x + v), 0, "ELEMENTS"),
    "sparse_elements": Case(lambda w: D.range(20).map(lambda x: tf.sparse.from_dense(tf.fill([3], x))), 0, "ELEMENTS"),
    "assert_cardinality_then_zip": Case(
        lambda w: D.zip((tf.data.TextLineDataset(lines(w)).map(number).apply(tf.data.experimental.assert_cardinality(57)), D.range(100))), 1, "NONE"),
    "bucket_without_padding_drops": Case(
        lambda w: D.range(50).map(ragged_row).bucket_by_sequence_length(lambda x: tf.shape(x)[0], [3], [4, 4], drop_remainder=True), 1, "NONE"),
    "flat_map_in_flat_map": Case(
        lambda w: D.range(9).flat_map(lambda x: D.range(x).flat_map(lambda y: D.range(y).map(lambda z: x * 100 + y * 10 + z))), 0, "ELEMENTS"),
    "choose_from_an_endless_one": Case(
        lambda w: D.choose_from_datasets([D.range(7).repeat(), D.range(100, 120)], D.range(2).repeat()), 0, "ELEMENTS"),
    "rejection_resample": Case(
        lambda w: D.range(80).rejection_resample(lambda x: tf.cast(x % 2, tf.int32), [0.0, 1.0], [0.5, 0.5], seed=1).map(lambda c, x: x),
        0, "ELEMENTS"),
    "compressed_records": Case(
        lambda w: D.from_tensor_slices(compressed(w)).interleave(
            lambda f: tf.data.TFRecordDataset(f, compression_type="ZLIB").map(number), cycle_length=4, num_parallel_calls=4), 4, "FILES"),
    "errors_ignored_before_enumerate": Case(
        lambda w: D.range(40).map(lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32) / tf.cast(x % 4, tf.float32), "none"))
        .ignore_errors().enumerate(), 1, "NONE"),
    "group_by_reducer": Case(
        lambda w: D.range(30).apply(tf.data.experimental.group_by_reducer(
            lambda x: x % 4, tf.data.experimental.Reducer(lambda _: np.int64(0), lambda s, x: s + x, lambda s: s))), 1, "NONE"),
    # Batches and windows.
    **BATCHES,
}
