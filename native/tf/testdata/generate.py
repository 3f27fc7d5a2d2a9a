#!/usr/bin/env python3
"""Write the serialised dataset graphs that the Go tests of the executor and the worker run.

Usage: generate.py (needs tensorflow; the output is committed, so the tests do not).
"""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

HERE = pathlib.Path(__file__).resolve().parent
ENDLESS = 1 << 40


def fail_on_third(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_none_equal(x, tf.constant(3, tf.int64), message="three is refused")]):
        return x * 10


def spin(i: tf.Tensor) -> tf.Tensor:
    """Takes some hundred milliseconds, in a loop that a cancel can end."""
    end = tf.while_loop(lambda n: n < 200_000, lambda n: n + 1, [tf.constant(0)], parallel_iterations=1)[0]
    return i + tf.cast(end, tf.int64)


def every_dtype() -> tf.data.Dataset:
    """Elements with a component of shape [2, 3] per fixed-width dtype, then scalars, empty shapes and strings."""
    numbers = [tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.float16,
               tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.dtypes.experimental.float8_e4m3fn,
               tf.dtypes.experimental.float8_e5m2]
    values = tf.constant(np.arange(6).reshape(2, 3), tf.float32)
    components = [tf.cast(values, dtype) for dtype in numbers]
    components += [tf.constant(7, tf.int64), tf.zeros([0], tf.float32), tf.zeros([3, 0, 2], tf.int32), tf.constant(""),
                   tf.constant(["", "a", "x" * 22, "y" * 23, "z" * 5000]), tf.constant([], tf.string, [2, 0])]
    # TensorFlow 2.21 cannot optimise a graph that contains float8_e5m2, neither here nor in a local run.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return tf.data.Dataset.from_tensors(tuple(components)).repeat(3).with_options(options)


def not_three(i: tf.Tensor) -> tf.Tensor:
    return i % 3 != 0


def add_half(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return batch, tf.cast(batch, tf.float32) + 0.5


def nines(i: tf.Tensor) -> tf.Tensor:
    """10 bytes, and 100,000 for every tenth element."""
    return tf.fill([tf.where(i % 10 == 9, 100_000, 10)], tf.cast(i, tf.uint8))


def stream_of(count: tf.Tensor, step: tf.Tensor, bad: tf.Tensor) -> tf.data.Dataset:
    """The dataset of a stream from its arguments: it fails at the element bad, and cannot be built with step 0."""

    def refuse(i: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_none_equal(i, bad, message="this one is refused")]):
            return i * 10

    return tf.data.Dataset.range(0, count, step).map(refuse, num_parallel_calls=2).shuffle(4, seed=count)


def slow(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Each element takes a millisecond. The time is a wait, so that tests of slow streams leave the cores to others."""
    return dataset.apply(testing.sleep(1000))


def refuse_37(i: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_none_equal(i, tf.constant(37, tf.int64), message="37 is refused")]):
        return tf.identity(i)


def long_string(i: tf.Tensor) -> tf.Tensor:
    return tf.strings.reduce_join(tf.repeat(tf.strings.as_string(i), tf.cast(i, tf.int32)))


def one_long_string(i: tf.Tensor) -> tf.Tensor:
    """64 MiB of a digit."""
    return tf.strings.reduce_join(tf.repeat(tf.strings.reduce_join(tf.repeat(tf.strings.as_string(i), 1024)), 64 << 10))


def no_number(_: tf.Tensor) -> tf.Tensor:
    """Fails with a message of a little more than 256 KiB: TensorFlow's holds what was to be a number."""
    return tf.strings.to_number(tf.strings.reduce_join(tf.fill([1 << 18], "x")), tf.int64)


def as_a_stream(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Leave out TensorFlow's final prefetch: a worker's streams have none, because the worker's window replaces it."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def column_sums(i: tf.Tensor) -> tf.Tensor:
    """Sums whose last bits depend on how many threads share them."""
    values = tf.sin(tf.range(1_000_000, dtype=tf.float32) * tf.cast(i + 1, tf.float32))
    return tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(values, [500_000, 2]))


def graphs() -> dict[str, tf.data.Dataset]:
    source = tf.data.Dataset.range
    return {
        "endless": as_a_stream(source(ENDLESS)),
        "thousand": source(1000),
        "pairs": source(1000).map(lambda i: (i, tf.cast([i, i + 1], tf.float32))),
        "mapped": source(20).map(lambda i: i * 2, num_parallel_calls=2).map(lambda i: i + 1),
        "failing": source(6).map(fail_on_third),
        "failing_batches": source(40).map(fail_on_third).batch(3),
        "dtypes": every_dtype(),
        "shuffled": source(24).shuffle(16, seed=3).map(lambda i: i * 3, num_parallel_calls=2),
        "reshuffled": source(20).shuffle(8, seed=3).repeat(3).batch(4),
        "interleaved": source(6).interleave(lambda i: source(i * 100, i * 100 + 10), cycle_length=3, block_length=2),
        "interleaved_in_parallel": source(6).interleave(
            lambda i: source(i * 100, i * 100 + 10), cycle_length=3, num_parallel_calls=2, deterministic=True
        ),
        "flattened": source(6).flat_map(lambda i: source(i * 100, i * 100 + 10)),
        "windows": source(24).window(5, shift=3).flat_map(lambda w: w.batch(5)),
        "grouped": source(24).group_by_window(lambda i: i % 3, lambda _, w: w.batch(4), 8),
        "scanned": source(24).scan(tf.constant(0, tf.int64), lambda s, i: (s + i, s)),
        "zipped": tf.data.Dataset.zip((source(24), source(24).shuffle(7, seed=2))),
        "rebatched": source(24).batch(4).rebatch(3),
        "padded": source(24).map(lambda i: tf.fill([i % 5], i)).padded_batch(4),
        "joined": source(12).concatenate(source(100, 112)).prefetch(2),
        "slow_shuffle": as_a_stream(slow(source(4000)).shuffle(16, seed=3)),
        "failing_shuffle": as_a_stream(slow(source(1200).shuffle(1, seed=3)).map(refuse_37).batch(4)),
        "pooled": as_a_stream(source(1 << 62).map(lambda i: (i, i, i)).flat_map(stream_of)),
        "ragged": source(200).map(lambda i: (tf.range(i), i)),
        "wordy": source(1).map(no_number),
        "strings": source(500).map(long_string),
        "starved": source(1).concatenate(source(ENDLESS).filter(lambda i: i < 0)),
        "burst": source(10).concatenate(source(ENDLESS).filter(lambda i: i < 0)),
        "missing": tf.data.TFRecordDataset(["/nonexistent/pecan/part-0.tfrecord"]),
        "batches": source(103).batch(10),
        "remainder": source(1003).filter(not_three).batch(10),
        "closing": source(1003).filter(not_three).batch(10).map(add_half),
        "mixed": source(40).map(nines),
        "hundreds": source(100).map(lambda i: tf.fill([100_000], tf.cast(i, tf.uint8))),
        "long": source(2).map(one_long_string),
        "sums": source(64).map(column_sums),
        "spinning": source(ENDLESS).map(spin),
        "ahead": tf.data.Dataset.range(10**9).map(lambda x: tf.fill([9_600_000], tf.cast(x % 251, tf.uint8))).prefetch(4),
        "large": tf.data.Dataset.from_tensors(tf.constant(1, tf.uint8)).map(lambda x: tf.fill([9_600_000], x)).cache().repeat(),
    }


def main() -> None:
    for name, dataset in graphs().items():
        graph = dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)
        HERE.joinpath(f"{name}.graph").write_bytes(graph.numpy())


if __name__ == "__main__":
    main()
