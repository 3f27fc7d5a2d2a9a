"""Steps with `pecan.keep_position` and `pecan.keep_position_of`: the Go code sees them as barriers, and the elements stay the same."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import subprocess

import graph_oracle as oracle
import pecan
import pytest
import tensorflow as tf
from graph_orders import FORCING, Step, images, propose

D = tf.data.Dataset
BARRIER = "its author fixed its position with pecan.keep_position"


def ask(ordergraph: pathlib.Path, tmp_path: pathlib.Path, what: str, dataset: tf.data.Dataset) -> list[str]:
    path = tmp_path / "dataset.pb"
    path.write_bytes(oracle.serialize(dataset))
    return json.loads(subprocess.run([ordergraph, what, path], check=True, capture_output=True).stdout)


def by_sign(x: tf.Tensor) -> tf.Tensor:
    # Only AutoGraph can convert this function.
    if x % 2 == 0:
        return x
    else:
        return -x


class Scale:
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        while x < 3:
            x = x + 2
        return x

    def method(self, x: tf.Tensor) -> tf.Tensor:
        return self(x)


def first_rows(x: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(tf.range(x), [x, 0])


def together(*parts: tf.Tensor) -> dict[str, object]:
    return {"sum": parts[0] + parts[1], "both": parts, "nothing": None}


def a_step(x: tf.Tensor) -> tf.Tensor:
    inner = pecan.keep_position(by_sign)
    return inner(x) + 1


def in_a_loop(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(2):
        x = pecan.keep_position(by_sign)(x) + 3
    return x


def small(x: tf.Tensor) -> tf.Tensor:
    return by_sign(x) < 4


PAIRS = D.zip((D.range(6), D.range(6)))
MAPS = {
    "a function": (D.range(6), by_sign),
    "a lambda": (D.range(6), lambda x: x + 1),
    "a tf.function": (D.range(6), tf.function(by_sign)),
    "a function without AutoGraph": (D.range(6), tf.autograph.experimental.do_not_convert(lambda x: x - 1)),
    "a partial function": (D.range(6), functools.partial(lambda x, y: x * y, y=3)),
    "an object": (D.range(6), Scale()),
    "a method": (D.range(6), Scale().method),
    "one of TensorFlow's": (D.range(6), tf.square),
    "two arguments": (PAIRS, lambda a, b: (b, a)),
    "any number of arguments, structures and nothing": (PAIRS, together),
    "a dict": (D.from_tensor_slices({"a": [1, 2], "b": [3, 4]}), lambda e: e["a"]),
    "ragged results": (D.range(6), first_rows),
    "ragged arguments": (D.range(6).map(first_rows), lambda x: x + 1),
    "sparse results": (D.range(6), lambda x: tf.sparse.from_dense([x, 0])),
    "no argument is used": (D.range(6), lambda x: 7),
}


def flat(dataset: tf.data.Dataset) -> list[object]:
    parts = [[t for t in tf.nest.flatten(e, expand_composites=True) if t is not None] for e in dataset]
    return [[t.numpy().tolist() for t in part] for part in parts]


@pytest.mark.parametrize("name", MAPS)
def test_a_map_with_keep_position_is_a_barrier_and_computes_the_same(ordergraph, tmp_path, name):
    source, function = MAPS[name]
    plain, kept = source.map(function), source.map(pecan.keep_position(function))
    before, found = (ask(ordergraph, tmp_path, "barriers", dataset) for dataset in (plain, kept))
    # After the map one more step splits ragged and sparse components.
    assert found.count(BARRIER) == 1 and BARRIER not in before and len(found) == len(before)
    assert kept.element_spec == plain.element_spec
    assert flat(kept) == flat(plain) != []


@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.map(pecan.keep_position(by_sign), num_parallel_calls=2, deterministic=True),
        lambda ds: ds.map(tf.function(pecan.keep_position(by_sign))),
        lambda ds: ds.map(in_a_loop),
        lambda ds: ds.map(a_step),
        lambda ds: ds.filter(pecan.keep_position(lambda x: x > 1)),
        lambda ds: ds.filter(pecan.keep_position(small)),
        lambda ds: ds.map(pecan.keep_position(pecan.keep_position(by_sign))),
    ],
    ids=[
        "in parallel",
        "inside of a tf.function",
        "in a loop",
        "inside of another",
        "a filter",
        "a filter by a call",
        "twice",
    ],
)
def test_other_uses_of_keep_position(ordergraph, tmp_path, step):
    assert ask(ordergraph, tmp_path, "barriers", step(D.range(6)))[-1] == BARRIER


def test_a_function_is_a_barrier_only_at_its_keep_position(ordergraph, tmp_path):
    dataset = D.range(6).map(by_sign).map(pecan.keep_position(by_sign)).map(by_sign)
    assert [why == BARRIER for why in ask(ordergraph, tmp_path, "barriers", dataset)] == [False, True, False]


@pytest.mark.parametrize(
    ("steps", "barriers"),
    {
        "a batch": (lambda ds: ds.batch(4), 1),
        "several": (lambda ds: ds.shuffle(4, seed=1).filter(lambda x: x > 2).batch(2).map(by_all), 4),
        "one inside of another": (lambda ds: ds.apply(pecan.keep_position_of(lambda ds: ds.batch(2))).map(by_all), 4),
        "none": (lambda ds: ds, 0),
    }.values(),
    ids=["a batch", "several", "one inside of another", "none"],
)
def test_steps_in_keep_position_of_are_barriers(ordergraph, tmp_path, steps, barriers):
    def whole(between: Step) -> tf.data.Dataset:
        return D.range(9).map(by_sign).apply(between).map(lambda x: x + 1)

    plain, kept = whole(steps), whole(pecan.keep_position_of(steps))
    found = [why == BARRIER for why in ask(ordergraph, tmp_path, "barriers", kept)]
    # The two marks are barriers as well.
    assert found == [False, *[True] * (barriers + 2), False]
    assert kept.element_spec == plain.element_spec and kept.cardinality() == plain.cardinality()
    assert flat(kept) == flat(plain) != []


def by_all(x: tf.Tensor) -> tf.Tensor:
    return tf.where(x > 0, x, -x)


def test_keep_position_of_includes_steps_up_to_a_join_of_datasets(ordergraph, tmp_path):
    other = D.range(9, 18)
    dataset = (
        D.range(9).apply(pecan.keep_position_of(lambda ds: ds.concatenate(other).batch(2).map(by_all))).map(by_all)
    )
    assert [why == BARRIER for why in ask(ordergraph, tmp_path, "barriers", dataset)] == [True] * 5 + [False]


def test_orders_that_move_a_barrier_are_refused(ordergraph, tmp_path):
    def moves(dataset: tf.data.Dataset, order: list[int]) -> str:
        path = tmp_path / "dataset.pb"
        names = ask(ordergraph, tmp_path, "steps", dataset)
        done = subprocess.run(
            [ordergraph, "reorder", path, tmp_path / "out.pb", *(names[i] for i in order)],
            capture_output=True,
            text=True,
        )
        return done.stderr

    free = D.range(9).map(by_sign).map(by_all)
    kept = D.range(9).map(by_sign).map(pecan.keep_position(by_all)).map(by_all)
    fenced = D.range(9).map(by_sign).apply(pecan.keep_position_of(lambda ds: ds.map(by_all))).map(by_all)
    assert moves(free, [1, 0]) == moves(kept, [0, 1, 2]) == moves(fenced, [0, 1, 2, 3, 4]) == ""
    for dataset, order in (
        (kept, [1, 0, 2]),
        (kept, [0, 2, 1]),
        (kept, [2, 1, 0]),
        (fenced, [4, 1, 2, 3, 0]),
        (fenced, [2, 1, 0, 3, 4]),
    ):
        assert "cannot move to position" in moves(dataset, order), order


def expensive(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.sqrt(tf.cast(x, tf.float32)), y


def crop(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x[4:20, 6:22], y


def few(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return y > 5


KEPT_PAIRS = {
    "the step that would move": lambda ds, keep: ds.map(expensive).map(keep(crop)),
    "the step that it would pass": lambda ds, keep: ds.map(keep(expensive)).map(crop),
    "a filter": lambda ds, keep: ds.map(expensive).filter(keep(few)),
    "the map before a filter": lambda ds, keep: ds.map(keep(expensive)).filter(few),
}
FENCED_PAIRS = {
    "the step that would move": lambda ds, fence: ds.map(expensive).apply(fence(lambda ds: ds.map(crop))),
    "the step that it would pass": lambda ds, fence: ds.apply(fence(lambda ds: ds.map(expensive))).map(crop),
    "a filter": lambda ds, fence: ds.map(expensive).apply(fence(lambda ds: ds.filter(few))),
    "both": lambda ds, fence: ds.apply(fence(lambda ds: ds.map(expensive).map(crop))),
    "no step": lambda ds, fence: ds.map(expensive).apply(fence(lambda ds: ds)).map(crop),
}


@pytest.mark.parametrize("order", ["AUTO", "PAPER"])
@pytest.mark.parametrize("name", KEPT_PAIRS)
def test_no_proposed_order_moves_a_barrier_or_a_step_past_it(ordergraph, tmp_path, name, order):
    free, kept = (KEPT_PAIRS[name](images(), keep) for keep in (lambda function: function, pecan.keep_position))
    if order == "AUTO":
        assert propose(ordergraph, tmp_path, free, FORCING).order == [0, 2, 1]
    proposal = propose(ordergraph, tmp_path, kept, FORCING, order=order)
    assert proposal.order == []
    assert any(BARRIER in reason for reason in proposal.reasons), proposal.reasons


@pytest.mark.parametrize("name", FENCED_PAIRS)
def test_no_proposed_order_moves_steps_in_keep_position_of_or_a_step_past_them(ordergraph, tmp_path, name):
    plain, fenced = (FENCED_PAIRS[name](images(), fence) for fence in (lambda steps: steps, pecan.keep_position_of))
    assert propose(ordergraph, tmp_path, plain, FORCING).order == [0, 2, 1]
    for marks in itertools.combinations(range(2, 6), 2):
        # For any position of the marks: a mark passes elements on unchanged, and costs nothing.
        metrics, others = FORCING[:2], iter(FORCING[2:])
        for slot in range(2, 6):
            metrics = [*metrics, [metrics[-1][0], 0, metrics[-1][2]] if slot in marks else next(others)]
        proposal = propose(ordergraph, tmp_path, fenced, metrics, tolerance="ANY")
        assert proposal.order == []
        assert sum(BARRIER in reason for reason in proposal.reasons) >= 2, proposal.reasons


def test_keep_position_changes_the_fingerprint_and_not_the_plan(cutgraph, tmp_path):
    pipelines = {
        "plain": D.range(100).filter(lambda x: x > 3).batch(4),
        "kept": D.range(100).filter(pecan.keep_position(lambda x: x > 3)).batch(4),
        "fenced": D.range(100).filter(lambda x: x > 3).apply(pecan.keep_position_of(lambda ds: ds.batch(4))),
    }
    for name, dataset in pipelines.items():
        (tmp_path / f"{name}.pb").write_bytes(oracle.serialize(dataset))
        (tmp_path / f"{name}.json").write_text("{}")
    subprocess.run([cutgraph, tmp_path], check=True)
    plans = [json.loads((tmp_path / f"{name}.plan.json").read_text()) for name in pipelines]
    assert len({plan["fingerprint"] for plan in plans}) == 3
    assert (
        len({(plan["num_streams"], plan["batch_strategy"], plan["cut"]["kind"], plan["batch_rows"]) for plan in plans}) == 1
    )
