#!/usr/bin/env python3
"""Writes the dataset graphs for the tests of orders and of their trials.

Usage: orders.py (needs tensorflow; the output is committed, so the tests do not).
"""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
D = tf.data.Dataset
ENDLESS = 1 << 40


def image(side: int):
    """Images whose size is not known when steps are traced, with a number, its name, and a value that is none."""

    def make(i: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = side + tf.cast(i % 3, tf.int32)
        values = tf.reshape(tf.range(rows * rows * 3), [rows, rows, 3])
        return tf.cast(values + tf.cast(i, tf.int32), tf.float32) / 1000.0, i, tf.strings.as_string(i), tf.constant(np.nan)

    return make


def images(side: int, count: int = ENDLESS) -> D:
    return D.range(count).map(image(side))


def on_image(dataset: D, step, **options) -> D:
    return dataset.map(lambda x, i, name, nan: (step(x), i, name, nan), **options)


def on_number(dataset: D, step) -> D:
    return dataset.map(lambda x, i, name, nan: (x, step(i), name, nan))


def keep(dataset: D, step) -> D:
    return dataset.filter(lambda x, i, name, nan: step(i))


def expensive(x: tf.Tensor) -> tf.Tensor:
    for _ in range(8):
        x = tf.sin(tf.exp(-x * x)) + x
    return x


def crop(x: tf.Tensor) -> tf.Tensor:
    return x[4:12, 6:14]


def standardise(x: tf.Tensor) -> tf.Tensor:
    x = expensive(x)
    return (x - tf.reduce_mean(x)) / (tf.math.reduce_std(x) + 1.0)


def noise(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([])


def some_fail(i: tf.Tensor) -> tf.Tensor:
    return 12 // (1 - i % 3)


def spin(i: tf.Tensor) -> tf.Tensor:
    """Takes some hundred milliseconds, in a loop that a cancel can end."""
    end = tf.while_loop(lambda n: n < 200_000, lambda n: n + 1, [tf.constant(0)], parallel_iterations=1)[0]
    return i + tf.cast(end, tf.int64)


def marked(dataset: D) -> D:
    return dataset.take(-1, name="pecan_cache")


def in_streams() -> D:
    dataset = on_image(images(16, 96), noise, num_parallel_calls=2)
    dataset = keep(dataset, lambda i: i % 3 != 1)
    dataset = marked(on_number(dataset, lambda i: i + 100))
    dataset = on_image(dataset, noise, num_parallel_calls=2)
    dataset = keep(dataset, lambda i: i % 5 != 0)
    return on_number(dataset, lambda i: i * 2)


def in_batches() -> D:
    dataset = on_image(images(16, 480), lambda x: crop(x) + tf.random.uniform([]), num_parallel_calls=2)
    dataset = on_number(dataset, lambda i: i + 100)
    dataset = keep(dataset, lambda i: i % 3 != 1)
    dataset = dataset.batch(4, num_parallel_calls=2).prefetch(2)
    return on_number(on_image(dataset, tf.negative), lambda i: i * 2)


def jpeg() -> D:
    """What trainers do to photographs: most of the work is in the functions, some of it in loops and branches of theirs."""
    smooth = tf.image.resize(np.random.default_rng(3).integers(0, 255, (12, 12, 3)), [240, 240])
    bytes_ = tf.io.encode_jpeg(tf.cast(smooth, tf.uint8)).numpy()
    dataset = D.range(ENDLESS).map(lambda i: (tf.constant(bytes_), i), num_parallel_calls=4)
    dataset = dataset.map(lambda x, i: (tf.image.decode_jpeg(x, channels=3), i), num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.filter(lambda x, i: tf.reduce_mean(tf.cast(x, tf.float32)) > 1.0)
    dataset = dataset.map(lambda x, i: (tf.image.resize(x, [192, 192]), i), num_parallel_calls=4).prefetch(8)
    dataset = dataset.map(lambda x, i: (tf.cond(i % 2 == 0, lambda: tf.image.flip_left_right(x), lambda: x), i))
    dataset = dataset.map(lambda x, i: (tf.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, tf.image.adjust_contrast(y, 1.01)), [0, x])[1], i))
    return dataset.batch(4, num_parallel_calls=4).prefetch(2)


def in_function() -> D:
    """Steps in the function of an interleave."""

    def images_of(_: tf.Tensor) -> D:
        return on_image(on_image(images(96, 400), expensive, num_parallel_calls=2), crop)

    return on_number(D.range(64).interleave(images_of, cycle_length=4, num_parallel_calls=2), lambda i: i + 1).batch(4)


CASES = {
    "streams": in_streams(),
    "batches": in_batches(),
    "expensive_crop": on_image(on_image(images(96), expensive), crop),
    "crop_expensive": on_image(on_image(images(96), crop), expensive),
    "few": on_image(on_image(images(96, 20), expensive), crop),
    "very_few": on_image(on_image(images(96, 3), expensive), crop),
    "mean_crop": on_image(on_image(images(96), standardise), crop),
    "failing": on_image(on_number(on_image(images(96), expensive), some_fail), crop),
    "filtered": on_image(on_number(keep(on_image(images(96), expensive), lambda i: i % 3 != 1), some_fail), crop),
    "noise": keep(on_image(on_image(images(96), noise), expensive, num_parallel_calls=2), lambda i: i % 3 == 1),
    "spin": on_number(on_number(images(4), spin), lambda i: i + 1),
    "writes": on_image(on_image(images(96, 20), expensive), crop).cache("/tmp/pecan_no_such_directory/cache"),
    "jpeg": jpeg(),
    "in_function": in_function(),
}


def main() -> None:
    for name, dataset in CASES.items():
        (HERE / f"order_{name}.graph").write_bytes(dataset._as_serialized_graph(strip_device_assignment=True).numpy())


main()
