#!/usr/bin/env python3
"""Write the dataset graphs of BenchmarkOpenStream.

Usage: opened.py (needs tensorflow; the output is committed, so the benchmark does not).
"""

from __future__ import annotations

import os
import pathlib

import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
D = tf.data.Dataset
AUTOTUNE = tf.data.AUTOTUNE
# One file is enough to open a stream for each name.
FILE = "testdata/opened-records"
STREAMS = 16
BATCH = 8
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def image(i: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.range(64 * 64 * 3), [64, 64, 3]) % 255, tf.uint8) + tf.cast(i % 7, tf.uint8)


def images() -> D:
    """Six maps over images of a counter, and a batch."""
    dataset = D.range(STREAMS * BATCH).map(image)
    for step in (
        lambda x: tf.image.resize(tf.cast(x, tf.float32), [48, 48]),
        tf.image.flip_left_right,
        lambda x: tf.image.adjust_brightness(x, 0.1),
        lambda x: tf.image.adjust_contrast(x, 0.9),
        tf.image.rgb_to_grayscale,
    ):
        dataset = dataset.map(step)
    return dataset.batch(BATCH)


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(record, FEATURES)
    return example["image"], example["label"]


def decode(encoded: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.image.resize(tf.io.decode_jpeg(encoded, 3), [48, 48]), label


def augment(x: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.image.random_flip_left_right(x)
    return tf.image.random_brightness(x, 0.1), label


def records() -> D:
    """Record files that are parsed, decoded and augmented."""
    dataset = D.from_tensor_slices([FILE] * STREAMS).interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
    for step in (parse, decode, augment):
        dataset = dataset.map(step, num_parallel_calls=AUTOTUNE)
    return dataset.batch(BATCH)


def write(file: str) -> None:
    with tf.io.TFRecordWriter(file) as writer:
        for i in range(BATCH):
            encoded = tf.io.encode_jpeg(image(tf.constant(i))).numpy()
            features = tf.train.Features(
                feature={
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[i])),
                }
            )
            writer.write(tf.train.Example(features=features).SerializeToString())


CASES = {"light": D.range(STREAMS * BATCH).map(lambda i: i * 2 + 1).batch(BATCH), "images": images(), "records": records()}


def main() -> None:
    os.chdir(HERE.parent)
    write(FILE)
    for name, dataset in CASES.items():
        (HERE / f"opened_{name}.graph").write_bytes(dataset._as_serialized_graph(strip_device_assignment=True).numpy())


main()
