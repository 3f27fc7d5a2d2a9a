"""Maps that pass batches: only those that compute value by value, and the batches are the same."""

from __future__ import annotations

from collections.abc import Callable

import graph_oracle as oracle
import pytest
import tensorflow as tf
from test_proposals import (
    CROP,
    DOUBLE,
    EXPENSIVE,
    ROOTS,
    Asked,
    Step,
    on_label,
    on_picture,
    pictures,
    propose,
    propose_all,
    through,
)

CASTS = on_picture(lambda x: tf.cast(x, tf.float32), "casts")
MEANS = on_picture(lambda x: x - tf.constant([1.0, 2.0, 3.0]), "means")
SMALL, LARGE = 3_080, 12_296


def batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.batch(4, name="batches")


def rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.batch(3, drop_remainder=True, name="rows")


# A step that is cheap for its bytes, whose elements are small: its calls are what costs.
CALLS = [[1000, 0, 8], [1000, 0.001, SMALL], [1000, 0.02, SMALL], [250, 0.001, 4 * SMALL]]


@pytest.mark.parametrize("batch", [batches, rows])
@pytest.mark.parametrize("step", [DOUBLE, CASTS, on_label(lambda y: y + 1, "labels"), on_picture(lambda x: tf.cast(x, tf.float32) - tf.constant([1.0, 2.0, 3.0]), "channels")])
def test_a_map_whose_calls_are_expensive_moves_after_the_batch(ordergraph, tmp_path, step, batch):
    dataset = through(pictures(), [step, batch])
    told = propose(ordergraph, tmp_path, dataset, CALLS)
    assert told.order == [0, 2, 1], told
    moved = oracle.load(told.graph, dataset)
    assert [oracle.key(e) for e in oracle.elements(moved)] == [oracle.key(e) for e in oracle.elements(dataset)]


def test_a_position_may_name_an_order_past_a_batch_where_nothing_was_measured(ordergraph, tmp_path):
    dataset = through(pictures(), [DOUBLE, batches])
    asked = {"one": Asked(dataset, [], walks=5), "paper": Asked(dataset, [], walks=5, order="PAPER")}
    told = propose_all(ordergraph, tmp_path, asked)
    assert [one.order for one in told["one"]] == [[0, 2, 1]]
    assert told["paper"] == []


def test_a_map_that_widens_values_moves_after_the_batch(ordergraph, tmp_path):
    dataset = through(pictures(), [CASTS, batches])
    told = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, SMALL], [1000, 0.5, 4 * SMALL], [250, 5.0, 16 * SMALL]])
    assert told.order == [0, 2, 1], told
    assert told.after < told.before / 2


def test_a_map_that_narrows_values_moves_before_the_batch(ordergraph, tmp_path):
    narrows = on_picture(lambda x: tf.cast(x, tf.float16), "narrows")
    dataset = through(pictures(dtype=tf.float32), [batches, narrows])
    told = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, LARGE], [250, 5.0, 4 * LARGE], [250, 0.5, 2 * LARGE]])
    assert told.order == [0, 2, 1], told
    moved = oracle.load(told.graph, dataset)
    assert [oracle.key(e) for e in oracle.elements(moved)] == [oracle.key(e) for e in oracle.elements(dataset)]


STAYS_BEFORE_A_BATCH: dict[str, tuple[Step, str]] = {
    "a crop": (CROP, "moves or combines values of component 0, or changes or checks its size"),
    "a mean of the picture": (on_picture(lambda x: x - tf.reduce_mean(x), "centres"), "component 0"),
    "a filter": (lambda d: d.filter(lambda x, y: y > 2, name="some"), "selects single elements, not batches"),
    "what draws": (on_picture(lambda x: x + tf.random.uniform([], seed=1), "shines"), ""),
    "what may fail": (on_label(lambda y: 100 // y, "divides"), "can fail: before the batch for one row"),
    "another component": (lambda d: d.map(lambda x, y: (x + tf.cast(y, x.dtype), y), name="adds"), "reads components that it does not change"),
    "what has other last bits": (on_picture(tf.tanh, "expensive"), "last bits of component 0"),
    "what makes a component anew": (on_label(lambda y: tf.constant(1, tf.int64), "ones"), "component 1"),
}


@pytest.mark.parametrize("name", STAYS_BEFORE_A_BATCH)
def test_a_map_that_is_not_pointwise_stays_before_the_batch(ordergraph, tmp_path, name):
    step, why = STAYS_BEFORE_A_BATCH[name]
    dataset = through(pictures(dtype=tf.float32), [step, batches])
    told = propose(ordergraph, tmp_path, dataset, CALLS)
    assert told.order == [], told
    assert why in " ".join(told.reasons), told.reasons


def told_apart(shape: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Divides by something of the shape, in a function that was traced for any: what is known there of a row would be a constant."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def divides(x: tf.Tensor) -> tf.Tensor:
        return x / tf.cast(shape(x), tf.float32)

    return divides


@pytest.mark.parametrize("shape", [tf.size, tf.rank, lambda x: tf.size(tf.shape(x))])
def test_a_map_that_reads_size_or_rank_stays_on_its_side_of_the_batch(ordergraph, tmp_path, shape):
    step = on_picture(told_apart(shape), "counts")
    before, behind = (through(pictures(dtype=tf.float32), steps) for steps in ([step, batches], [rows, step]))
    told = propose_all(ordergraph, tmp_path, {"before": Asked(before, [CALLS], walks=9), "behind": Asked(behind, [], walks=9)})
    assert [one.order for one in told["before"]] == [[]], told
    assert "its function was traced for component 0" in told["before"][0].reasons[2]
    assert told["behind"] == []


def test_a_map_that_treats_rows_differently_stays_after_the_batch(ordergraph, tmp_path):
    weighs = on_picture(lambda x: x * tf.reshape(tf.constant([1.0, 2.0, 3.0]), [3, 1, 1, 1]), "weighs")
    dataset = through(pictures(dtype=tf.float32), [rows, weighs])
    told = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, LARGE], [333, 9.0, 3 * LARGE], [333, 0.001, SMALL]])
    assert told.order == [], told
    assert "treats the rows of component 0 differently" in " ".join(told.reasons), told.reasons


MIRRORS = on_picture(lambda x: x[:, :, ::-1], "mirrors")


@pytest.mark.parametrize(
    ("step", "orders"),
    [
        # Along dimension 3 of a batch lies what the mirror turns around, dimension 2 of a row.
        (MEANS, {(0, 1, 3, 2)}),
        (on_picture(lambda x: x - tf.constant([[float(line)] for line in range(32)]), "lines"), {(0, 1, 3, 2), (0, 3, 1, 2)}),
    ],
    ids=["the same", "another"],
)
def test_maps_on_both_sides_of_a_batch_are_compared_by_the_same_dimensions(ordergraph, tmp_path, step, orders):
    dataset = through(pictures(dtype=tf.float32), [MIRRORS, rows, step])
    told = propose_all(ordergraph, tmp_path, {"one": Asked(dataset, [], walks=30)})["one"]
    assert {tuple(one.order) for one in told} == orders
    for one in told:
        assert [oracle.key(e) for e in oracle.elements(oracle.load(one.graph, dataset))] == [oracle.key(e) for e in oracle.elements(dataset)]


def test_batches_after_a_filter_keep_their_plan(ordergraph, tmp_path):
    """Streams send full batches, and join their short last ones: by another plan (stream, index) would be another element."""
    some = lambda d: d.filter(lambda x, y: y > 2, name="some")  # noqa: E731
    dataset = through(pictures(), [some, EXPENSIVE, CROP, DOUBLE, batches])
    told = propose(ordergraph, tmp_path, dataset, [[1000, 0, 8], [1000, 0.001, SMALL], [900, 0.001, SMALL], *[[900, 9.0, SMALL]] * 2, [900, 0.02, SMALL], [225, 0.001, 4 * SMALL]], tolerance="APPROXIMATE")
    assert told.order and told.order[-1] == 5, told
    moved = oracle.load(told.graph, dataset)
    assert [oracle.key(e) for e in oracle.elements(moved)] == [oracle.key(e) for e in oracle.elements(dataset)]


def test_the_published_policy_does_not_move_batches(ordergraph, tmp_path):
    told = propose(ordergraph, tmp_path, through(pictures(), [ROOTS, batches]), CALLS, order="PAPER")
    assert "combines several elements into one" in told.reasons[2]
    assert told.order == []
