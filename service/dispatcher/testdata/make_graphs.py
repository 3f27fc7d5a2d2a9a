#!/usr/bin/env python3
"""Writes the small dataset graphs of this directory. Run it with TensorFlow installed, and commit what it writes."""

from __future__ import annotations

import pathlib

import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent


def datasets() -> dict[str, tf.data.Dataset]:
    """One dataset for each way in which the service treats graphs."""
    return {
        "range": tf.data.Dataset.range(100),
        "range_batch": tf.data.Dataset.range(100).batch(8),
        "filter_batch_map": tf.data.Dataset.range(100).filter(lambda x: x % 3 > 0).batch(8).map(lambda x: x + 1),
        "slices": tf.data.Dataset.from_tensor_slices(list(range(64))).map(lambda x: x * 2),
        "crop_last": pictures().map(lambda x: tf.math.exp(tf.math.sin(x)) / 3.0).map(lambda x: x[:8, :8]),
        "py_function": tf.data.Dataset.range(4).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)),
    }


def pictures() -> tf.data.Dataset:
    """Tensors of which most is cut off behind."""
    return tf.data.Dataset.range(4000).map(lambda i: tf.fill([64, 64, 3], tf.cast(i, tf.float32)))


def main() -> None:
    for name, dataset in datasets().items():
        graph = dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)
        (HERE / f"{name}.graph").write_bytes(graph.numpy())


if __name__ == "__main__":
    main()
