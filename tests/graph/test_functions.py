"""Steps inside the functions of `interleave` and `flat_map` are ordered like other steps, and keep the elements and their sequence."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import graph_oracle as oracle
import pecan
import pytest
import tensorflow as tf
from graph_orders import (
    DOUBLE,
    EXPENSIVE,
    FORCING,
    Request,
    Step,
    apply_steps,
    checked_proposals,
    filter_step,
    images,
    on_image,
    outcome,
    propose,
    propose_all,
)
from test_adversaries import ADVERSARIES, forcing_metrics, stays

D = tf.data.Dataset
SOME = filter_step(lambda x, y: y % 3 == 0, "some")
# Names of steps in functions have the position there.
POSITION = re.compile(r" \(step \d+ in [^)]*\)")
VARIABLE = tf.Variable(3, dtype=tf.uint8)

Caller = Callable[[Callable[[tf.Tensor], tf.data.Dataset]], tf.data.Dataset]
CALLERS: dict[str, Caller] = {
    "flat_map": lambda f: D.range(3).flat_map(f),
    "interleave": lambda f: D.range(3).interleave(f, cycle_length=2, block_length=2),
    "parallel interleave": lambda f: D.range(3).interleave(f, cycle_length=3, num_parallel_calls=2, deterministic=True),
    "interleave in flat_map": lambda f: D.range(2).flat_map(lambda i: D.range(2).interleave(f, cycle_length=2)),
}


def names(ordergraph, work, dataset: tf.data.Dataset) -> list[str]:
    path = work / "names.pb"
    path.write_bytes(oracle.serialize(dataset))
    shown = subprocess.run([ordergraph, "steps", path], capture_output=True, text=True, check=True)
    return [name.strip('"') for name in shown.stdout.strip().strip("[]").split(",")]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_cheap_filter_in_a_function_moves_before_an_expensive_step(ordergraph, tmp_path, caller):
    dataset = CALLERS[caller](lambda i: apply_steps(images(), [EXPENSIVE, SOME]))
    listed = names(ordergraph, tmp_path, dataset)
    # Without a step before the functions, the steps of the innermost function are the first in the list.
    assert [name.count(":") for name in listed[:3]] == [1 + (caller == "interleave in flat_map")] * 3, listed
    proposal = propose(ordergraph, tmp_path, dataset, FORCING)
    assert proposal.order[:3] == [0, 2, 1], proposal
    assert proposal.after < proposal.before
    ours, theirs = outcome(oracle.load(proposal.graph, dataset)), outcome(dataset)
    assert ours == theirs and len(ours[0]) > 8


@pytest.mark.parametrize("caller", ["flat_map", "interleave"])
@pytest.mark.parametrize("name", ADVERSARIES)
def test_no_proposed_order_in_a_function_changes_the_dataset(ordergraph, tmp_path, name, caller):
    """The adversaries of steps outside of functions. Steps that draw random values stay, because their values are not keyed."""
    adversary = ADVERSARIES[name]
    dataset, last = CALLERS[caller](lambda i: adversary.dataset), adversary.last
    proposals = checked_proposals(ordergraph, tmp_path, name, dataset, forcing_metrics(adversary.dataset, last), last + 2)
    for setting in ("EXACT", "APPROXIMATE", "ANY"):
        forced, why = proposals[setting], adversary.why(setting)
        draws = any("random" in traits for traits in forced.traits[:last])
        assert stays(forced, last) == (why != "" or draws), (setting, forced)
        assert draws or why in POSITION.sub("", forced.reasons[last - 1]), (setting, forced.reasons)


STAYS: dict[str, tuple[Callable[[tf.Tensor], tf.data.Dataset], str]] = {
    "a step that uses a variable of the outside": (
        lambda i: apply_steps(images(), [on_image(lambda x: x + VARIABLE, "adds"), SOME]),
        "no step can move past adds",
    ),
    "a step that its author fixed": (
        lambda i: apply_steps(images(), [lambda d: d.map(pecan.keep_position(lambda x, y: (x // 2, y)), name="kept"), SOME]),
        "no step can move past kept",
    ),
    "steps between marks": (
        lambda i: images().apply(DOUBLE).apply(pecan.keep_position_of(lambda d: apply_steps(d, [EXPENSIVE, SOME]))),
        "its author fixed its position",
    ),
    "a step of another function": (
        lambda i: images().apply(EXPENSIVE).interleave(lambda x, y: apply_steps(D.from_tensors((x, y)), [DOUBLE, SOME])),
        "",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_step_in_a_function_stays_with_a_reason(ordergraph, tmp_path, name):
    function, why = STAYS[name]
    dataset = D.range(3).interleave(function, cycle_length=2)
    proposal = propose(ordergraph, tmp_path, dataset, FORCING)
    moved = [number for position, number in enumerate(proposal.order) if number != position]
    if why:
        assert not moved and any(why in POSITION.sub("", reason) for reason in proposal.reasons), proposal
    else:
        # The expensive step is outside of the function with the filter.
        assert 1 not in moved, proposal
        assert outcome(oracle.load(proposal.graph, dataset)) == outcome(dataset) if moved else True


def test_steps_of_a_function_upstream_of_a_cached_step_stay(ordergraph, tmp_path):
    dataset = D.range(3).flat_map(lambda i: apply_steps(images(), [EXPENSIVE, SOME])).take(-1, name="pecan_cache")
    proposal = propose(ordergraph, tmp_path, dataset, FORCING)
    assert proposal.order == []
    assert "pecan.cache() stores the elements that it computes" in proposal.reasons[2], proposal.reasons


def test_a_fixed_function_keeps_its_steps(ordergraph, tmp_path):
    def written(i: tf.Tensor) -> tf.data.Dataset:
        return apply_steps(images(), [EXPENSIVE, SOME])

    assert len(names(ordergraph, tmp_path, D.range(3).flat_map(written))) == 4
    assert len(names(ordergraph, tmp_path, D.range(3).flat_map(pecan.keep_position(written)))) == 1
    marked = D.range(3).apply(pecan.keep_position_of(lambda d: d.flat_map(written)))
    assert not any(":" in name for name in names(ordergraph, tmp_path, marked))


def test_a_function_with_one_order_is_not_listed(ordergraph, tmp_path):
    dataset = D.range(3).flat_map(lambda i: images().shuffle(3, seed=1)).map(lambda x, y: (x, y + 1))
    assert not any(":" in name for name in names(ordergraph, tmp_path, dataset))


def test_steps_before_and_after_a_function_move_on_their_side(ordergraph, tmp_path):
    """Each function and each side of it is a section. The filter after the interleave does not enter the function."""
    step = on_image(lambda x: x * 3, "triples")
    dataset = apply_steps(images(), [DOUBLE, SOME]).interleave(
        lambda x, y: apply_steps(D.from_tensors((x, y)).repeat(2), [on_image(lambda x: x // 2, "halves"), SOME]), cycle_length=2
    )
    dataset = apply_steps(dataset, [step, filter_step(lambda x, y: y % 2 == 0, "even")])
    kinds = [name.partition("/")[0] + name.partition(":")[2] for name in names(ordergraph, tmp_path, dataset)]
    assert len(kinds) == 9, kinds
    elements = [1000, 1000, 1000, 300, 600, 600, 300, 300, 300, 50]
    seconds = [0.1, 0.1, 10, 0.1, 0.1, 10, 0.1, 0.1, 10, 0.1]
    measured = [[n, s, 12296] for n, s in zip(elements, seconds, strict=True)]
    proposal = propose(ordergraph, tmp_path, dataset, measured)
    assert proposal.order == [0, 2, 1, 3, 5, 4, 6, 8, 7], proposal
    assert outcome(oracle.load(proposal.graph, dataset)) == outcome(dataset)


def test_deterministic_streams_have_the_same_bytes(ordergraph, tmp_path):
    """A step that draws keeps its values when other steps of the function move after it."""
    draws: Step = on_image(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([]), "draws")
    dataset = D.range(4).interleave(lambda i: apply_steps(images(), [draws, on_image(tf.sqrt, "roots"), SOME]), cycle_length=2)
    metrics = [*FORCING[:2], *FORCING[1:]]
    request = Request(dataset.map(lambda x, y: (x, y)), [metrics], mode="DETERMINISTIC", streams=True)
    (proposal,) = propose_all(ordergraph, tmp_path, {"one": request})["one"]
    assert proposal.order[:4] == [0, 1, 3, 2], proposal
    registered, ordered = oracle.read_cut(tmp_path, "one.registered"), proposal.cut
    for stream in range(registered.streams):
        ours, theirs = (outcome(oracle.load(cut.graphs[0, stream][0], request.dataset)) for cut in (ordered, registered))
        assert ours == theirs and ours[0]


def with_failures(dataset: tf.data.Dataset) -> list[object]:
    """The elements, with "failed" in the place of a failed one."""
    found: list[object] = []
    iterator = iter(oracle.flatten(dataset))
    while True:
        try:
            found.append(oracle.key(tuple(t.numpy() for t in tf.nest.flatten(next(iterator)))))
        except tf.errors.InvalidArgumentError:
            found.append("failed")
        except StopIteration:
            return found


def some_fail(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x // tf.cast(tf.minimum(y % 4, 1), tf.uint8), y


@pytest.mark.parametrize("parallel", [False, True])
def test_a_filter_does_not_change_the_turns_of_an_interleave_over_failed_elements(ordergraph, tmp_path, parallel):
    """The filter drops some elements that fail. A parallel interleave gives a failed element its turn, a sequential one does not."""
    calls = {"num_parallel_calls": 2, "deterministic": True} if parallel else {}
    dataset = D.range(3).interleave(
        lambda i: images().map(some_fail, name="fails").filter(lambda x, y: (y + i) % 3 != 1, name="some"), cycle_length=3, **calls
    )
    proposal = propose(ordergraph, tmp_path, dataset, FORCING)
    if parallel:
        assert proposal.order == []
        assert "fails (step 2 in ParallelInterleaveDatasetV4" in proposal.reasons[2], proposal.reasons
        assert "a failed element takes a turn of" in proposal.reasons[2]
        return
    assert proposal.order[:3] == [0, 2, 1], proposal
    ours, theirs = with_failures(oracle.load(proposal.graph, dataset)), with_failures(dataset)
    assert "failed" in theirs and ours.count("failed") < theirs.count("failed")
    assert [e for e in ours if e != "failed"] == [e for e in theirs if e != "failed"]
