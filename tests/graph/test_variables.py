"""Variables that a dataset's functions change: random layers of Keras, and counters."""

from __future__ import annotations

import itertools
import os

import graph_oracle as oracle
import keras
import pytest
import tensorflow as tf

D = tf.data.Dataset
LAYERS = {
    "RandomFlip": {},
    "RandomRotation": {"factor": 0.4},
    "RandomZoom": {"height_factor": 0.4},
    "RandomContrast": {"factor": 0.9},
    "RandomBrightness": {"factor": 0.4},
    "RandomTranslation": {"height_factor": 0.4, "width_factor": 0.4},
    "RandomCrop": {"height": 4, "width": 4},
    "Dropout": {"rate": 0.5},
    "GaussianNoise": {"stddev": 0.5},
    "RandomHue": {"factor": 0.5},
    "RandomShear": {"x_factor": 0.5},
    "RandomErasing": {},
    "RandomElasticTransform": {},
    "RandAugment": {},
    "AugMix": {},
}


def run(cutgraph, work, dataset: tf.data.Dataset, **options) -> oracle.Cut:
    """Plans one dataset and writes its streams."""
    cut = oracle.cut_all(cutgraph, work, {"one": (dataset, options)})["one"]
    assert cut.error is None, cut.error
    return cut


def image(i: tf.Tensor) -> tf.Tensor:
    """An image that every augmentation changes."""
    return tf.reshape(tf.range(192, dtype=tf.float32), [8, 8, 3])


def augmented(aug, calls: int | None = None, n: int = 64) -> tf.data.Dataset:
    """Numbered augmentations of one image. Equal results show equal random values, because the image is the same."""
    return D.range(n).map(lambda i: (i, aug(image(i), training=True)), num_parallel_calls=calls)


def flat(streams):
    """Joins the elements of all streams."""
    return list(itertools.chain.from_iterable(streams))


@pytest.mark.parametrize("seed", [None, 11], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("calls", [None, 4], ids=["sequential", "parallel"])
def test_streams_and_epochs_draw_different_augmentations(cutgraph, tmp_path, calls, seed) -> None:
    layers = [keras.layers.RandomFlip(seed=seed), keras.layers.RandomRotation(0.4, seed=seed), keras.layers.RandomZoom(0.4)]
    aug = keras.Sequential(layers)
    dataset = augmented(aug, calls)
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams == 16
    assert cut.plan["determinism"] == ("DETERMINISM_CLASS_A" if calls else "DETERMINISM_CLASS_B")
    epochs = [flat(oracle.run_streams(cut, dataset, epoch=e)) for e in (0, 1)]
    for found in epochs:
        assert sorted(int(i) for i, _ in found) == list(range(64))
    images = {p.tobytes() for found in epochs for _, p in found}
    # Keras layers that run in parallel may draw the same numbers, also in a local run. If streams or epochs repeated each
    # other, at most 64 images would differ.
    assert len(images) == 128 if calls is None else len(images) > 100


# One layer for each kind of state. The others draw in the same way.
FEW_LAYERS = ("RandomRotation", "RandomBrightness", "RandomCrop", "Dropout", "RandomErasing", "RandAugment")


@pytest.mark.parametrize("name", LAYERS if os.environ.get("PECAN_SOAK") else FEW_LAYERS)
def test_random_layers_are_recognised(cutgraph, tmp_path, name: str) -> None:
    layer = getattr(keras.layers, name, None)
    if layer is None:
        pytest.skip("this Keras has no such layer")
    dataset = augmented(layer(**LAYERS[name], seed=5), n=8)
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams > 1
    assert cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    found = flat(oracle.run_streams(cut, dataset))
    assert sorted(int(i) for i, _ in found) == list(range(8))


def test_one_stream_gives_the_local_augmentations(cutgraph, tmp_path) -> None:
    aug = keras.layers.RandomRotation(0.4, seed=3)
    # The result of scan depends on all earlier elements, so the steps upstream of it are not divided.
    dataset = augmented(aug, n=6).scan(0, lambda state, element: (state, element))
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams == 1
    got = flat(oracle.run_streams(cut, dataset))
    local = list(oracle.elements(dataset))
    assert list(map(oracle.key, got)) == list(map(oracle.key, local))
    later = flat(oracle.run_streams(cut, dataset, epoch=1))
    assert list(map(oracle.key, later)) != list(map(oracle.key, local))


@pytest.mark.parametrize("where", ["map", "tf.function", "map_fn", "cond", "interleave", "batch"])
def test_random_layers_run_in_every_kind_of_step(cutgraph, tmp_path, where: str) -> None:
    layer = keras.layers.RandomRotation(0.4, seed=3)

    def aug(x):
        return layer(x, training=True)

    if where == "tf.function":
        aug = tf.function(aug)
    dataset = {
        "map": lambda: D.range(32).map(lambda i: (i, aug(image(i)))),
        "tf.function": lambda: D.range(32).map(lambda i: (i, aug(image(i)))),
        "map_fn": lambda: D.range(32).map(lambda i: (i, tf.map_fn(aug, tf.stack([image(i)] * 2)))),
        "cond": lambda: D.range(32).map(lambda i: (i, tf.cond(i >= 0, lambda: aug(image(i)), lambda: image(i)))),
        "interleave": lambda: D.range(16).interleave(
            lambda i: D.range(2).map(lambda j: (i * 2 + j, aug(image(i)))), cycle_length=2),
        "batch": lambda: D.range(32).filter(lambda i: i >= 0).batch(1).map(lambda i: (i[0], aug(image(i)[None]))),
    }[where]()
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams > 1
    assert cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    found = flat(oracle.run_streams(cut, dataset))
    assert sorted(int(i) for i, _ in found) == list(range(32))
    assert len({p.tobytes() for _, p in found}) == 32


@pytest.mark.parametrize("source", ["keras", "random_op"])
@pytest.mark.parametrize("step", ["map", "interleave"])
def test_deterministic_mode_draws_sequentially(cutgraph, tmp_path, step, source) -> None:
    state = keras.random.SeedGenerator(3)

    def draw(i):
        return keras.random.uniform([2], seed=state) if source == "keras" else tf.random.uniform([2])

    dataset = {
        "map": lambda: D.range(1000).map(draw, num_parallel_calls=4),
        "interleave": lambda: D.range(50).interleave(
            lambda i: D.range(20).map(draw), cycle_length=4, num_parallel_calls=4),
    }[step]()
    cut = run(cutgraph, tmp_path, dataset, mode="DETERMINISTIC")
    assert cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    first, second = ([oracle.key(e) for e in flat(oracle.run_streams(cut, dataset))] for _ in range(2))
    assert len(first) == 1000
    assert first == second


def test_layers_of_one_seed_stay_aligned(cutgraph, tmp_path) -> None:
    one, two = keras.layers.RandomRotation(0.4, seed=3), keras.layers.RandomRotation(0.4, seed=3)
    images = D.range(32).map(lambda i: one(image(i), training=True))
    dataset = D.zip((images, D.range(32).map(lambda i: two(image(i), training=True))))
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams > 1
    found = flat(oracle.run_streams(cut, dataset))
    assert len({a.tobytes() for a, _ in found}) == 32
    assert all(a.tobytes() == b.tobytes() for a, b in found)


def test_two_runs_of_one_stream_are_independent(cutgraph, tmp_path) -> None:
    dataset = augmented(keras.layers.RandomRotation(0.4, seed=3))
    cut = run(cutgraph, tmp_path, dataset)
    graph, _ = cut.graphs[0, 1]
    types = [tf.int64, tf.float32]
    both = zip(oracle.load_types(graph, types), oracle.load_types(graph, types), strict=True)
    assert all(bool(tf.reduce_all(a[1] == b[1])) for a, b in both)


def test_each_stream_has_its_own_counter(cutgraph, tmp_path) -> None:
    seen = tf.Variable(100, dtype=tf.int64)
    dataset = D.range(40).map(lambda i: (i, seen.assign_add(1)))
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams > 1 and cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    for _ in range(2):
        streams = oracle.run_streams(cut, dataset)
        assert sorted(int(i) for i, _ in flat(streams)) == list(range(40))
        for found in streams:
            assert [int(n) for _, n in found] == list(range(101, 101 + len(found)))
    assert int(seen) == 100


@pytest.mark.parametrize("kind", ["filter", "filter_after", "flat_map", "take_while"])
def test_datasets_with_deciding_counters_are_not_divided(cutgraph, tmp_path, kind: str) -> None:
    seen = tf.Variable(0, dtype=tf.int64)
    dataset = {
        "filter": lambda: D.range(40).filter(lambda i: seen.assign_add(1) % 4 == 0),
        "filter_after": lambda: D.range(40).map(lambda i: seen.assign_add(1)).filter(lambda n: n % 4 == 0),
        "flat_map": lambda: D.range(40).flat_map(lambda i: D.range(seen.assign_add(1) % 3)),
        "take_while": lambda: D.range(40).take_while(lambda i: seen.assign_add(1) < 10),
    }[kind]()
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams == 1 and cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    got = flat(oracle.run_streams(cut, dataset))
    assert oracle.multiset(got) == oracle.multiset(list(oracle.elements(dataset)))
