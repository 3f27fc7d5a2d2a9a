"""Random Keras layers run on the workers. Each stream and epoch draws other values, and every element comes once."""

from __future__ import annotations

import keras
import numpy as np
import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset


def _image(i: tf.Tensor) -> tf.Tensor:
    """The same image for every element, so that equal results show equal random values."""
    return tf.reshape(tf.range(192, dtype=tf.float32), [8, 8, 3])


@pytest.mark.parametrize("seed", [None, 7], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("mode", ["exactly_once", "deterministic"])
def test_streams_and_epochs_draw_different_augmentations(cluster, mode, seed):
    contrast = keras.layers.RandomContrast(0.9)
    augment = keras.Sequential([keras.layers.RandomFlip(seed=seed), keras.layers.RandomRotation(0.4, seed=seed), contrast])
    dataset = D.range(64).map(lambda i: (i, augment(_image(i), training=True)), num_parallel_calls=tf.data.AUTOTUNE)
    distributed = dataset.batch(4).apply(pecan.distribute(cluster.target, processing_mode=mode))
    images = set()
    for _ in range(2):
        epoch = [(i.numpy(), x.numpy()) for i, x in distributed]
        assert sorted(np.concatenate([i for i, _ in epoch])) == list(range(64))
        images |= {image.tobytes() for _, batch in epoch for image in batch}
    # In mode deterministic the calls run one after the other. In other modes Keras layers that run in parallel may draw
    # the same numbers, also in a local run. If streams or epochs repeated each other, at most 64 images would differ.
    assert len(images) == 128 if mode == "deterministic" else len(images) > 100


def test_a_model_is_fitted_on_augmented_images(cluster):
    augment = keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomZoom(0.2)])
    labels = np.arange(64) % 2
    dataset = D.from_tensor_slices((np.random.default_rng(1).random((64, 8, 8, 3), np.float32), labels))
    dataset = dataset.shuffle(64).batch(8).map(lambda x, y: (augment(x, training=True), y), num_parallel_calls=tf.data.AUTOTUNE)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    history = model.fit(dataset.apply(pecan.distribute(cluster.target)), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
