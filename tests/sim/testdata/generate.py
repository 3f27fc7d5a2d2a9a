#!/usr/bin/env python3
"""Writes the dataset graphs of the simulation. Component 0 is the id. Component 1 is computed from it.

Usage: generate.py (needs tensorflow; the output is committed, so the tests do not). datasets_test.go states the ids of each
graph by hand. Sources have 16 splits, so there are four streams. No graph has a plan with a closing stream; the package's
doc gives the reason.
"""

from __future__ import annotations

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
D = tf.data.Dataset


def filled(x: tf.Tensor, words: int) -> tuple[tf.Tensor, tf.Tensor]:
    return x, tf.fill([words], x * 3 + 1)


def text(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A string whose length differs from element to element."""
    return x, tf.strings.reduce_join(tf.fill([x % 97 + 1], tf.strings.as_string(x)))


def ten(x: tf.Tensor) -> D:
    return D.range(x * 10, x * 10 + 10)


def uneven(x: tf.Tensor) -> D:
    return D.range(x * 100, x * 100 + (x * 7) % 23)


def plain(dataset: D) -> D:
    """Turns tf.data's autotuning off. Its thread may sleep for seconds of the real clock when its iterator is deleted."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


CASES: dict[str, D] = {
    # Batches of 15 rows, 30 KiB each.
    "batches": D.range(240).map(lambda x: filled(x, 256)).batch(15),
    # Strings of any length, a third of them removed. They are packed into frames.
    "texts": D.range(16).flat_map(ten).filter(lambda x: x % 3 > 0).map(text),
    # Streams of very different lengths. 20 KiB each: too large to share a frame.
    "uneven": D.range(16).flat_map(uneven).map(lambda x: filled(x, 2560), num_parallel_calls=2),
    # Values depend on derived seeds.
    "shuffled": D.range(16).flat_map(ten).shuffle(20).map(lambda x: filled(x, 128)),
    # Nondeterministic where the mode allows it: an index does not identify an element. The number of elements is known.
    "free": D.range(240).map(lambda x: filled(x, 256), num_parallel_calls=4, deterministic=False).batch(15),
    # Cached after the first step: an epoch writes the cache, and the next one reads it.
    "cached": D.range(16).flat_map(ten).map(lambda x: filled(x, 64)).take(-1, name="pecan_cache").map(lambda x, y: (x, tf.tile(y, [8]))),
    # 1 MiB each.
    "large": D.range(16).map(lambda x: filled(x, 128 << 10)),
}


def main() -> None:
    """Writes one graph for each case beside this script."""
    for name, dataset in CASES.items():
        graph = plain(dataset)._as_serialized_graph(strip_device_assignment=True).numpy()
        (HERE / f"{name}.graph").write_bytes(graph)


if __name__ == "__main__":
    main()
