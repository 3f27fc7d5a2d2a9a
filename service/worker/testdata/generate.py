#!/usr/bin/env python3
"""Writes the dataset graphs for the tests of figures, and what each of their steps makes in one pass.

Usage: generate.py (needs tensorflow; the output is committed, so the tests do not). The counts are written down by hand:
they are what a reader of the pipeline expects.
"""

from __future__ import annotations

import json
import os
import pathlib

import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
D = tf.data.Dataset


def even(x: tf.Tensor) -> tf.Tensor:
    return x % 2 == 0


def one_more(x: tf.Tensor) -> tf.Tensor:
    return x + 1


def some(x: tf.Tensor) -> D:
    return D.range(x % 3).map(one_more)


def records(file: tf.Tensor) -> D:
    return tf.data.TFRecordDataset(file).map(tf.strings.length)


def odd_fails(x: tf.Tensor) -> tf.Tensor:
    return tf.debugging.check_numerics(1.0 / tf.cast(1 - x % 2, tf.float32), "odd")


def one_by_one(dataset: D) -> D:
    """Switches the rewrite to parallel maps off. A parallel map computes a random number of unread elements when a take ends."""
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return dataset.with_options(options)


# A pipeline and the elements of its steps from the source on: those of each op in any order.
FILES = [f"testdata/records-{i}" for i in range(3)]
CASES: dict[str, tuple[D, list[tuple[str, int]]]] = {
    "range": (D.range(100), [("Range", 100)]),
    "maps": (D.range(100).map(one_more).map(one_more, num_parallel_calls=2), [("Range", 100), ("Map", 100), ("ParallelMap", 100)]),
    "batch": (D.range(100).map(one_more).batch(7), [("Range", 100), ("Map", 100), ("Batch", 15)]),
    "full_batches": (D.range(100).map(one_more).batch(7, drop_remainder=True), [("Range", 100), ("Map", 100), ("Batch", 14)]),
    "parallel_batch": (
        D.range(100).map(one_more, num_parallel_calls=2).batch(7, num_parallel_calls=2).prefetch(2),
        [("Range", 100), ("ParallelMap", 100), ("ParallelBatch", 15), ("Prefetch", 15)],
    ),
    "filter": (D.range(100).map(one_more).filter(even), [("Range", 100), ("Map", 100), ("Filter", 50)]),
    "filters": (
        D.range(100).filter(even).map(one_more).filter(even).batch(5),
        [("Range", 100), ("Filter", 50), ("Map", 50), ("Filter", 0), ("Batch", 0)],
    ),
    "unbatch": (D.range(100).batch(10).map(one_more).unbatch().filter(even),
                [("Range", 100), ("Batch", 10), ("Map", 10), ("Map", 10), ("Unbatch", 100), ("Filter", 50)]),
    "flat_map": (D.range(30).flat_map(some).batch(4), [("Range", 30), ("FlatMap", 30), ("Batch", 8)]),
    "interleave": (D.range(30).map(one_more).interleave(some, cycle_length=3).map(one_more).filter(even),
                   [("Range", 30), ("Map", 30), ("Interleave", 30), ("Map", 30), ("Filter", 20)]),
    "parallel_interleave": (D.range(30).interleave(some, cycle_length=3, num_parallel_calls=2).batch(4),
                            [("Range", 30), ("ParallelInterleave", 30), ("Batch", 8)]),
    "steps_in_function": (D.range(6).interleave(lambda x: D.range(20).map(one_more).filter(even).map(one_more), cycle_length=2).batch(4),
                          [("Range", 6), ("Interleave", 60), ("Batch", 15)]),
    "shuffle_repeat": (D.range(30).shuffle(7, seed=3).map(one_more).repeat(3).batch(4),
                       [("Range", 90), ("Shuffle", 90), ("Map", 90), ("Repeat", 90), ("Batch", 23)]),
    "repeat_shuffle": (D.range(30).repeat(3).shuffle(7, seed=3).filter(even),
                       [("Range", 90), ("Repeat", 90), ("Shuffle", 90), ("Filter", 45)]),
    "take": (one_by_one(D.range(100).map(one_more).filter(even).take(10).map(one_more)), [("Range", 20), ("Map", 20), ("Filter", 10), ("Take", 10), ("Map", 10)]),
    "skip": (D.range(100).map(one_more).skip(40).batch(10), [("Range", 100), ("Map", 100), ("Skip", 60), ("Batch", 6)]),
    "shard": (D.range(100).map(one_more).shard(4, 1).batch(10), [("Range", 100), ("Map", 100), ("Shard", 25), ("Batch", 3)]),
    "skip_flat": (D.range(30).flat_map(some).skip(7).batch(4), [("Range", 30), ("FlatMap", 30), ("Skip", 23), ("Batch", 6)]),
    "zip": (one_by_one(D.zip((D.range(100).map(one_more), D.range(100).filter(even))).batch(8)),
            [("Range", 51), ("Map", 51), ("Range", 100), ("Filter", 50), ("Zip", 50), ("Batch", 7)]),
    "concatenate": (D.range(20).map(one_more).concatenate(D.range(30).filter(even)).batch(10),
                    [("Range", 20), ("Map", 20), ("Range", 30), ("Filter", 15), ("Concatenate", 35), ("Batch", 4)]),
    "cache": (D.range(20).map(one_more).cache().repeat(3).batch(10), [("Range", 20), ("Map", 20), ("Cache", 60), ("Repeat", 60), ("Batch", 6)]),
    "window": (D.range(20).window(5, shift=5, drop_remainder=True).flat_map(lambda w: w.batch(5)).batch(2),
               [("Range", 20), ("Window", 4), ("FlatMap", 4), ("Batch", 2)]),
    "padded": (D.range(20).map(tf.range).padded_batch(3).prefetch(1), [("Range", 20), ("Map", 20), ("PaddedBatch", 7), ("Prefetch", 7)]),
    "ragged": (D.range(20).map(tf.range).ragged_batch(3).map(lambda r: r.to_tensor()), [("Range", 20), ("Map", 20), ("Map", 20), ("Batch", 7), ("Map", 7)]),
    "enumerate": (D.range(20).filter(even).enumerate().batch(4), [("Range", 20), ("Filter", 10), ("Range", 11), ("Zip", 10), ("Batch", 3)]),
    "errors": (D.range(20).map(odd_fails).ignore_errors().batch(4), [("Range", 20), ("Map", 10), ("IgnoreErrors", 10), ("Batch", 3)]),
    "no_steps": (D.range(20).skip(0).take(-1).repeat(1).batch(4), [("Range", 20), ("Skip", 20), ("Take", 20), ("Repeat", 20), ("Batch", 5)]),
    "records": (D.from_tensor_slices(FILES).flat_map(tf.data.TFRecordDataset).map(tf.strings.length).batch(8),
                [("TensorSlice", 3), ("FlatMap", 60), ("Map", 60), ("Batch", 8)]),
    "records_interleaved": (
        D.from_tensor_slices(FILES).interleave(records, cycle_length=2, num_parallel_calls=2).shuffle(16).batch(8).prefetch(2),
        [("TensorSlice", 3), ("ParallelInterleave", 60), ("Shuffle", 60), ("Batch", 8), ("Prefetch", 8)],
    ),
    "records_list": (tf.data.TFRecordDataset(FILES).filter(lambda r: tf.strings.length(r) > 9).batch(8),
                     [("TensorSlice", 3), ("FlatMap", 60), ("Filter", 30), ("Batch", 4)]),
}


def reads_ahead() -> D:
    """An element that fails while a step of its own reads on from a pipe: who closes the iterator waits for that."""
    lines = D.from_tensor_slices(["words", "pipe"]).interleave(tf.data.TextLineDataset, cycle_length=2, num_parallel_calls=2, deterministic=False)
    options = tf.data.Options()
    options.deterministic = False
    options.experimental_optimization.apply_default_optimizations = options.experimental_optimization.inject_prefetch = False
    return lines.map(lambda word: tf.strings.to_number(word, tf.int64)).with_options(options)


def first_batch_fails() -> D:
    """Batches downstream of a filter. The first one of all fails, after so long that the batches after it are made meanwhile."""

    def inverse(rows: tf.Tensor) -> tf.Tensor:
        numbers = tf.cast(rows, tf.float32)
        square = tf.ones([1024, 1024]) * numbers[-1]
        slow = 1e-30 * tf.reduce_sum(tf.linalg.matmul(square, square))
        return tf.debugging.check_numerics(1.0 / numbers + slow, "zero")

    return D.range(100).filter(lambda x: x >= 0).batch(8).map(inverse, num_parallel_calls=4)


def main() -> None:
    os.chdir(HERE.parent)
    (HERE / "first_batch_fails.graph").write_bytes(first_batch_fails()._as_serialized_graph(strip_device_assignment=True).numpy())
    (HERE / "pipe.graph").write_bytes(reads_ahead()._as_serialized_graph(strip_device_assignment=True).numpy())
    for file in FILES:
        with tf.io.TFRecordWriter(file) as writer:
            for i in range(20):
                writer.write(b"x" * i)
    expected = {}
    for name, (dataset, counts) in CASES.items():
        graph = dataset._as_serialized_graph(strip_device_assignment=True).numpy()
        (HERE / f"{name}.graph").write_bytes(graph)
        expected[name] = [{"op": op, "elements": elements} for op, elements in counts]
        sum(1 for _ in dataset)
    (HERE / "figures.json").write_text(json.dumps(expected, indent=1) + "\n")


main()
