"""The input pipeline of the demo: ordinary tf.data, as one writes it without any service."""

from __future__ import annotations

import tensorflow as tf

PIXELS = 160
BATCH = 64


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the encoded image and the label of a record."""
    features = tf.io.parse_single_example(
        record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    )
    return features["image"], features["label"]


def decode(encoded: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes the image to uint8 pixels of shape (height, width, 3)."""
    return tf.io.decode_jpeg(encoded, channels=3), label


def random_crop(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Crops a random square with seven eighths of the side."""
    side = tf.shape(image)[0] * 7 // 8
    return tf.image.random_crop(image, [side, side, 3]), label


def random_flip(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Mirrors the image with probability 1/2."""
    return tf.image.random_flip_left_right(image), label


def resize(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Resizes the image to the input size of the model."""
    return tf.image.resize(image, [PIXELS, PIXELS], antialias=True), label


def normalise(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Scales the values to the range from -2 to 2."""
    return (image - 127.5) / 63.75, label


def cast(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Casts to float16, which halves the bytes that the trainer receives."""
    return tf.cast(image, tf.float16), label


def training(files: list[str]) -> tf.data.Dataset:
    """Returns batches of augmented crops, in another order in each epoch."""
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed=7)
    dataset = dataset.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.shuffle(512, seed=8)
    for step in (parse, decode, random_crop, random_flip, resize, normalise, cast):
        dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def evaluation(files: list[str], examples: int) -> tf.data.Dataset:
    """Returns batches of crops that are not in the training set, without augmentation."""
    dataset = tf.data.TFRecordDataset(files)
    for step in (parse, decode, resize, normalise, cast):
        dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.apply(tf.data.experimental.assert_cardinality(examples)).batch(BATCH)
