"""Steps in another order give the same elements to the last bit, or the order is refused with a reason."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
from collections.abc import Callable, Sequence

import gen
import graph_oracle as oracle
import numpy as np
import pytest
import tensorflow as tf

D = tf.data.Dataset
Step = Callable[[tf.data.Dataset], tf.data.Dataset]


class Refused(Exception):
    """The order is refused."""


def reordered(ordergraph: pathlib.Path, tmp_path: pathlib.Path, dataset: tf.data.Dataset, order: Sequence[int]) -> tf.data.Dataset:
    """The dataset with its steps in another order. Numbers name the steps, and the source is 0."""
    path, out = tmp_path / "dataset.pb", tmp_path / "ordered.pb"
    path.write_bytes(oracle.serialize(dataset))
    names = json.loads(subprocess.run([ordergraph, "steps", path], check=True, capture_output=True).stdout)
    done = subprocess.run([ordergraph, "reorder", path, out, *(names[number] for number in order)], capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr)
    return oracle.load(out.read_bytes(), dataset)


def same(ours: tf.data.Dataset, theirs: tf.data.Dataset) -> bool:
    """Whether two datasets have the same elements in the same order."""
    ours, theirs = list(oracle.elements(ours)), list(oracle.elements(theirs))
    return len(ours) == len(theirs) > 0 and all(
        a.dtype == b.dtype and np.array_equal(a, b) for mine, other in zip(ours, theirs) for a, b in zip(mine, other)
    )


def images(size: int | None = 32) -> tf.data.Dataset:
    """Images of noise, all of one size or of several sizes, with a label."""

    def image(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        noise = tf.random.stateless_uniform([40, 40, 3], [i, i], 0, 256, tf.int32)
        rows = 32 if size else 30 + tf.cast(i, tf.int32)
        return tf.cast(noise[:rows, :rows], tf.uint8), i

    return D.range(8).map(image)


def on_image(step: Callable[[tf.Tensor], tf.Tensor], **options: object) -> Step:
    return lambda dataset: dataset.map(lambda x, y: (step(x), y), **options)


def through(dataset: tf.data.Dataset, steps: Sequence[Step]) -> tf.data.Dataset:
    for step in steps:
        dataset = step(dataset)
    return dataset


MEAN = tf.constant([1.0, 2.0, 3.0])
CAST = on_image(lambda x: tf.cast(x, tf.float32), num_parallel_calls=2)
NORMALISE = on_image(lambda x: (x - MEAN) / tf.constant([4.0, 5.0, 6.0]))
FLIP = on_image(tf.image.flip_left_right, num_parallel_calls=2, deterministic=True)
CROP = on_image(lambda x: x[4:20, 6:22])
TRIM = on_image(lambda x: x[4:20])
NEAREST = on_image(lambda x: tf.image.resize(x, [16, 16], "nearest"))
MAYBE_FLIP = on_image(lambda x: tf.cond(tf.shape(x)[0] > 3, lambda: x[:, ::-1], lambda: x))
GREY = on_image(lambda x: tf.image.rgb_to_grayscale(x))


def odd(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.filter(lambda x, y: y % 2 == 1)


def next_label(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda x, y: (x, y + 100))


@pytest.mark.parametrize("size", [32, None])
@pytest.mark.parametrize(
    ("steps", "order"),
    {
        "a cast moves after permutations": ([CAST, FLIP, CROP], [2, 3, 1]),
        "arithmetic moves after the cast": ([CAST, NORMALISE, FLIP, TRIM], [4, 3, 1, 2]),
        "a function traced for smaller images moves first": ([TRIM, FLIP], [2, 1]),
        "a choice of values": ([CAST, NEAREST], [2, 1]),
        "a rotation by nearest values": ([CAST, on_image(gen.rotated("NEAREST"))], [2, 1]),
        "a branch": ([CAST, MAYBE_FLIP, TRIM], [3, 2, 1]),
        "a filter moves upstream": ([CAST, FLIP, odd], [3, 2, 1]),
        "another component": ([CAST, next_label, FLIP], [3, 2, 1]),
        "past a prefetch": ([CAST, lambda d: d.prefetch(2), CROP], [3, 2, 1]),
        "steps after a shuffle change places": ([CAST, lambda d: d.shuffle(4, seed=3, reshuffle_each_iteration=False), FLIP, TRIM], [1, 2, 4, 3]),
    }.values(),
    ids=lambda value: "",
)
def test_another_order_gives_the_same_elements(ordergraph, tmp_path, steps, order, size):
    dataset = through(images(size), steps).batch(1)
    whole = [0, *order, len(order) + 1]
    assert same(reordered(ordergraph, tmp_path, dataset, whole), dataset)


def test_a_step_for_any_size_moves_before_a_step_that_changes_the_size(ordergraph, tmp_path):
    dataset = through(images(None), [CROP, GREY])
    assert same(reordered(ordergraph, tmp_path, dataset, [0, 2, 1]), dataset)


@pytest.mark.parametrize(
    ("steps", "order", "why"),
    [
        ([CAST, on_image(lambda x: x + x)], [2, 1], "would compute with another type"),
        ([CAST, on_image(gen.rotated("BILINEAR"))], [2, 1], "would compute with another type"),
        ([CAST, on_image(gen.rotated("NEAREST", fill=300.0))], [2, 1], "would compute with another type"),
        ([CAST, on_image(lambda x: tf.concat([x, tf.zeros([32, 32, 3])], 0))], [2, 1], "float"),
        ([on_image(lambda x: tf.reshape(tf.reshape(x, [1024, 3]), [32, 32, 3])), CROP], [2, 1], "traced for component 0"),
        ([CROP, GREY], [2, 1], "traced for component 0"),
        ([on_image(lambda x: tf.ensure_shape(x, [32, 32, 3])), CROP], [2, 1], "traced for component 0"),
        ([CAST, lambda d: d.shuffle(3), FLIP], [3, 2, 1], "only maps and filters move"),
        ([CAST, FLIP], [1, 1], "names it twice"),
        ([CAST, FLIP], [1], "the order has 2 steps, the dataset has 3"),
        ([CAST, FLIP, lambda d: d.map(lambda x, y: (x, y, y))], [1, 3, 2], "components"),
    ],
)
def test_impossible_orders_are_refused(ordergraph, tmp_path, steps, order, why):
    dataset = through(images(), steps)
    with pytest.raises(Refused, match=why):
        reordered(ordergraph, tmp_path, dataset, [0, *order])


# Steps that draw without a seed are left out, because two runs of them differ in any order.
DRAWN = ("at_random", "brightens", "contrasts", "saturates", "adds_noise")


@pytest.mark.parametrize("seed", range(24 if os.environ.get("PECAN_SOAK") else 3))
def test_random_orders_that_traits_allow_give_the_same_elements(ordergraph, tmp_path, seed):
    """Random orders that keep every ordering constraint. Some are refused, because a function was traced for a constant size."""
    rng = random.Random(seed)
    size = rng.choice([32, None])
    steps = {
        name: step for name, step in gen.image_steps(size).items() if not name.startswith("opaque") and not name.endswith(DRAWN)
    }
    compared = 0
    for _ in range(6):
        chosen = rng.sample(sorted(steps), 5)
        floats = on_image(lambda x: tf.cast(x, tf.float32) / 256)
        try:
            dataset = through(images(size), [floats, *(on_image(steps[name]) for name in chosen)])
            list(oracle.elements(dataset))
        except (ValueError, tf.errors.InvalidArgumentError):
            # One step does not support the result of another.
            continue
        path = tmp_path / "steps.pb"
        path.write_bytes(oracle.serialize(dataset))
        pairs = subprocess.run([ordergraph, "pairs", path], capture_output=True, text=True)
        if pairs.returncode:
            continue
        free = {tuple(pair) for pair in json.loads(pairs.stdout)}
        order = list(range(len(chosen) + 2))
        for _ in range(40):
            at = rng.randrange(1, len(order) - 1)
            if (order[at], order[at + 1]) in free:
                order[at], order[at + 1] = order[at + 1], order[at]
        try:
            ours = reordered(ordergraph, tmp_path, dataset, order)
        except Refused as refused:
            if "traced for component" not in str(refused):
                raise
            continue
        compared += order != sorted(order)
        assert same(ours, dataset), (size, chosen, order)
    assert compared, "no order was tried"
