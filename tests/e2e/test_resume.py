"""A trainer saves its position with its model, and another process goes on behind it."""

import json
import subprocess
import sys
import time

import pecan
import pytest
import tensorflow as tf

from tests.e2e.script import ROOT

D = tf.data.Dataset


def _numbers(n=200):
    return D.range(n).map(lambda i: i * 3)


def _mixed(n=200):
    """Rows that are counted only when they are made: the streams' remainders are joined."""
    return D.range(n).filter(lambda i: i % 7 != 3).map(lambda i: i * 3).batch(4)


def _strings(n=200):
    return D.range(n).map(tf.strings.as_string)


DATASETS = {"blocks": _numbers, "elements": _strings, "joined batches": _mixed}


def _value(element):
    """As JSON can hold it."""
    value = element.numpy()
    return value.decode() if isinstance(value, bytes) else value.tolist()


def _values(elements):
    return [_value(e) for e in elements]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("deterministic", [False, True], ids=["exactly once", "deterministic"])
def test_every_step_of_a_pass_can_be_gone_on_from(cluster, name, deterministic):
    """All tokens are restored here, in a job of their own each, and the rest is what the first run had not used."""
    make = DATASETS[name]

    def distributed():
        return make().apply(pecan.distribute(cluster.target, deterministic=deterministic, seed=5))

    iterator = pecan.Iterator(distributed())
    states, seen = [iterator.state_dict()], []
    for element in iterator:
        seen.append(_value(element))
        states.append(iterator.state_dict())
    assert len(states) == len(seen) + 1
    for used in range(0, len(seen), max(1, len(seen) // 20)):
        again = pecan.Iterator(distributed())
        again.load_state_dict(states[used])
        rest = _values(again)
        if deterministic:
            assert rest == seen[used:], used
        else:
            flat = [row for part in seen[:used] + rest for row in (part if isinstance(part, list) else [part])]
            whole = [row for part in seen for row in (part if isinstance(part, list) else [part])]
            assert sorted(flat) == sorted(whole), used


RESTORE = """
import json, sys
import tensorflow as tf, pecan
from tests.e2e.test_resume import DATASETS, _values
target, name, states = sys.argv[1], sys.argv[2], json.load(sys.stdin)
for state in states:
    dataset = DATASETS[name]().apply(pecan.distribute(target, deterministic=True))
    iterator = pecan.Iterator(dataset)
    iterator.load_state_dict(state)
    print(json.dumps(_values(iterator)), flush=True)
"""


def _restore(target, name, states):
    """What another process reads that goes on from each of the states."""
    run = subprocess.run(
        [sys.executable, "-c", RESTORE, target, name],
        input=json.dumps(states),
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_another_process_goes_on_from_every_step(cluster):
    """L1: the seed was chosen by the service, and travels with the state."""
    iterator = pecan.Iterator(_numbers().apply(pecan.distribute(cluster.target, deterministic=True)))
    states, seen = [iterator.state_dict()], []
    for element in iterator:
        seen.append(int(element))
        states.append(iterator.state_dict())
    rests = _restore(cluster.target, "blocks", states)
    assert len(rests) == 201
    for used, rest in enumerate(rests[:-1]):
        assert rest == seen[used:], used
    # Behind the end of a pass comes the next pass.
    assert sorted(rests[-1]) == sorted(seen)


def test_the_position_is_of_what_was_used_and_not_of_what_was_read_ahead(cluster):
    dataset = _strings().apply(pecan.distribute(cluster.target, deterministic=True, seed=1)).prefetch(50)
    iterator = pecan.Iterator(dataset)
    seen = [next(iterator).numpy() for _ in range(10)]
    deadline = time.monotonic() + 20
    from pecan._src import native, state

    while native.load().call_json("Delivered", state._job(dataset, "")) < 60:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    saved = iterator.state_dict()
    iterator.load_state_dict(saved)
    rest = [e.numpy() for e in iterator]
    assert len(seen) + len(rest) == 200
    assert len(set(seen) | set(rest)) == 200


def test_a_loop_that_is_not_the_users_own_counts_by_steps(cluster):
    dataset = _numbers(1000).apply(pecan.distribute(cluster.target, deterministic=True, seed=1))
    batches = dataset.batch(10)
    used = [batch.numpy().tolist() for batch in batches.take(7)]
    state = pecan.state_dict(batches, consumed=70)
    pecan.load_state_dict(batches, state)
    rest = [batch.numpy().tolist() for batch in batches]
    assert used + rest == [list(range(30 * i, 30 * i + 30, 3)) for i in range(100)]


def test_repeats_go_on_in_their_pass(cluster):
    def distributed():
        return _numbers(50).repeat(3).apply(pecan.distribute(cluster.target, deterministic=True, seed=9))

    whole = [int(e) for e in distributed()]
    assert len(whole) == 150
    for used in (0, 1, 49, 50, 51, 99, 100, 149, 150):
        iterator = pecan.Iterator(distributed())
        seen = [int(next(iterator)) for _ in range(used)]
        state = iterator.state_dict()
        again = pecan.Iterator(distributed())
        again.load_state_dict(state)
        rest = [int(e) for e in again]
        assert seen == whole[:used]
        if used < 150:
            assert rest == whole[used:]
        else:
            assert sorted(rest) == sorted(whole)


def test_epochs_have_the_order_that_they_would_have_had(cluster):
    """Shuffles are seeded by the number of the epoch, which goes on with the state."""

    def distributed():
        shuffled = D.range(100).shuffle(50, reshuffle_each_iteration=True)
        return shuffled.apply(pecan.distribute(cluster.target, deterministic=True, seed=3))

    iterator = pecan.Iterator(distributed())
    passes = [[int(e) for e in iterator] for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]
    iterator = pecan.Iterator(distributed())
    assert [int(e) for e in iterator] == passes[0]
    begun = [int(next(iterator)) for _ in range(30)]
    again = pecan.Iterator(distributed())
    again.load_state_dict(iterator.state_dict())
    assert begun + [int(e) for e in again] == passes[1]
    assert [int(e) for e in again] == passes[2]


def test_a_checkpoint_of_tensorflows_has_the_position(cluster, tmp_path):
    def distributed():
        return _numbers().apply(pecan.distribute(cluster.target, deterministic=True, seed=2))

    whole = [int(e) for e in distributed()]
    iterator = pecan.Iterator(distributed())
    step = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(iterator=iterator, step=step)
    for _ in range(60):
        next(iterator)
        step.assign_add(1)
    path = checkpoint.save(str(tmp_path / "at"))
    next(iterator)
    fresh, counted = pecan.Iterator(distributed()), tf.Variable(0)
    tf.train.Checkpoint(iterator=fresh, step=counted).restore(path).assert_consumed()
    assert int(counted) == 60
    assert [int(e) for e in fresh] == whole[60:]


def test_elements_that_fail_are_passed(cluster):
    def distributed():
        checked = D.range(40).map(lambda i: tf.debugging.check_numerics(1.0 / tf.cast(i % 10 - 5, tf.float32), "zero"))
        return checked.apply(pecan.distribute(cluster.target, deterministic=True, seed=2))

    def read(iterator, steps):
        answers = []
        while len(answers) < steps:
            try:
                answers.append(float(next(iterator)))
            except tf.errors.InvalidArgumentError:
                answers.append("failed")
            except StopIteration:
                break
        return answers

    whole = read(pecan.Iterator(distributed()), 100)
    assert whole.count("failed") == 4
    assert len(whole) == 40
    for used in range(0, 40, 3):
        iterator = pecan.Iterator(distributed())
        seen = read(iterator, used)
        again = pecan.Iterator(distributed())
        again.load_state_dict(iterator.state_dict())
        assert seen + read(again, 100) == whole, used


def test_other_workers_and_a_dispatcher_that_knows_nothing_go_on_as_well():
    """L2: three workers, then one, then seven; and a cluster that has never heard of the job."""

    def distributed(cluster):
        shuffled = D.range(300).shuffle(100)
        return shuffled.apply(pecan.distribute(cluster.target, deterministic=True, seed=4))

    with pecan.LocalCluster(workers=3) as first:
        iterator = pecan.Iterator(distributed(first))
        whole = [int(e) for e in iterator]
        iterator = pecan.Iterator(distributed(first))
        seen = [int(next(iterator)) for _ in range(100)]
        state = iterator.state_dict()
    for workers in (1, 7):
        with pecan.LocalCluster(workers=workers) as other:
            again = pecan.Iterator(distributed(other))
            again.load_state_dict(state)
            seen += [int(next(again)) for _ in range(50)]
            state = again.state_dict()
            rest = [int(e) for e in again]
        assert seen + rest == whole


BAD = {
    "another graph": (lambda c: D.range(201).map(lambda i: i * 3), {}, "graph"),
    "another seed": (lambda c: _numbers(), {"seed": 6}, "seed"),
    "another mode": (lambda c: _numbers(), {"deterministic": False}, "mode"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_of_something_else_is_refused(cluster, name):
    make, options, word = BAD[name]
    iterator = pecan.Iterator(_numbers().apply(pecan.distribute(cluster.target, deterministic=True, seed=5)))
    next(iterator)
    options = {"deterministic": True, "seed": 5, **options}
    other = pecan.Iterator(make(cluster).apply(pecan.distribute(cluster.target, **options)))
    with pytest.raises(ValueError, match=word):
        other.load_state_dict(iterator.state_dict())
    assert int(next(other)) % 3 == 0


def test_a_state_that_was_damaged_is_refused(cluster):
    iterator = pecan.Iterator(_numbers().apply(pecan.distribute(cluster.target)))
    next(iterator)
    token = iterator.state_dict()["token"]
    assert len(token) < 4096
    bad = [token[:at] for at in range(len(token))]
    bad += [token[:at] + chr(ord(token[at]) ^ 1) + token[at + 1 :] for at in range(len(token))]
    bad += ["", "x" * (1 << 30), token + "A"]
    for text in bad:
        with pytest.raises(ValueError, match="load a state"):
            iterator.load_state_dict({"token": text})
    for state in (None, token, {}, {"token": 5}, {"token": b"x"}):
        with pytest.raises(ValueError, match="token"):
            iterator.load_state_dict(state)
    # And none of it did anything.
    assert len(list(iterator)) == 199


def test_a_position_that_nobody_can_tell_is_refused(cluster):
    dataset = _strings(3000).apply(pecan.distribute(cluster.target))
    with pytest.raises(ValueError, match="0 were handed over"):
        pecan.state_dict(dataset, consumed=1)
    for _ in dataset.take(2500):
        pass
    with pytest.raises(ValueError, match="only the last 1024 deliveries"):
        pecan.state_dict(dataset, consumed=10)
    with pytest.raises(ValueError, match="at least 0"):
        pecan.state_dict(dataset, consumed=-1)
    with pytest.raises(TypeError, match="consumed"):
        pecan.state_dict(dataset, consumed="10")
    one, two = iter(dataset), iter(dataset)
    for _ in range(5):
        next(one), next(two)
    with pytest.raises(ValueError, match="two iterators"):
        pecan.state_dict(dataset, consumed=2500)
    with pytest.raises(ValueError, match="exactly one"):
        pecan.state_dict(D.zip((dataset, dataset)), consumed=1)
    with pytest.raises(ValueError, match="made of 0"):
        pecan.Iterator(D.range(3))
    shared = D.range(3).apply(pecan.distribute(cluster.target, job_name="shared-state"))
    with pytest.raises(NotImplementedError, match="shared by its name"):
        pecan.state_dict(shared, consumed=0)
    everywhere = D.range(3).apply(pecan.distribute(cluster.target, processing_mode="off"))
    with pytest.raises(NotImplementedError, match="OFF"):
        pecan.state_dict(everywhere, consumed=0)
