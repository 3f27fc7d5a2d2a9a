"""Typical pipelines with batches and windows, with the expected plan of each."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from pipeline_parts import (
    Case,
    Point,
    expensive,
    lines,
    list_files,
    number,
    ragged_row,
    records,
    saved,
)

D = tf.data.Dataset

BATCHES: dict[str, Case] = {
    # Sources.
    "range_of_int32": Case(lambda w: D.range(3, 100, 2, output_type=tf.int32).batch(4), 0, "BLOCKS", ordered=True),
    "range_too_long_to_list": Case(lambda w: D.range(7, 3_600_005, 3).batch(5000), 0, "BLOCKS", ordered=True),
    "range_too_long_to_list_down": Case(lambda w: D.range(1_200_005, -7, -1).batch(7000).map(lambda b: b[:3]), 0, "BLOCKS", ordered=True),
    "enumerate_then_batch": Case(lambda w: D.range(100, 160).enumerate().batch(7), 0, "BLOCKS", ordered=True),
    "slices_of_one_value": Case(lambda w: D.from_tensor_slices(np.zeros((40, 3), np.int32)).batch(4), 0, "BLOCKS"),
    "named_tuples": Case(
        lambda w: D.from_tensor_slices(Point(np.arange(20), {"z": np.arange(20.0)})).batch(3), 0, "BLOCKS", ordered=True
    ),
    # Files.
    "lines_of_one_file_decoded_in_batches": Case(
        lambda w: tf.data.TextLineDataset(lines(w, 1, 30)).map(number).map(expensive).batch(4), 4, "BLOCKS", ordered=True
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
    "skip": Case(lambda w: D.range(100).skip(37).batch(4), 0, "BLOCKS", ordered=True),
    "take_after_a_map": Case(lambda w: D.range(100).map(expensive).take(37).batch(4), 0, "BLOCKS", ordered=True),
    "shard": Case(lambda w: D.range(100).shard(3, 1).batch(4), 0, "BLOCKS", ordered=True),
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
    # Several inputs.
    "zip_of_batches": Case(
        lambda w: D.zip((D.range(50).batch(4), D.range(10))).map(lambda a, b: a + b), 0, "BLOCKS", ordered=True
    ),
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
    # Repeats.
    "repeat_then_batch_that_fits": Case(lambda w: D.range(32).repeat(2).batch(8), 0, "BLOCKS", repeat=2),
    "repeat_then_batch": Case(lambda w: D.range(30).repeat(2).batch(8), 0, "BLOCKS"),
    "repeat_files_then_batch": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).repeat(2).batch(8), 6, "FILES", "REMAINDER", "rows"
    ),
    "batch_then_repeat": Case(lambda w: D.range(30).batch(8).repeat(2), 0, "BLOCKS", repeat=2),
    "endless_repeat_of_batches": Case(
        lambda w: D.range(30).shuffle(9).batch(4).repeat(), 0, "BLOCKS", how="rows", repeat=-1, take=16
    ),
    "endless_repeat_then_batch": Case(lambda w: D.range(32).repeat().batch(8), 0, "BLOCKS", repeat=-1, take=8),
    "endless_repeat_of_files_then_batch": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).repeat().batch(8), 1, "NONE", take=20
    ),
    # Caches, options, asserted cardinalities.
    "file_cache_then_repeat": Case(
        lambda w: tf.data.TFRecordDataset(records(w)).cache(str(w / "cache")).repeat(3).batch(4), 6, "FILES", "REMAINDER", "rows"),
    "assert_cardinality_then_batch": Case(
        lambda w: (
            tf.data.TFRecordDataset(records(w)).map(number).apply(tf.data.experimental.assert_cardinality(57)).batch(5)
        ),
        6,
        "FILES",
        "REMAINDER",
        "rows",
    ),
    "prefetch_everywhere": Case(
        lambda w: D.range(40).prefetch(2).map(lambda x: x + 1).prefetch(2).batch(3).prefetch(2),
        0,
        "BLOCKS",
        ordered=True,
    ),
    "two_file_caches": Case(
        lambda w: D.range(40).map(expensive).cache(str(w / "a")).map(lambda x: x + 1).cache(str(w / "b")).batch(3), 0, "BLOCKS", ordered=True),
    "zip_of_batches_of_equally_seeded_shuffles": Case(
        lambda w: (lambda d: D.zip((d(), d())).map(lambda a, b: a - b))(lambda: D.range(40).shuffle(40, seed=3).batch(4)), 0, "BLOCKS"),
    "maps_and_filter_after_batch_over_filter": Case(
        lambda w: D.range(60).filter(lambda x: x % 5 > 0).batch(7).map(lambda b: b * 2).map(lambda b: b + 1).filter(lambda b: tf.size(b) > 1),
        0, "ELEMENTS", "CLOSING", "rows"),
    "padded_to_the_longest_after_filter_then_map": Case(
        lambda w: D.range(60).filter(lambda x: x % 5 > 0).map(ragged_row).padded_batch(4).map(lambda b: b + 1), 0, "BLOCKS", ordered=True),
    "enumerate_of_batches": Case(
        lambda w: D.range(50).batch(4).enumerate().flat_map(lambda i, b: D.from_tensor_slices(b).map(lambda x: x + i * 1000)), 0, "BLOCKS"),
    "interleave_of_takes_then_batch": Case(
        lambda w: D.from_tensor_slices(lines(w)).interleave(
            lambda f: tf.data.TextLineDataset(f).map(number).skip(2).take(3), cycle_length=2).batch(4), 6, "FILES", "REMAINDER", "rows"),
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
    "parallel_interleave": Case(
        lambda w: D.from_tensor_slices(lines(w)).apply(
            tf.data.experimental.parallel_interleave(tf.data.TextLineDataset, cycle_length=3, sloppy=True)).batch(4),
        6, "FILES", "REMAINDER", "rows"),
    "loaded": Case(lambda w: saved(w).map(expensive).batch(4), 1, "NONE", how="rows"),
    "comma_separated": Case(
        lambda w: tf.data.experimental.CsvDataset(lines(w), [tf.int64]).batch(4), 1, "NONE", how="rows"),
    "many_files_with_few_lines": Case(lambda w: tf.data.TextLineDataset(lines(w, 20, 0)).batch(3), 8, "FILES", "REMAINDER", "rows"),
    "empty_files": Case(lambda w: tf.data.TextLineDataset(lines(w, 5, -5)).batch(4).map(number), 5, "FILES", "CLOSING", "rows"),
    "only_empty_files": Case(lambda w: tf.data.TextLineDataset(lines(w, 5, -9)).batch(4).map(number), 5, "FILES", "CLOSING", "rows"),
    "take_of_an_endless_filter": Case(lambda w: D.range(20).filter(lambda x: x % 2 > 0).repeat().take(33).batch(4), 1, "NONE"),
    "zip_of_a_flat_map_and_a_range": Case(lambda w: D.zip((D.range(6).flat_map(lambda x: D.range(x)), D.range(20))).batch(4), 1, "NONE"),
    "ragged_elements_after_filter": Case(
        lambda w: D.range(60).filter(lambda x: x % 3 > 0).map(ragged_row).ragged_batch(4), 0, "BLOCKS", ordered=True
    ),
}
