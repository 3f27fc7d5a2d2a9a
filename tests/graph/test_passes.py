"""If the dispatcher's rules allow two steps to change places, both orders give the same bits."""

from __future__ import annotations

import json
import pathlib
import subprocess

import gen
import numpy as np
import pytest
import tensorflow as tf


def commuting_pairs(ordergraph: pathlib.Path, tmp_path: pathlib.Path, size: int | None) -> tuple[list[str], list[tuple[int, int]]]:
    """The names of the steps, and the pairs that may change places."""
    steps = gen.image_steps(size)

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
    steps = gen.image_steps(size)

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
        if forth.dtype != back.dtype or not np.array_equal(forth, back):
            wrong.append((first, second))
    assert not wrong
