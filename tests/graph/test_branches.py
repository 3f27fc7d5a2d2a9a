"""Steps below a zip or a concatenation move within their branch, and the elements stay the same."""

from __future__ import annotations

import graph_oracle as oracle
import pecan
import pytest
import tensorflow as tf
from graph_orders import (
    CROP,
    DOUBLE,
    HALVE,
    ROOTS,
    Request,
    apply_steps,
    filter_step,
    images,
    on_image,
    outcome,
    propose,
    propose_all,
)

D = tf.data.Dataset
MIRROR = on_image(lambda x: x[:, ::-1], "mirrors")
LARGE, SMALL = [1000, 10, 12_296], [1000, 0.05, 776]
SOURCE = [1000, 0.1, 8]
READ = [1000, 0.1, 12_296]


def badly(dtype: tf.DType = tf.uint8) -> tf.data.Dataset:
    """A branch of three steps: one that makes images, an expensive one, and one that drops most of their values."""
    return apply_steps(images(32, dtype), [ROOTS, CROP])


def same(ordered: bytes, dataset: tf.data.Dataset) -> bool:
    return outcome(oracle.load(ordered, dataset)) == outcome(dataset)


JOINED = {
    "zip": lambda a, b: D.zip((a, b)),
    "concatenate": lambda a, b: a.concatenate(b),
    "zip of a range": lambda a, b: D.zip((a, D.range(8), b)),
    "a prefetch at the begin": lambda a, b: D.zip((a, D.range(8).prefetch(2).map(lambda i: i), b)),
}


# The steps of a branch between the two others.
BETWEEN = {"a prefetch at the begin": 2}


@pytest.mark.parametrize("name", JOINED)
def test_steps_of_each_branch_are_ordered(ordergraph, tmp_path, name):
    dataset = JOINED[name](badly(), badly())
    between = BETWEEN.get(name, 0)
    metrics = [SOURCE, READ, LARGE, SMALL, *[READ] * between, READ, LARGE, SMALL, SMALL]
    proposal = propose(ordergraph, tmp_path, dataset, metrics)
    second = 3 + between
    assert proposal.order == [0, 2, 1, *range(3, second + 1), second + 2, second + 1, second + 3], proposal
    assert "it joins several datasets" in proposal.reasons[-1]
    assert same(proposal.graph, dataset)
    # A branch that is in the best order stays as it is.
    half = propose(ordergraph, tmp_path, JOINED[name](badly(), apply_steps(images(), [CROP, ROOTS])), metrics)
    assert half.order[:3] == [0, 2, 1]
    assert half.order[second:] == list(range(second, second + 4))


def test_no_step_leaves_its_branch(ordergraph, tmp_path):
    """A crop downstream of a zip, and a crop at the end of a branch, stay on their side of it."""
    dataset = D.zip((apply_steps(images(), [ROOTS]), apply_steps(images(), [CROP])))
    dataset = dataset.map(lambda a, b: ((a[0] * 2, a[1]), b), name="doubles").map(
        lambda a, b: ((a[0][:4], a[1]), b), name="cuts"
    )
    steps = [SOURCE, READ, LARGE, READ, SMALL, LARGE, [1000, 10, 12_296], SMALL]
    proposal = propose(ordergraph, tmp_path, dataset, steps)
    assert proposal.order == [0, 1, 2, 3, 4, 6, 5], proposal
    assert same(proposal.graph, dataset)


def test_a_filter_moves_within_its_branch(ordergraph, tmp_path):
    branch = apply_steps(images(), [ROOTS, filter_step(lambda x, y: y % 2 == 0, "even")])
    dataset = D.zip((D.range(4), branch))
    proposal = propose(
        ordergraph, tmp_path, dataset, [SOURCE, READ, [1000, 10, 12_296], [500, 0.1, 12_296], [500, 0.1, 12_304]]
    )
    assert proposal.order == [0, 2, 1, 3], proposal
    assert same(proposal.graph, dataset)


def test_values_that_may_differ_decide_nothing_below_a_join(ordergraph, tmp_path):
    """Under approximate, a mean moves before a sum, unless a filter uses its values. Below a join the analysis does not say which it uses."""
    branch = apply_steps(images(32, tf.float32), [DOUBLE, HALVE])
    metrics = [SOURCE, READ, LARGE, SMALL, READ, SMALL]
    free = D.zip((D.range(8), branch))
    assert propose(ordergraph, tmp_path, free, metrics[:5], tolerance="APPROXIMATE").order == [0, 2, 1, 3]
    fixed = free.filter(lambda i, a: tf.reduce_mean(a[0]) > 0.5, name="bright")
    proposal = propose(ordergraph, tmp_path, fixed, metrics, tolerance="APPROXIMATE")
    assert proposal.order == []
    assert "bright could then drop other elements" in proposal.reasons[2]


def test_a_position_names_only_orders_within_branches(ordergraph, tmp_path):
    """Orders that a position names, whatever they cost."""
    flips = apply_steps(images(), [MIRROR, ROOTS])
    dataset = D.zip((apply_steps(images(), [ROOTS, CROP]), flips))
    orders = propose_all(ordergraph, tmp_path, {"one": Request(dataset, [], walks=12)})["one"]
    assert len(orders) >= 3
    for one in orders:
        assert one.order[6] == 6 and set(one.order[:3]) == {0, 1, 2}, one
        assert same(one.graph, dataset), one


def test_steps_move_within_branches_of_branches(ordergraph, tmp_path):
    dataset = D.zip((D.zip((badly(), D.range(8))), D.zip((badly(), badly()))))
    bad = [READ, LARGE, SMALL]
    proposal = propose(ordergraph, tmp_path, dataset, [SOURCE, *bad, READ, *bad, *bad, READ, SMALL])
    assert proposal.order == [0, 2, 1, 3, 4, 6, 5, 7, 9, 8, 10, 11], proposal
    assert same(proposal.graph, dataset)


def test_a_kept_position_holds_in_both_branches(ordergraph, tmp_path):
    kept = images().apply(
        pecan.keep_position_of(lambda d: D.zip((apply_steps(d, [ROOTS, CROP]), badly())).map(lambda a, b: a))
    )
    metrics = [SOURCE, *[READ, LARGE, SMALL] * 4]
    proposal = propose(ordergraph, tmp_path, kept, metrics)
    assert proposal.order == []
    assert sum("keep_position" in reason for reason in proposal.reasons) >= 3


def test_branches_that_share_a_dataset_stay(ordergraph, tmp_path):
    """The graph of two users of one dataset node is no tree. Each `zip` of one Python dataset has nodes of its own or is left alone."""
    shared = images()
    dataset = D.zip((apply_steps(shared, [ROOTS, CROP]), apply_steps(shared, [MIRROR])))
    proposal = propose(ordergraph, tmp_path, dataset, [SOURCE, READ, LARGE, SMALL, READ, READ, SMALL])
    if proposal.graph:
        assert same(proposal.graph, dataset)
