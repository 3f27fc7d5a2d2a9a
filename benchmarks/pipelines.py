"""Input pipelines of several fields, with which AutoOrder is measured.

Each has its steps in an order that an author might choose. Every step is a small map, as in the paper of AutoOrder
(Graur et al., USENIX ATC 2024, table 1). The ResNet50 and SimCLR pipelines are those of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

D = tf.data.Dataset
PIXELS = 224
MEAN = (123.68, 116.78, 103.94)


def _records(files: list[str]) -> D:
    """Returns the encoded photographs and their labels."""

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(
            record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        )
        return features["image"], features["label"]

    return D.from_tensor_slices(files).interleave(tf.data.TFRecordDataset).map(parse)


def _chain(dataset: D, *steps: Callable) -> D:
    for step in steps:
        dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset


def _warped(image: tf.Tensor, transform: list[tf.Tensor]) -> tf.Tensor:
    """Applies a projective transformation, given by eight numbers."""
    warped = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack(transform)[tf.newaxis],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )
    return warped[0]


def resnet50(files: list[str]) -> D:
    """Photographs for ResNet50: crop, flip, rotate, shear, resize, subtract the mean, cast to float16."""

    def crop(encoded: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.io.extract_jpeg_shape(encoded)
        side = tf.minimum(shape[0], shape[1]) * 7 // 8
        top = tf.random.uniform([], maxval=shape[0] - side + 1, dtype=tf.int32)
        left = tf.random.uniform([], maxval=shape[1] - side + 1, dtype=tf.int32)
        image = tf.io.decode_and_crop_jpeg(encoded, tf.stack([top, left, side, side]), channels=3)
        # The step of the paper returns floats, so the following steps process four times the bytes of the image.
        return tf.cast(image, tf.float32), label

    def flip(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.random_flip_left_right(image), label

    def rotate(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        angle = tf.random.uniform([], -0.2, 0.2)
        return _warped(image, [tf.cos(angle), -tf.sin(angle), 0.0, tf.sin(angle), tf.cos(angle), 0.0, 0.0, 0.0]), label

    def shear(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _warped(image, [1.0, tf.random.uniform([], -0.1, 0.1), 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), label

    def resize(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.resize(image, [PIXELS, PIXELS]), label

    def subtract(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return image - tf.constant(MEAN), label

    def cast(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(image, tf.float16), tf.one_hot(label, 1000)

    return _chain(_records(files), crop, flip, rotate, shear, resize, subtract, cast).batch(8, drop_remainder=True)


def simclr(files: list[str]) -> D:
    """Photographs for SimCLR: two views, crop, flip, jitter, blur, clip, convert to grey, tile, flatten."""

    def twice(encoded: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # The number of channels stays unknown. Steps that need it read it from the tensor.
        image = tf.io.decode_jpeg(encoded)
        return tf.cast(tf.stack([image, image]), tf.float32) / 255.0, label

    def crop(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        corner = tf.random.uniform([2, 2], 0.0, 0.5)
        boxes = tf.concat([corner, corner + 0.5], axis=1)
        return tf.image.crop_and_resize(images, boxes, [0, 1], [PIXELS, PIXELS]), label

    def flip(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.random_flip_left_right(images), label

    def jitter(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.random_contrast(tf.image.random_brightness(images, 0.3), 0.6, 1.4), label

    def blur(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        reach = tf.range(-11.0, 12.0)
        kernel = tf.exp(-tf.square(reach / tf.random.uniform([], 0.1, 2.0)) / 2.0)
        kernel /= tf.reduce_sum(kernel)
        channels = tf.shape(images)[-1]
        for shape in ([-1, 1, 1, 1], [1, -1, 1, 1]):
            filters = tf.tile(tf.reshape(kernel, shape), tf.stack([1, 1, channels, 1]))
            images = tf.nn.depthwise_conv2d(images, filters, [1, 1, 1, 1], "SAME")
        return images, label

    def clip(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.clip_by_value(images, 0.0, 1.0), label

    def grey(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.rgb_to_grayscale(images), label

    def tile(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.tile(images, [1, 1, 1, 3]), label

    def row(images: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.reshape(images, [-1]), label

    steps = (twice, crop, flip, jitter, blur, clip, grey, tile, row)
    return _chain(_records(files), *steps).batch(4, drop_remainder=True)


RATE = 48_000


def audio(count: int) -> D:
    """Ten seconds of sound. After gain and companding, only one second and every third sample are used."""

    def wave(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        time = tf.range(10 * RATE, dtype=tf.float32) / RATE
        pitch = 200.0 + 40.0 * tf.cast(i % 11, tf.float32)
        return tf.sin(2.0 * math.pi * pitch * time) * tf.exp(-0.1 * time), i % 35

    def gain(sound: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return sound * tf.random.uniform([], 0.5, 2.0), label

    def compand(sound: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.sign(sound) * tf.math.log1p(255.0 * tf.abs(sound)) / math.log(256.0), label

    def soften(sound: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.tanh(sound), label

    def cut(sound: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return sound[3 * RATE : 4 * RATE], label

    def downsample(sound: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return sound[::3], label

    def spectrum(sound: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.abs(tf.signal.stft(sound, 400, 160)), label

    steps = (gain, compand, soften, cut, downsample, spectrum)
    return _chain(D.range(count).map(wave), *steps).batch(16, drop_remainder=True)


WORDS = ["the", "quick", "brown", "foxes", "jumped", "over", "a", "lazy", "dog", "while", "seven", "more", "waited"]


def text(count: int) -> D:
    """Reviews: clean, reduce to stems, convert words to numbers. A last filter drops those with few stars."""

    def review(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        which = tf.random.stateless_uniform([300], tf.stack([i, i + 1]), 0, len(WORDS), tf.int32)
        return tf.strings.reduce_join(tf.gather(tf.constant(WORDS), which), separator=" "), i % 5

    def lower(line: tf.Tensor, stars: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.strings.lower(line), stars

    def clean(line: tf.Tensor, stars: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.strings.regex_replace(line, "[^a-z ]+", ""), stars

    def stems(line: tf.Tensor, stars: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.strings.regex_replace(line, r"(\w+?)(ing|s|ed)\b", r"\1"), stars

    def numbers(line: tf.Tensor, stars: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.strings.to_hash_bucket_fast(tf.strings.split(line)[:256], 30_000), stars

    def wanted(_: tf.Tensor, stars: tf.Tensor) -> tf.Tensor:
        return stars > 2

    dataset = _chain(D.range(count).map(review), lower, clean, stems, numbers)
    return dataset.filter(wanted).padded_batch(32, padded_shapes=([256], []), drop_remainder=True)


def detection(files: list[str]) -> D:
    """Photographs with boxes: scale the colours, then resize. A last filter drops those without a box."""

    def boxes(encoded: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        number = tf.cast(label % 3, tf.int32)
        corners = tf.random.stateless_uniform([number, 2], tf.stack([label, label]), 0.0, 0.5)
        return encoded, tf.concat([corners, corners + 0.3], axis=1), tf.fill([number], label)

    def decode(encoded: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.io.decode_jpeg(encoded, channels=3), boxes, labels

    def scale(image: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.cast(image, tf.float32) / 255.0, boxes, labels

    def normalise(image: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return (image - 0.45) / 0.225, boxes, labels

    def resize(image: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.image.resize(image, [320, 320]), boxes, labels

    def in_pixels(image: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return image, boxes * 320.0, labels

    def any_box(image: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.shape(labels)[0] > 0

    dataset = _chain(_records(files).map(boxes), decode, scale, normalise, resize, in_pixels).filter(any_box)
    return dataset.padded_batch(8, padded_shapes=([320, 320, 3], [None, 4], [None]), drop_remainder=True)


def tabular(count: int) -> D:
    """Rows of forty numbers, of which ten are used. All forty standardise them, so no valid order is cheaper."""

    def columns(i: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_normal([40], tf.stack([i, i]))

    def standardise(rows: tf.Tensor) -> tf.Tensor:
        mean, deviation = (of(rows, axis=1, keepdims=True) for of in (tf.reduce_mean, tf.math.reduce_std))
        return (rows - mean) / (deviation + 1e-6)

    def wanted(rows: tf.Tensor) -> tf.Tensor:
        return rows[:, :10]

    def bound(rows: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(rows, -3.0, 3.0)

    def buckets(rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.floor((rows + 3.0) * 10.0), tf.int32)

    return _chain(D.range(count).map(columns).batch(256, drop_remainder=True), standardise, wanted, bound, buckets)


# Pipelines over files of photographs, and pipelines over a number of elements.
OVER_PHOTOGRAPHS = {"resnet50": resnet50, "simclr": simclr, "detection": detection}
OVER_NUMBERS = {"audio": (audio, 2_000), "text": (text, 20_000), "tabular": (tabular, 200_000)}
