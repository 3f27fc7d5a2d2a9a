"""Maps move past batches only if they compute value by value, and the batches stay the same."""

from __future__ import annotations

from collections.abc import Callable

import graph_oracle as oracle
import pecan
import pytest
import tensorflow as tf
from graph_orders import (
    CROP,
    DOUBLE,
    EXPENSIVE,
    ROOTS,
    Request,
    Step,
    apply_steps,
    filter_step,
    images,
    on_image,
    on_label,
    propose,
    propose_all,
)

CASTS = on_image(lambda x: tf.cast(x, tf.float32), "casts")
MEANS = on_image(lambda x: x - tf.constant([1.0, 2.0, 3.0]), "means")
SMALL, LARGE = 3_080, 12_296


def batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.batch(4, name="batches")


def rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.batch(3, drop_remainder=True, name="rows")


# A step with small elements that is cheap per byte, so that its calls are the main cost.
CALLS = [[1000, 0, 8], [1000, 0.001, SMALL], [1000, 0.02, SMALL], [250, 0.001, 4 * SMALL]]


@pytest.mark.parametrize("batch", [batches, rows])
@pytest.mark.parametrize("step", [DOUBLE, CASTS, on_label(lambda y: y + 1, "labels"), on_image(lambda x: tf.cast(x, tf.float32) - tf.constant([1.0, 2.0, 3.0]), "channels")])
def test_a_map_whose_calls_are_expensive_moves_after_the_batch(ordergraph, tmp_path, step, batch):
    dataset = apply_steps(images(), [step, batch])
    proposal = propose(ordergraph, tmp_path, dataset, CALLS)
    assert proposal.order == [0, 2, 1], proposal
    moved = oracle.load(proposal.graph, dataset)
    assert [oracle.key(e) for e in oracle.elements(moved)] == [oracle.key(e) for e in oracle.elements(dataset)]


def test_a_position_may_name_an_order_past_a_batch_where_nothing_was_measured(ordergraph, tmp_path):
    dataset = apply_steps(images(), [DOUBLE, batches])
    requests = {"one": Request(dataset, [], walks=5), "paper": Request(dataset, [], walks=5, order="PAPER")}
    proposals = propose_all(ordergraph, tmp_path, requests)
    assert [one.order for one in proposals["one"]] == [[0, 2, 1]]
    assert proposals["paper"] == []


def test_no_map_moves_past_a_batch_that_goes_on_in_the_next_epoch(ordergraph, tmp_path):
    """The next epoch may have another order, and it reads the rows that this one keeps back."""
    narrows = on_image(lambda x: tf.cast(x, tf.float16), "narrows")
    some, stays = filter_step(lambda x, y: y > 0, "some"), lambda d: d.map(pecan.keep_position(lambda x, y: (x, y + 1)))
    dataset = apply_steps(images(dtype=tf.float32), [some, lambda d: d.repeat(), lambda d: d.batch(3, name="threes"), narrows, stays])
    metrics = [[1000, 0, 8], [1000, 0.001, LARGE], [1000, 0, LARGE], [1000, 0, LARGE], [250, 5.0, 4 * LARGE], [250, 0.5, 2 * LARGE], [250, 0.1, 2 * LARGE]]
    requests = {
        f"{order} {carry}": Request(dataset, [metrics], tolerance="ANY", order=order, walks=40, carry=carry)
        for order in ("AUTO", "PAPER")
        for carry in (0, 2)
    }
    moved = {name: [one.order for one in proposals if one.order] for name, proposals in propose_all(ordergraph, tmp_path, requests).items()}
    assert moved == {"AUTO 0": [[0, 1, 2, 4, 3, 5]] * 2, "AUTO 2": [], "PAPER 0": [], "PAPER 2": []}


def test_a_map_that_widens_values_moves_after_the_batch(ordergraph, tmp_path):
    dataset = apply_steps(images(), [CASTS, batches])
    proposal = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, SMALL], [1000, 0.5, 4 * SMALL], [250, 5.0, 16 * SMALL]])
    assert proposal.order == [0, 2, 1], proposal
    assert proposal.after < proposal.before / 2


def test_a_map_that_narrows_values_moves_before_the_batch(ordergraph, tmp_path):
    narrows = on_image(lambda x: tf.cast(x, tf.float16), "narrows")
    dataset = apply_steps(images(dtype=tf.float32), [batches, narrows])
    proposal = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, LARGE], [250, 5.0, 4 * LARGE], [250, 0.5, 2 * LARGE]])
    assert proposal.order == [0, 2, 1], proposal
    moved = oracle.load(proposal.graph, dataset)
    assert [oracle.key(e) for e in oracle.elements(moved)] == [oracle.key(e) for e in oracle.elements(dataset)]


STAYS_BEFORE_A_BATCH: dict[str, tuple[Step, str]] = {
    "a crop": (CROP, "moves or combines values of component 0, or changes or checks its size"),
    "a mean of the picture": (on_image(lambda x: x - tf.reduce_mean(x), "centres"), "component 0"),
    "a filter": (lambda d: d.filter(lambda x, y: y > 2, name="some"), "selects single elements, not batches"),
    "a random map": (on_image(lambda x: x + tf.random.uniform([], seed=1), "shines"), ""),
    "a map that can fail": (on_label(lambda y: 100 // y, "divides"), "can fail: before the batch for one row"),
    "a map that reads another component": (lambda d: d.map(lambda x, y: (x + tf.cast(y, x.dtype), y), name="adds"), "reads components that it does not change"),
    "a map whose last bits differ": (on_image(tf.tanh, "expensive"), "last bits of component 0"),
    "a map that replaces a component": (on_label(lambda y: tf.constant(1, tf.int64), "ones"), "component 1"),
}


@pytest.mark.parametrize("name", STAYS_BEFORE_A_BATCH)
def test_a_map_that_is_not_pointwise_stays_before_the_batch(ordergraph, tmp_path, name):
    step, why = STAYS_BEFORE_A_BATCH[name]
    dataset = apply_steps(images(dtype=tf.float32), [step, batches])
    proposal = propose(ordergraph, tmp_path, dataset, CALLS)
    assert proposal.order == [], proposal
    assert why in " ".join(proposal.reasons), proposal.reasons


def by_shape(shape: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Divides by a value computed from the shape, in a function traced for any shape. With a known shape the value is a constant."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def divides(x: tf.Tensor) -> tf.Tensor:
        return x / tf.cast(shape(x), tf.float32)

    return divides


@pytest.mark.parametrize("shape", [tf.size, tf.rank, lambda x: tf.size(tf.shape(x))])
def test_a_map_that_reads_size_or_rank_stays_on_its_side_of_the_batch(ordergraph, tmp_path, shape):
    step = on_image(by_shape(shape), "counts")
    before, after = (apply_steps(images(dtype=tf.float32), steps) for steps in ([step, batches], [rows, step]))
    proposals = propose_all(ordergraph, tmp_path, {"before": Request(before, [CALLS], walks=9), "after": Request(after, [], walks=9)})
    assert [one.order for one in proposals["before"]] == [[]], proposals
    assert "its function was traced for component 0" in proposals["before"][0].reasons[2]
    assert proposals["after"] == []


def test_a_map_that_treats_rows_differently_stays_after_the_batch(ordergraph, tmp_path):
    weighs = on_image(lambda x: x * tf.reshape(tf.constant([1.0, 2.0, 3.0]), [3, 1, 1, 1]), "weighs")
    dataset = apply_steps(images(dtype=tf.float32), [rows, weighs])
    proposal = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, LARGE], [333, 9.0, 3 * LARGE], [333, 0.001, SMALL]])
    assert proposal.order == [], proposal
    assert "treats the rows of component 0 differently" in " ".join(proposal.reasons), proposal.reasons


MIRRORS = on_image(lambda x: x[:, :, ::-1], "mirrors")


@pytest.mark.parametrize(
    ("step", "orders"),
    [
        # The mirror reverses dimension 2 of a row, which is dimension 3 of a batch.
        (MEANS, {(0, 1, 3, 2)}),
        (on_image(lambda x: x - tf.constant([[float(line)] for line in range(32)]), "lines"), {(0, 1, 3, 2), (0, 3, 1, 2)}),
    ],
    ids=["the same", "another"],
)
def test_maps_on_both_sides_of_a_batch_are_compared_by_the_same_dimensions(ordergraph, tmp_path, step, orders):
    dataset = apply_steps(images(dtype=tf.float32), [MIRRORS, rows, step])
    proposals = propose_all(ordergraph, tmp_path, {"one": Request(dataset, [], walks=30)})["one"]
    assert {tuple(one.order) for one in proposals} == orders
    for one in proposals:
        assert [oracle.key(e) for e in oracle.elements(oracle.load(one.graph, dataset))] == [oracle.key(e) for e in oracle.elements(dataset)]


def test_batches_after_a_filter_keep_their_plan(ordergraph, tmp_path):
    """Streams send full batches, and the partial last ones are joined. With another plan (stream, index) would be another element."""
    some = lambda d: d.filter(lambda x, y: y > 2, name="some")  # noqa: E731
    dataset = apply_steps(images(), [some, EXPENSIVE, CROP, DOUBLE, batches])
    proposal = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, SMALL], [900, 0.001, SMALL], *[[900, 9.0, SMALL]] * 2, [900, 0.02, SMALL], [225, 0.001, 4 * SMALL]], tolerance="APPROXIMATE")
    assert proposal.order and proposal.order[-1] == 5, proposal
    moved = oracle.load(proposal.graph, dataset)
    assert [oracle.key(e) for e in oracle.elements(moved)] == [oracle.key(e) for e in oracle.elements(dataset)]


def test_the_published_policy_does_not_move_batches(ordergraph, tmp_path):
    proposal = propose(ordergraph, tmp_path, apply_steps(images(), [ROOTS, batches]), CALLS, order="PAPER")
    assert "combines several elements into one" in proposal.reasons[2]
    assert proposal.order == []
