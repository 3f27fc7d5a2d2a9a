"""A small training job that reads through a Pecan service, to test a deployment.

    python train.py --service pecan.pecan:5050 --records '/data/photographs/*.tfrecord'

Without --records it makes numbers in the pipeline, which needs no data volume.
"""

from __future__ import annotations

import argparse
import sys
import time

import pecan
import tensorflow as tf


def numbers(elements: int) -> tf.data.Dataset:
    """Returns pairs of an image of noise and a label, which cost the workers some work."""

    def image(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        noise = tf.random.stateless_uniform([64, 64, 3], seed=tf.stack([index, 1]))
        return tf.image.resize(noise, [32, 32]), index % 10

    return tf.data.Dataset.range(elements).map(image).batch(32, drop_remainder=True)


def photographs(pattern: str) -> tf.data.Dataset:
    """Returns resized images and labels of records with the features `image` and `label`."""

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_single_example(record, features)
        pixels = tf.io.decode_jpeg(found["image"], channels=3)
        return tf.image.resize(pixels, [32, 32]) / 255.0, found["label"]

    files = tf.data.Dataset.list_files(pattern, seed=1)
    return files.interleave(tf.data.TFRecordDataset).shuffle(512, seed=2).map(parse).batch(32, drop_remainder=True)


def main() -> int:
    """Trains, and prints what the trainer received."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", required=True, help="HOST:PORT of the dispatcher")
    parser.add_argument("--records", help="pattern of TFRecord files, as workers and this process see them")
    parser.add_argument("--elements", type=int, default=3200, help="numbers to make without --records")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    dataset = photographs(arguments.records) if arguments.records else numbers(arguments.elements)
    dataset = dataset.apply(pecan.distribute(arguments.service)).prefetch(2)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([32, 32, 3]),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(1000),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    started = time.monotonic()
    model.fit(dataset, epochs=arguments.epochs, verbose=2)
    print(f"{arguments.epochs} epochs in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
