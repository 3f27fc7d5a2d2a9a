"""A trainer saves its position with its model, and another process resumes at this position."""

import collections
import contextlib
import json
import shutil
import socket
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from script import ROOT, Script

from tests.e2e.soak import SOAK

D = tf.data.Dataset


def _numbers(n=200):
    return D.range(n).map(lambda i: i * 3)


def _mixed(n=200):
    """Rows of unknown number. The closing stream joins the remainders of the streams."""
    return D.range(n).filter(lambda i: i % 7 != 3).map(lambda i: i * 3).batch(4)


def _strings(n=200):
    return D.range(n).map(tf.strings.as_string)


def _many():
    """More streams than slots, and closing streams of several groups."""
    return _mixed(150)


DATASETS = {"blocks": _numbers, "elements": _strings, "joined batches": _mixed, "many streams": _many}
STREAMS = {"many streams": 50}


def _value(element):
    """The value of an element in a form that JSON supports."""
    value = element.numpy()
    return value.decode() if isinstance(value, bytes) else value.tolist()


def _values(elements):
    return [_value(e) for e in elements]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("deterministic", [False, True], ids=["exactly once", "deterministic"])
def test_a_pass_resumes_at_every_step(cluster, name, deterministic):
    """Loads the position after each of many elements in a new job, and compares the rest with the first run."""
    make = DATASETS[name]

    def distributed():
        options = dict(deterministic=deterministic, seed=5, streams=STREAMS.get(name, "auto"))
        return make().apply(pecan.distribute(cluster.target, **options))

    iterator = pecan.Iterator(distributed())
    states, seen = [iterator.state_dict()], []
    for element in iterator:
        seen.append(_value(element))
        states.append(iterator.state_dict())
    assert len(states) == len(seen) + 1
    for used in range(0, len(seen), max(1, len(seen) // (200 if SOAK else 8))):
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
import json
from tests.e2e.test_resume import DATASETS, _values
target, name, mode, states = *sys.argv[1:], json.load(sys.stdin)
for state in states:
    dataset = DATASETS[name]().apply(pecan.distribute(target, processing_mode=mode))
    iterator = pecan.Iterator(dataset)
    iterator.load_state_dict(state)
    print(json.dumps(_values(iterator)), flush=True)
"""


def _restore(target, name, mode, states):
    """The elements that another process reads from each of the states."""
    with Script(RESTORE, target, name, mode, directory=ROOT) as script:
        code, out, err = script.rest(300, json.dumps(states))
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("mode", ["exactly_once", "deterministic"])
def test_another_process_resumes_at_every_step(cluster, mode):
    """L1: the service chose the seed, and the state contains it."""
    iterator = pecan.Iterator(_numbers().apply(pecan.distribute(cluster.target, processing_mode=mode)))
    states, seen = [iterator.state_dict()], []
    for element in iterator:
        seen.append(int(element))
        states.append(iterator.state_dict())
    every = 1 if SOAK else 25
    rests = _restore(cluster.target, "blocks", mode, states[::every])
    assert len(rests) == 200 // every + 1
    for used, rest in zip(range(0, 200, every), rests):
        if mode == "deterministic":
            assert rest == seen[used:], used
        assert sorted(rest) == sorted(seen[used:]), used
    # After the end of a pass the next pass follows.
    assert sorted(rests[-1]) == sorted(seen)


@pytest.mark.parametrize("after", [lambda d: d, lambda d: d.repeat()], ids=["nothing", "repeat"])
def test_a_missing_file_fails_only_its_own_element(cluster, tmp_path, after):
    """The iterator continues after the failed element, as a local iterator does. A state saved there does the same."""
    for i in range(20):
        (tmp_path / str(i)).write_text(str(i))
    (tmp_path / "7").unlink()
    dataset = D.range(20).map(lambda i: tf.io.read_file(tf.strings.join([str(tmp_path) + "/", tf.as_string(i)])))
    dataset = after(dataset.apply(pecan.distribute(cluster.target, deterministic=True, seed=3)))
    iterator, seen = pecan.Iterator(dataset), []
    with pytest.raises(tf.errors.NotFoundError, match="FILE_NOT_VISIBLE"):
        seen.extend(int(element.numpy()) for element in iterator)
    state = iterator.state_dict()
    rest = [int(next(iterator).numpy()) for _ in range(19 - len(seen))]
    assert sorted(seen + rest) == [i for i in range(20) if i != 7]
    again = pecan.Iterator(dataset)
    again.load_state_dict(state)
    assert [int(next(again).numpy()) for _ in rest] == rest


def _has_received(dataset, count):
    """Whether TensorFlow has received this many elements."""
    try:
        pecan.state_dict(dataset, consumed=count)
    except ValueError:
        return False
    return True


def test_the_position_counts_used_elements_and_not_prefetched_ones(cluster):
    dataset = _strings().apply(pecan.distribute(cluster.target, deterministic=True, seed=1)).prefetch(50)
    iterator = pecan.Iterator(dataset)
    seen = [next(iterator).numpy() for _ in range(10)]
    deadline = time.monotonic() + 20
    while not _has_received(dataset, 60):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    saved = iterator.state_dict()
    iterator.load_state_dict(saved)
    rest = [e.numpy() for e in iterator]
    assert len(seen) + len(rest) == 200
    assert len(set(seen) | set(rest)) == 200


def test_state_dict_accepts_a_count_of_used_elements(cluster):
    dataset = _numbers(1000).apply(pecan.distribute(cluster.target, deterministic=True, seed=1))
    batches = dataset.batch(10)
    used = [batch.numpy().tolist() for batch in batches.take(7)]
    state = pecan.state_dict(batches, consumed=70)
    pecan.load_state_dict(batches, state)
    rest = [batch.numpy().tolist() for batch in batches]
    assert used + rest == [list(range(30 * i, 30 * i + 30, 3)) for i in range(100)]


def test_an_interrupted_next_loses_no_element(cluster):
    """A signal handler can raise after TensorFlow has returned an element and before the loop has received it."""

    class Interrupted(Exception):
        pass

    times = collections.Counter()

    def one(element):
        times[_value(element)] += 1
        if _value(element) % 4 == 0 and times[_value(element)] <= 2:
            raise Interrupted
        return 1

    def distributed():
        return _numbers(40).apply(pecan.distribute(cluster.target, deterministic=True))

    iterator, seen, interrupts = pecan.Iterator(distributed(), elements_per_next=one), [], 0
    while len(seen) < 25:
        try:
            seen.append(_value(next(iterator)))
        except Interrupted:
            interrupts += 1
            if interrupts % 3 == 0:
                # The loop may also save and load its position before it continues.
                iterator.load_state_dict(iterator.state_dict())
    assert interrupts > 10
    other = pecan.Iterator(distributed())
    other.load_state_dict(iterator.state_dict())
    assert seen + _values(other) == _values(distributed())


def test_a_repeated_dataset_resumes_in_its_pass(cluster):
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


def test_resumed_epochs_keep_their_shuffle_order(cluster):
    """The number of the epoch seeds shuffles, and the state contains this number."""

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


def test_an_iterator_without_elements_keeps_the_position_for_the_next_one(cluster):
    """L2: a loop that meets an outage before its first element starts again and loses nothing, also after a loaded position."""
    make = lambda target: (  # noqa: E731
        D.range(40).shuffle(40).apply(pecan.distribute(target, deterministic=True, seed=5, dispatcher_timeout_s=0.5))
    )
    first = pecan.Iterator(make(cluster.target))
    passes = [_values(first) for _ in range(2)]
    for _ in range(30):
        next(first)
    state, rest = first.state_dict(), _values(first)
    with pecan.LocalCluster(workers=0) as alone:
        new, loaded = make(alone.target), make(alone.target)
        pecan.load_state_dict(loaded, state)
        for dataset in (new, new, loaded, loaded):
            with pytest.raises(tf.errors.UnavailableError, match="no worker"):
                next(iter(dataset))
        assert pecan.state_dict(loaded, consumed=0) == state
        alone.add_workers(2)
        assert [_values(new) for _ in range(2)] == passes
        assert _values(loaded) == rest


def test_a_tensorflow_checkpoint_contains_the_position(cluster, tmp_path):
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


def test_a_position_counts_failed_elements(cluster):
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
    for used in range(0, 40, 7):
        iterator = pecan.Iterator(distributed())
        seen = read(iterator, used)
        again = pecan.Iterator(distributed())
        again.load_state_dict(iterator.state_dict())
        assert seen + read(again, 100) == whole, used


def test_a_position_resumes_with_other_workers_and_another_dispatcher():
    """L2: the position is saved with three workers, and loaded in new clusters with one and with seven."""

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


@pytest.mark.parametrize("kept", [False, True], ids=["in memory only", "with a work directory"])
def test_a_dispatcher_that_lost_its_state_gets_the_dataset_again(tmp_path, kept):
    """L2: the dispatcher has no work directory, or the directory is deleted. A trainer continues, and can load a state."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work = tmp_path / "work"
    config = pecan.DispatcherConfig(port=port, work_dir=work if kept else None)
    dispatcher = pecan.DispatchServer(config)
    worker = pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target))

    def lose_everything():
        dispatcher.process.kill()
        if kept:
            shutil.rmtree(work)
        return pecan.DispatchServer(config)

    def distributed():
        # The elements are large and few are in flight, so that workers still have to produce most of them.
        large = D.range(300).shuffle(300).map(lambda i: tf.fill([20000], i))
        return large.apply(
            pecan.distribute(dispatcher.target, deterministic=True, seed=3, max_outstanding_bytes=2_000_000)
        )

    iterator = pecan.Iterator(distributed())
    seen = [int(next(iterator)[0]) for _ in range(100)]
    state = iterator.state_dict()
    dispatcher = lose_everything()
    seen += [int(e[0]) for e in iterator]
    assert len(seen) == 300 and len(set(seen)) == 300
    dispatcher = lose_everything()
    iterator.load_state_dict(state)
    assert [int(e[0]) for e in iterator] == seen[100:]
    session.retire(dispatcher.target.removeprefix("pecan://"))
    worker.stop()
    dispatcher.stop()
