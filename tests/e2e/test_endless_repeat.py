"""A batch after `repeat()` without an end: each pass is an epoch, and its batches go on in the next one."""

from __future__ import annotations

import collections
import itertools
import os
import signal

import learned
import numpy as np
import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from test_commands import run_command

D = tf.data.Dataset
PASSES = 4


def _numbers(files) -> tf.data.Dataset:
    """The number of each record, once in each pass."""
    records = D.from_tensor_slices(files.records).interleave(tf.data.TFRecordDataset, cycle_length=2)
    return records.map(lambda r: tf.strings.to_number(tf.strings.split(r)[1], tf.int64))


def _shuffled(files) -> tf.data.Dataset:
    return _numbers(files).shuffle(20).repeat()


# Each pipeline with the function that returns the numbers in one of its elements.
PIPELINES = {
    "batch": (lambda f: _shuffled(f).batch(8), lambda e: e),
    "few rows remain": (lambda f: _shuffled(f).batch(7), lambda e: e),
    "drop remainder": (lambda f: _shuffled(f).batch(8, drop_remainder=True), lambda e: e),
    "more rows than a pass": (lambda f: _shuffled(f).batch(64), lambda e: e),
    "map after": (lambda f: _shuffled(f).batch(8).map(lambda b: b * 2).prefetch(2), lambda e: e // 2),
    "strings and padding": (
        lambda f: _shuffled(f)
        .map(lambda i: {"text": tf.strings.as_string(i), "row": tf.fill([i % 5], i), "id": i})
        .padded_batch(9, {"text": [], "row": [5], "id": []}),
        lambda e: e["id"],
    ),
    "random rows": (
        lambda f: _numbers(f).map(lambda i: (i, tf.random.uniform([]))).shuffle(20).repeat().batch(8),
        lambda e: e[0],
    ),
}


def _distributed(target, files, name="batch", **options) -> tf.data.Dataset:
    return PIPELINES[name][0](files).apply(pecan.distribute(target, streams=4, **options))


def _job(target) -> dict:
    return session.connect(target, 10).status()["jobs"][-1]


def _rows(name: str, element) -> list[int]:
    """The numbers in a batch, whose other components are checked."""
    if name == "strings and padding":
        for text, row, number in zip(element["text"].numpy(), element["row"].numpy(), element["id"].numpy(), strict=True):
            assert int(text) == number
            assert row.tolist() == [number] * (number % 5) + [0] * (5 - number % 5)
    return PIPELINES[name][1](element).numpy().tolist()


class _Passes:
    """Checks the rows of batches as they come: each row once in each pass, and less than a batch of it later."""

    def __init__(self, total: int) -> None:
        self.total, self.rows = total, collections.Counter()

    def add(self, rows: list[int]) -> None:
        self.rows.update(rows)
        read = self.rows.total()
        # Epochs come one after the other, and all but the rows that fill no batch come with their epoch.
        passes, size = read // self.total + 1, len(rows)
        assert max(self.rows.values()) <= passes
        if passes > 1:
            missing = sum(max(0, passes - 1 - self.rows[i]) for i in range(self.total))
            assert missing < size, (missing, size)


@pytest.mark.parametrize("name", PIPELINES)
def test_each_row_comes_once_in_each_pass_and_every_batch_is_full(cluster, files, name):
    dataset, local = _distributed(cluster.target, files, name), PIPELINES[name][0](files)
    assert dataset.element_spec == local.element_spec
    assert dataset.cardinality() == local.cardinality()
    sizes, passes = {len(_rows(name, element)) for element in local.take(5)}, _Passes(files.total)
    assert len(sizes) == 1
    for element in dataset.take(PASSES * files.total // min(sizes)):
        rows = _rows(name, element)
        assert {len(rows)} == sizes
        passes.add(rows)
    plan = _job(cluster.target)["plan"]
    assert plan["num_streams"] == 4 and plan["carry"]


def test_no_row_comes_a_second_time_before_its_pass_ends(cluster, files):
    """The whole of several passes, compared pass by pass: floor(p · n / b) batches have p rows of each number, but few."""
    size, passes = 7, 5
    batches = iter(_distributed(cluster.target, files, "few rows remain"))
    rows = collections.Counter()
    for n in range(1, passes + 1):
        while rows.total() + size <= n * files.total:
            rows.update(next(batches).numpy().tolist())
        missing = {i: n - rows[i] for i in range(files.total) if rows[i] != n}
        assert all(count == 1 for count in missing.values()), (n, missing)
        assert len(missing) == n * files.total % size


def test_a_deterministic_run_is_repeatable_with_any_workers(cluster, files):
    count = PASSES * files.total // 8

    def read(target):
        dataset = _distributed(target, files, "random rows", deterministic=True, seed=3)
        return [(e[0].numpy().tolist(), e[1].numpy().tolist()) for e in dataset.take(count)]

    expected = read(cluster.target)
    assert expected[0] != expected[files.total // 8]
    with pecan.LocalCluster(workers=1) as other:
        assert read(other.target) == expected


@pytest.mark.parametrize("deterministic", [False, True])
def test_killed_workers_change_no_row(files, deterministic):
    """A killed worker takes the remainders of several passes with it."""
    with pecan.LocalCluster(workers=2) as cluster:
        passes, seen = _Passes(files.total), []
        for n, element in enumerate(_distributed(cluster.target, files, "few rows remain", deterministic=deterministic, seed=3)):
            passes.add(element.numpy().tolist())
            seen.append(element.numpy().tolist())
            if n % 6 == 5:
                os.kill(cluster.workers.pop(0).process.pid, signal.SIGKILL)
                cluster.add_workers(1)
            if len(seen) == PASSES * files.total // 7:
                break
        if deterministic:
            with pecan.LocalCluster(workers=1) as other:
                again = _distributed(other.target, files, "few rows remain", deterministic=True, seed=3)
                assert [e.numpy().tolist() for e in again.take(len(seen))] == seen


# After these numbers of batches of 7 of 50 rows: in the first pass, near its end, at it, and in later passes.
@pytest.mark.parametrize("after", [3, 6, 7, 8, 14, 15, 25])
def test_a_trainer_resumes_at_any_batch(cluster, files, after):
    def distributed():
        return _distributed(cluster.target, files, "few rows remain", deterministic=True, seed=3)

    iterator = pecan.Iterator(distributed())
    for _ in range(after):
        next(iterator)
    state = iterator.state_dict()
    assert len(str(state)) < 1024
    again = pecan.Iterator(distributed())
    again.load_state_dict(state)
    expected = [next(iterator).numpy().tolist() for _ in range(20)]
    assert [next(again).numpy().tolist() for _ in range(20)] == expected


def _badly_ordered(files) -> tf.data.Dataset:
    """Batches of rows, of which the last step upstream of the shuffle drops most of the values."""
    rows = _numbers(files).map(lambda i: (i, tf.cast(i, tf.float32) + tf.range(64, dtype=tf.float32)), name="widens")
    rows = rows.map(lambda i, x: (i, tf.sqrt(x)), name="roots").map(lambda i, x: (i, x[:4]), name="crops")
    return rows.shuffle(20).repeat().batch(7)


def test_an_adopted_order_changes_no_batch_and_a_trainer_resumes_in_it(cluster, files, tmp_path):
    """The order was learned from an earlier job. All epochs have it, and their batches go on from one to the next."""

    def distributed(target, order):
        options = dict(streams=4, deterministic=True, seed=3, order=order, order_tolerance="exact")
        return _badly_ordered(files).apply(pecan.distribute(target, **options))

    def read(elements, count):
        return [(i.numpy().tolist(), x.numpy().tobytes()) for i, x in itertools.islice(elements, count)]

    count, saved = PASSES * files.total // 7, 10
    expected = read(distributed(cluster.target, "off"), count)
    measured = distributed(cluster.target, "auto")
    plan, steps = _job(cluster.target)["plan"], pecan.explain(measured).steps
    names = [step.name for step in steps]
    first, second = (names.index(step.name) for step in steps if step.label in ("roots", "crops"))
    ordered = [*names[:first], *names[first + 1 : second + 1], names[first], *names[second + 1 :]]
    kept = tmp_path / "learned"
    kept.write_bytes(learned.adopted_order(plan, ordered, names[first : second + 1]))
    with pecan.LocalCluster(workers=2) as other:
        merged = run_command("pecanctl", "profiles", "merge", str(kept), "--dispatcher", other.target.removeprefix("pecan://"))
        assert merged.stdout.startswith("1 of 1 datasets"), merged
        iterator = pecan.Iterator(distributed(other.target, "auto"))
        found = read(iterator, saved)
        state, job = iterator.state_dict(), _job(other.target)
        assert len(job["epochs"]) > 1 and all(epoch.get("ordered") for epoch in job["epochs"]), job["epochs"]
        del iterator
        os.kill(other.workers.pop(0).process.pid, signal.SIGKILL)
        again = pecan.Iterator(distributed(other.target, "auto"))
        again.load_state_dict(state)
        assert found + read(again, count - saved) == expected
        job = _job(other.target)
        assert job["plan"]["carry"] and job["order"]["state"] == "adopted"
        # Epoch 0 is open for the rows that it has left. They are the same in each order, because no step moves past the batch.
        read_again = [epoch for epoch in job["epochs"] if int(epoch.get("epoch", 0)) > 0]
        assert len(read_again) > 1 and all(epoch.get("ordered") for epoch in read_again), job["epochs"]


def test_a_trainer_that_resumes_often_gets_each_row_once_in_each_pass(cluster, files):
    passes, state = _Passes(files.total), None
    for _ in range(8):
        iterator = pecan.Iterator(_distributed(cluster.target, files, "few rows remain", seed=3))
        if state is not None:
            iterator.load_state_dict(state)
        for _ in range(4):
            passes.add(next(iterator).numpy().tolist())
        state = iterator.state_dict()
        del iterator


def test_two_iterators_begin_with_their_own_rows(cluster, files):
    """As locally: a further iterator begins again, and none of its batches has rows of another iterator."""
    dataset = _distributed(cluster.target, files, "few rows remain")
    first, second = iter(dataset), iter(dataset)
    one, two = _Passes(files.total), _Passes(files.total)
    for _ in range(PASSES * files.total // 7):
        one.add(next(first).numpy().tolist())
        two.add(next(second).numpy().tolist())


def test_trainers_of_a_shared_job_get_each_row_once_in_each_pass(cluster, files):
    options = dict(job_name="endless", max_outstanding_bytes=1)
    one, two = (iter(_distributed(cluster.target, files, "few rows remain", **options)) for _ in range(2))
    rows = collections.Counter()
    for _ in range(PASSES * files.total // 14):
        rows.update(next(one).numpy().tolist())
        rows.update(next(two).numpy().tolist())
    # A trainer may be one pass ahead of the other.
    assert max(rows.values()) <= PASSES + 1
    assert sum(max(0, PASSES - 1 - rows[i]) for i in range(files.total)) < 2 * files.total


def test_a_pass_over_little_data_stays_in_one_stream(cluster, files):
    dataset = _shuffled(files).batch(7).apply(pecan.distribute(cluster.target))
    batches = [e.numpy() for e in dataset.take(20)]
    assert {len(b) for b in batches} == {7}
    assert np.concatenate(batches)[: files.total].tolist() != sorted(range(files.total))
    plan = _job(cluster.target)["plan"]
    assert plan["num_streams"] == 1 and not plan.get("carry")
