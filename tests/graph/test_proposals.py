"""Under exact no proposed order changes an element, for any measurements. Every step that stays has a reason."""

from __future__ import annotations

import gen
import graph_oracle as oracle
import numpy as np
import pytest
import tensorflow as tf
from graph_orders import (
    CROP,
    DOUBLE,
    EXPENSIVE,
    FORCING,
    HALVE,
    ROOTS,
    Step,
    apply_steps,
    asserts,
    filter_step,
    images,
    on_image,
    on_label,
    propose,
    steps_in,
)

D = tf.data.Dataset


# tests/graph/test_adversaries.py has more such pairs, under every tolerance.
STAYS: dict[str, tuple[Step, Step, str]] = {
    "a map that changes the input of a filter": (
        filter_step(lambda x, y: y > 2, "some"),
        on_label(lambda y: y + 1, "adds"),
        "changes component 1, which some reads",
    ),
    "a component that another result uses": (
        lambda d: d.map(lambda x, y: (x[:, ::-1], y + tf.cast(tf.reduce_max(x[0]), tf.int64)), name="mirrors"),
        on_image(lambda x: x[4:20], "rows"),
        "mirrors reads component 0 for another result or a check",
    ),
    "a random step past a filter": (
        filter_step(lambda x, y: y > 5, "some"),
        on_image(lambda x: tf.cast(x[0], tf.float32) * tf.random.uniform([], seed=1), "draws"),
        "its random values would depend on which elements some drops",
    ),
    "a function whose last bits depend on the position of a value": (EXPENSIVE, CROP, "the last bits of the other's result can depend"),
    "sums past a resize": (DOUBLE, HALVE, "both compute values"),
    "a crop past a mirror": (on_image(lambda x: x[:, ::-1] // 2, "mirrors"), CROP, "one moves values along dimension 1"),
    "a cached step": (
        lambda d: d.map(lambda x, y: (x // 2, y), name="expensive").take(-1, name="pecan_cache"),
        filter_step(lambda x, y: y > 5, "some"),
        "no step can move past",
    ),
    "a shuffle": (lambda d: d.map(lambda x, y: (tf.sqrt(tf.cast(x, tf.float32)), y), name="expensive").shuffle(3), CROP, "no step can move past"),
    "a repeat": (lambda d: d.map(lambda x, y: (x // 2, y), name="expensive").repeat(2), filter_step(lambda x, y: y > 5, "some"), "no step can move past"),
    "a take": (lambda d: d.map(lambda x, y: (x // 2, y), name="expensive").take(5), filter_step(lambda x, y: y > 5, "some"), "no step can move past"),
    "a cache": (lambda d: d.map(lambda x, y: (x // 2, y), name="expensive").cache(), filter_step(lambda x, y: y > 5, "some"), "no step can move past"),
    "an interleave": (
        lambda d: d.map(lambda x, y: (x // 2, y), name="expensive").interleave(lambda x, y: D.from_tensors((x, y))),
        filter_step(lambda x, y: y > 5, "some"),
        "no step can move past",
    ),
    "a step that gives more components": (
        lambda d: d.map(lambda x, y: (x // 2, y, y), name="more"),
        lambda d: d.filter(lambda x, y, z: y > 5, name="some"),
        "no step can move past",
    ),
    "a crop past a decode": (
        lambda d: d.map(lambda x, y: (tf.io.serialize_tensor(x), y), name="writes").map(
            lambda x, y: (tf.ensure_shape(tf.io.parse_tensor(x, tf.uint8), [32, 32, 3]), y), name="decodes"
        ),
        CROP,
        "decodes converts string to uint8 (component 0)",
    ),
    "a slice of a row": (lambda d: d.map(lambda x, y: (x[0], y), name="row"), on_image(lambda x: x[:4], "few"), "changes the number of dimensions from 3 to 2"),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_step_that_would_change_elements_stays_with_a_reason(ordergraph, tmp_path, name):
    first, second, why = STAYS[name]
    dataset = apply_steps(images(32, tf.float32 if second is HALVE else tf.uint8), [first, second])
    metrics = [*FORCING[:3], *[FORCING[-1]] * (len(steps_in(dataset)) - 3)]
    proposal = propose(ordergraph, tmp_path, dataset, metrics)
    assert proposal.order == []
    assert why in proposal.reasons[-1], proposal.reasons
    assert "registered order" in proposal.why


@pytest.mark.parametrize(
    ("first", "second", "tolerance"),
    [
        (ROOTS, CROP, "EXACT"),
        (EXPENSIVE, CROP, "APPROXIMATE"),
        (EXPENSIVE, filter_step(lambda x, y: y > 5, "some"), "EXACT"),
        (EXPENSIVE, filter_step(lambda x, y: 10 // (y + 1) > 2, "divides"), "EXACT"),
        (filter_step(lambda x, y: tf.reduce_max(x) > 3, "bright"), filter_step(lambda x, y: y % 3 == 0, "some"), "EXACT"),
        (lambda d: d.map(asserts, name="asserts"), filter_step(lambda x, y: y > 5, "some"), "APPROXIMATE"),
        (DOUBLE, HALVE, "APPROXIMATE"),
        (on_image(tf.image.random_flip_left_right, "flip"), HALVE, "APPROXIMATE"),
        (on_image(lambda x: x[:, ::-1], "mirror"), HALVE, "APPROXIMATE"),
        (on_image(tf.math.square, "squares"), HALVE, "ANY"),
        (on_image(lambda x: tf.cast(x, tf.int32), "widens"), CROP, "EXACT"),
    ],
)
@pytest.mark.parametrize("size", [32, None])
def test_a_step_moves_if_that_saves_cpu_time(ordergraph, tmp_path, size, first, second, tolerance):
    dataset = apply_steps(images(size, tf.float32 if second is HALVE else tf.uint8), [first, second])
    proposal = propose(ordergraph, tmp_path, dataset, FORCING, tolerance=tolerance)
    assert proposal.order == [0, 2, 1], proposal
    assert proposal.after < proposal.before
    assert "upstream" in proposal.reasons[-1]
    ours, theirs = (list(oracle.elements(d)) for d in (oracle.load(proposal.graph, dataset), dataset))
    assert len(ours) == len(theirs)
    if tolerance == "EXACT":
        assert [oracle.key(e) for e in ours] == [oracle.key(e) for e in theirs]


REFUSED_BY_A_TRIAL: dict[str, tuple[Step, Step, str]] = {
    "a rotation and a mirror": (on_image(gen.rotated("BILINEAR"), "turns"), on_image(lambda x: x[:, ::-1], "mirrors"), "one reverses dimension 1"),
    "two random steps": (
        on_image(lambda x: tf.image.random_flip_left_right(x, seed=1), "flips"),
        on_image(lambda x: tf.image.random_crop(x, [32, 16, 3], seed=2), "crops"),
        "both change values by random numbers",
    ),
    "a crop and a mix": (on_image(gen.blurred, "blurs"), CROP, "one removes, adds or rearranges values along dimension 0,1"),
    "two mixes": (on_image(gen.blurred, "blurs"), HALVE, "both combine several values along dimension 0,1"),
    "two sums": (DOUBLE, on_image(lambda x: x + 1, "adds"), "both compute values"),
    "a step that is no weighted sum": (on_image(tf.math.square, "squares"), HALVE, "more than weighted sums"),
}


@pytest.mark.parametrize("name", REFUSED_BY_A_TRIAL)
def test_an_order_that_a_trial_would_refuse_is_not_proposed(ordergraph, tmp_path, name):
    first, second, why = REFUSED_BY_A_TRIAL[name]
    proposal = propose(ordergraph, tmp_path, apply_steps(images(32, tf.float32), [first, second]), FORCING, tolerance="APPROXIMATE")
    assert proposal.order == []
    assert why in proposal.reasons[-1], proposal.reasons


@pytest.mark.parametrize("tolerance", ["APPROXIMATE", "ANY"])
@pytest.mark.parametrize(
    "decides",
    [
        lambda d: d.filter(lambda x, y: tf.reduce_mean(x) > 0.5, name="bright"),
        lambda d: d.map(lambda x, y: (x, tf.cast(tf.reduce_mean(x), tf.int64)), name="means").filter(lambda x, y: y > 3, name="bright"),
        lambda d: d.batch(2).flat_map(lambda x, y: D.from_tensor_slices((x, y)).take(tf.cast(x[0, 0, 0, 0], tf.int64)), name="bright"),
        lambda d: d.map(lambda x, y: (y, x, y), name="more").filter(lambda y, x, z: tf.reduce_mean(x) > 0.5, name="bright"),
    ],
)
def test_no_filter_reads_values_that_may_differ(ordergraph, tmp_path, decides, tolerance):
    dataset = apply_steps(images(32, tf.float32), [DOUBLE, HALVE])
    assert propose(ordergraph, tmp_path, dataset, FORCING, tolerance=tolerance).order == [0, 2, 1]
    dataset = decides(dataset)
    proposal = propose(ordergraph, tmp_path, dataset, [*FORCING, *[[100, 0.01, 80]] * (len(steps_in(dataset)) - 4)], tolerance=tolerance)
    assert proposal.order == [] or proposal.order.index(1) < proposal.order.index(2), proposal
    assert "could then drop other elements" in proposal.reasons[2]


def test_a_filter_moves_past_a_step_with_keyed_randomness(ordergraph, tmp_path):
    flips = on_image(lambda x: tf.image.random_flip_left_right(x, seed=1), "flips")
    dataset = apply_steps(images(), [flips, filter_step(lambda x, y: y > 5, "some")])
    assert propose(ordergraph, tmp_path, dataset, FORCING, mode="EXACTLY_ONCE").order == []
    assert propose(ordergraph, tmp_path, dataset, FORCING, mode="DETERMINISTIC").order == [0, 2, 1]


def test_no_step_moves_before_a_cache_or_without_metrics(ordergraph, tmp_path):
    dataset = apply_steps(images(), [EXPENSIVE, CROP])
    assert "not known yet" in propose(ordergraph, tmp_path, dataset, []).why
    kept = dataset.take(-1, name="pecan_cache")
    proposal = propose(ordergraph, tmp_path, kept, [*FORCING, FORCING[-1]])
    assert proposal.order == []
    assert "pecan.cache() stores the elements" in proposal.reasons[1]


def test_the_published_policy_moves_what_its_authors_moved(ordergraph, tmp_path):
    """Table 1 of the paper: resize moves to the front of decode and crop, flip, rotate, shear, resize, mean, cast and one-hot."""

    def decode(record: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(tf.ensure_shape(tf.io.decode_png(record), [None, None, 3]), tf.float32), y

    files = [bytes(tf.io.encode_png(tf.cast(tf.random.stateless_uniform([300, 280 + i, 3], [i, i], 0, 256, tf.int32), tf.uint8)).numpy()) for i in range(4)]
    dataset = D.from_tensor_slices((files, tf.range(4))).map(decode, name="decode")
    for name, step in {
        "flip": tf.image.random_flip_left_right,
        "rotate": gen.rotated("BILINEAR"),
        "shear": gen.rotated("BILINEAR"),
        "resize": lambda x: tf.image.resize(x, [224, 224]),
        "mean": lambda x: x - tf.constant([1.0, 2.0, 3.0]),
    }.items():
        dataset = dataset.apply(on_image(step, name))
    dataset = dataset.map(lambda x, y: (tf.cast(x, tf.float16), tf.one_hot(y, 10, dtype=tf.float16)), name="cast").batch(2)
    large, small = 950_004, 602_116
    metrics = [[4, 0.1, 110_004], [4, 0.1, large], *[[4, 0.1, large]] * 3, [4, 0.1, small], [4, 0.1, small], [4, 0.1, 301_076], [2, 0, 602_152]]
    proposal = propose(ordergraph, tmp_path, dataset, metrics, order="PAPER")
    assert proposal.order == [0, 4, 1, 2, 3, 5, 6, 7]
    assert "shrink elements go first" in proposal.reasons[4]
    assert "converts string to float32" in proposal.reasons[0]
    assert "number of dimensions from 0 to 1" in proposal.reasons[6]
    sizes = [[part.shape for part in element] for element in oracle.elements(oracle.load(proposal.graph, dataset))]
    assert sizes == [[(2, 224, 224, 3), (2, 10)]] * 2


def test_a_resize_moves_before_a_normalisation(ordergraph, tmp_path):
    """A resize that reads all values moves before a mirror and an affine step, also if images have several sizes."""
    shrinks = on_image(lambda x: tf.image.resize(x, [8, 8], antialias=True), "shrinks")
    normalises = on_image(lambda x: (x - 127.5) / 63.75, "normalises")
    flips = on_image(lambda x: x[:, ::-1], "flips")
    for size in (None, 32):
        dataset = apply_steps(images(size, tf.float32), [normalises, flips, shrinks])
        large, small = 12_296, 776
        proposal = propose(ordergraph, tmp_path, dataset, [[1000, 0.1, 8], [1000, 0.1, large], *[[1000, 1.0, large]] * 2, [1000, 1.0, small]], tolerance="APPROXIMATE")
        assert proposal.order == [0, 3, 1, 2], proposal
        ours, theirs = (oracle.elements(each) for each in (oracle.load(proposal.graph, dataset), dataset))
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine[0], other[0], atol=1e-4)
        assert propose(ordergraph, tmp_path, dataset, [[1000, 0.1, 8], [1000, 0.1, large], *[[1000, 1.0, large]] * 2, [1000, 1.0, small]], tolerance="EXACT").order == []


@pytest.mark.parametrize("by", [{"scale": [0.25, 0.25]}, {"translation": [0.0, 2.0]}, {}], ids=["by a number", "shifted", "as it is"])
def test_a_mirror_does_not_move_past_a_scale_of_a_part_of_the_image(ordergraph, tmp_path, by):
    def scales(x: tf.Tensor) -> tf.Tensor:
        to = tf.constant([8, 8])
        scale = by.get("scale") or tf.cast(to, tf.float32) / tf.cast(tf.shape(x)[:2], tf.float32)
        return tf.raw_ops.ScaleAndTranslate(images=x[tf.newaxis], size=to, scale=scale, translation=by.get("translation", [0.0, 0.0]))[0]

    dataset = apply_steps(images(None, tf.float32), [on_image(lambda x: x[:, ::-1], "flips"), on_image(scales, "scales")])
    proposal = propose(ordergraph, tmp_path, dataset, [[1000, 0.1, 8], [1000, 0.1, 12_296], [1000, 9.0, 12_296], [1000, 0.1, 776]], tolerance="APPROXIMATE")
    assert proposal.order == ([] if by else [0, 2, 1]), proposal


@pytest.mark.parametrize(("kind", "order"), [(tf.float16, [0, 2, 1, 3]), (tf.bfloat16, [0, 1, 3, 2])])
def test_the_published_policy_moves_a_cast_to_a_slow_type_to_the_end(ordergraph, tmp_path, kind, order):
    mirrors, turns = (on_image(lambda x, along=along: tf.reverse(x, [along]), name) for along, name in ((1, "mirrors"), (0, "turns")))
    dataset = apply_steps(images(32, tf.float32), [mirrors, on_image(lambda x: tf.cast(x, kind), "narrows"), turns])
    proposal = propose(ordergraph, tmp_path, dataset, [[8, 0.1, 8], *[[8, 0.1, 12_296]] * 2, *[[8, 0.1, 6_152]] * 2], order="PAPER")
    assert proposal.order == order, proposal
    assert [oracle.key(e) for e in oracle.elements(oracle.load(proposal.graph, dataset))] == [oracle.key(e) for e in oracle.elements(dataset)]


@pytest.mark.parametrize("order", ["PAPER", "AUTO"])
@pytest.mark.parametrize("size", [32, None])
def test_a_cast_to_floats_moves_before_rotations_of_bytes(ordergraph, tmp_path, order, size):
    """Bytes are rotated by nearest values with zeros as fill, which works for floats as well. A constant size prevents the move."""
    dataset = images(size)
    for name, step in {
        "flip": tf.image.random_flip_left_right,
        "rotate": gen.rotated("NEAREST"),
        "shear": gen.rotated("NEAREST"),
        "resize": lambda x: tf.image.resize(x, [8, 8]),
    }.items():
        dataset = dataset.apply(on_image(step, name))
    large, small = 3_080, 776
    metrics = [[8, 0.1, large], [8, 0.1, large], *[[8, 1.0, large]] * 3, [8, 0.1, small]]
    proposal = propose(ordergraph, tmp_path, dataset, metrics, order=order, tolerance="ANY")
    if size is None:
        assert proposal.order == [0, 4, 1, 2, 3], proposal.reasons
    ours = dataset if proposal.graph is None else oracle.load(proposal.graph, dataset)
    assert [[(part.dtype, part.shape) for part in element] for element in oracle.elements(ours)] == [[("float32", (8, 8, 3)), ("int64", ())]] * 8


@pytest.mark.parametrize("order", ["PAPER", "AUTO"])
def test_a_step_traced_for_one_size_stays_after_the_step_that_produces_that_size(ordergraph, tmp_path, order):
    """Table 1 of the paper: the step to grey moves before flip in crop and resize, flip, jitter, clip, to grey and tile."""
    dataset = images(None, tf.float32)
    for name, step in {
        "resize": lambda x: tf.image.resize(x, [24, 24]),
        "flip": tf.image.random_flip_left_right,
        "jitter": lambda x: tf.image.random_brightness(x, 0.3),
        "clip": lambda x: tf.clip_by_value(x, 0.0, 1.0),
        "grey": tf.image.rgb_to_grayscale,
        "tile": lambda x: tf.tile(x, [1, 1, 3]),
    }.items():
        dataset = dataset.apply(on_image(step, name))
    large, middle, small = 13_000, 6_920, 2_312
    sizes = [large, middle, middle, middle, middle, small, middle]
    metrics = [[8, 0.1 if name in (0, 1, 5, 6) else 1.0, size] for name, size in enumerate(sizes)]
    proposal = propose(ordergraph, tmp_path, dataset, metrics, order=order, tolerance="ANY")
    assert proposal.order[:3] == [0, 1, 5], proposal
    assert proposal.order[-1] == 6
    shapes = [[part.shape for part in element] for element in oracle.elements(oracle.load(proposal.graph, dataset))]
    assert shapes == [[(24, 24, 3), ()]] * 8


def blurs(x: tf.Tensor) -> tf.Tensor:
    """Blurs each channel separately, for any number of channels."""
    kernel = tf.constant([0.25, 0.5, 0.25])
    for shape in ([-1, 1, 1, 1], [1, -1, 1, 1]):
        filters = tf.tile(tf.reshape(kernel, shape), tf.stack([1, 1, tf.shape(x)[-1], 1]))
        x = tf.nn.depthwise_conv2d(x[tf.newaxis], filters, [1, 1, 1, 1], "SAME")[0]
    return x


@pytest.mark.parametrize("tolerance", ["ANY", "APPROXIMATE"])
@pytest.mark.parametrize("order", ["PAPER", "AUTO"])
def test_the_published_policy_converts_to_grey_before_it_blurs(ordergraph, tmp_path, order, tolerance):
    """Table 1 of the paper: the step to grey moves before flip, jitter, blur and clip. Clipping changes weighted sums."""
    files = [bytes(tf.io.encode_png(tf.cast(tf.random.stateless_uniform([30, 28 + i, 3], [i, i], 0, 256, tf.int32), tf.uint8)).numpy()) for i in range(4)]
    dataset = D.from_tensor_slices((files, tf.range(4))).map(lambda png, y: (tf.cast(tf.io.decode_png(png), tf.float32), y), name="decode")
    for name, step in {
        "resize": lambda x: tf.image.resize(x, [24, 24]),
        "flip": tf.image.random_flip_left_right,
        "jitter": lambda x: tf.image.random_brightness(x, 0.3),
        "blur": blurs,
        "clip": lambda x: tf.clip_by_value(x, 0.0, 1.0),
        "grey": tf.image.rgb_to_grayscale,
        "tile": lambda x: tf.tile(x, [1, 1, 3]),
    }.items():
        dataset = dataset.apply(on_image(step, name))
    large, middle, small = 13_000, 6_920, 2_312
    sizes = [3_000, large, middle, middle, middle, middle, middle, small, middle]
    proposal = propose(ordergraph, tmp_path, dataset, [[4, 1.0, size] for size in sizes], order=order, tolerance=tolerance)
    if tolerance == "APPROXIMATE" and order == "AUTO":
        assert proposal.order == [] and "more than weighted sums" in proposal.reasons[6], proposal
        return
    assert proposal.order == [0, 1, 6, 2, 3, 4, 5, 7], proposal
    shapes = [[part.shape for part in element] for element in oracle.elements(oracle.load(proposal.graph, dataset))]
    assert shapes == [[(24, 24, 3), ()]] * 4
