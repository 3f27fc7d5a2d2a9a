"""If the dispatcher's rules allow two steps to change places, both orders give the same bits."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Callable

import gen
import numpy as np
import pytest
import tensorflow as tf


def inserting_steps() -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Steps that insert constants, and steps that keep some of them."""
    rows = [[2, 3], [0, 0], [0, 0]]
    return {
        "zeros": lambda x: tf.pad(x, rows),
        "ones": lambda x: tf.pad(x, rows, constant_values=1.0),
        "negative zeros": lambda x: tf.pad(x, rows, constant_values=-0.0),
        "columns of zeros": lambda x: tf.pad(x, [[0, 0], [1, 4], [0, 0]]),
        "columns of ones": lambda x: tf.pad(x, [[0, 0], [1, 4], [0, 0]], constant_values=1.0),
        "zeros and more": lambda x: tf.pad(x, rows) + 1.0,
        "halves": lambda x: x * 0.5,
        "by channel": lambda x: x * tf.constant([1.0, 2.0, 3.0]),
        "by signs": lambda x: x * tf.constant([1.0, -2.0, 3.0]),
        "negates": lambda x: -x,
        "adds zero": lambda x: x + 0.0,
        "adds": lambda x: x + 0.25,
        "around one": lambda x: (x - 1.0) * 3.0 + 1.0,
        "squares": tf.square,
        "by itself": lambda x: x * x,
        "roots": tf.sqrt,
        "rounds": tf.round,
        "distance to one": lambda x: tf.math.squared_difference(x, 1.0),
        "divides": lambda x: x / 3.0,
        "divides one": lambda x: 1.0 / (x + 2.0),
        "to bytes": lambda x: tf.cast(tf.cast(x * 255.0, tf.int32), tf.float32),
        "tiny": lambda x: x * 1e-39,
    }


def commuting_pairs(ordergraph: pathlib.Path, tmp_path: pathlib.Path, size: int | None) -> tuple[list[str], list[tuple[int, int]]]:
    """The names of the steps, and the pairs that may change places."""
    steps = gen.image_steps(size) | inserting_steps()

    def images(i: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = 32 if size else 20 + tf.cast(i, tf.int32)
        return (tf.zeros([rows, rows, 3]),) * len(steps)

    dataset = tf.data.Dataset.range(2).map(images)
    for number, step in enumerate(steps.values()):

        def change(*elements: tf.Tensor, number: int = number, step=step) -> tuple[tf.Tensor, ...]:
            return (*elements[:number], step(elements[number]), *elements[number + 1 :])

        dataset = dataset.map(change)
    path = tmp_path / "steps.pb"
    path.write_bytes(dataset._as_serialized_graph().numpy())
    done = subprocess.run([ordergraph, "pairs", path], check=True, capture_output=True, timeout=600)
    # The first step creates the images.
    return list(steps), [(a - 1, b - 1) for a, b in json.loads(done.stdout) if a and b]


@pytest.mark.parametrize("size", [32, None])
def test_steps_that_may_change_places_give_the_same_bits(ordergraph, tmp_path, size):
    names, pairs = commuting_pairs(ordergraph, tmp_path, size)
    assert len(pairs) > len(names) ** 2 / 12
    steps = gen.image_steps(size) | inserting_steps()
    for inserts, keeps in [
        ("zeros", "halves"), ("zeros", "by channel"), ("zeros", "by itself"), ("zeros", "columns of zeros"), ("ones", "around one"), ("ones", "roots"),
    ]:
        assert {(names.index(inserts), names.index(keeps)), (names.index(keeps), names.index(inserts))} & set(pairs), (inserts, keeps)

    def run(name: str, x: tf.Tensor) -> tf.Tensor:
        # A random step draws the same values at any position.
        tf.random.set_seed(names.index(name))
        return steps[name](x)

    shape = (32, 32, 3) if size else (20, 23, 3)
    x = tf.constant(np.random.default_rng(1).random(shape, np.float32))
    alone = {name: run(name, x) for name in {names[number] for pair in pairs for number in pair}}
    wrong = []
    for a, b in pairs:
        first, second = names[a], names[b]
        forth, back = run(second, alone[first]), run(first, alone[second])
        if forth.dtype != back.dtype or forth.shape != back.shape or forth.numpy().tobytes() != back.numpy().tobytes():
            wrong.append((first, second))
    assert not wrong
