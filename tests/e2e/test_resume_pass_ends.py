"""A trainer resumes at or near the end of a pass."""

import time

import pecan
import pytest
import tensorflow as tf

from tests.e2e.test_resume import _has_received

D = tf.data.Dataset


def _large(n):
    """Elements that are sent one by one, so that prefetched elements are counted."""
    return D.range(n).shuffle(n).map(lambda i: tf.fill([20000], i))


def _unknown(n):
    return D.range(2 * n).shuffle(2 * n).filter(lambda i: i % 2 == 0).map(lambda i: tf.fill([20000], i))


ENDLESS = {
    "repeat after, prefetch": (_large, lambda d: d.repeat().prefetch(5), 15),
    "repeat after, unknown length": (_unknown, lambda d: d.repeat(), 0),
    "repeat after, unknown length, prefetch": (_unknown, lambda d: d.repeat().prefetch(5), 15),
    "repeat before, unknown length": (lambda n: _unknown(n).repeat(), lambda d: d, 0),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_training_resumes_after_the_end_of_a_pass(cluster, name):
    make, after, prefetched = ENDLESS[name]

    def distributed():
        return after(make(12).apply(pecan.distribute(cluster.target, deterministic=True, seed=5)))

    dataset = distributed()
    iterator = pecan.Iterator(dataset)
    for _ in range(12):
        next(iterator)
    deadline = time.monotonic() + 20
    while not _has_received(dataset, prefetched):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    state = iterator.state_dict()
    again = pecan.Iterator(distributed())
    again.load_state_dict(state)
    assert [int(next(again)[0]) for _ in range(30)] == [int(next(iterator)[0]) for _ in range(30)]


def test_a_resume_at_the_end_of_a_pass_of_unknown_length_begins_the_next_pass(cluster):
    """The next pass comes completely and once, also in a loop over one pass, and whether or not the end was seen."""

    def distributed():
        return _unknown(12).apply(pecan.distribute(cluster.target, deterministic=True, seed=5))

    iterator = pecan.Iterator(distributed())
    passes = [[int(e[0]) for e in iterator] for _ in range(3)]
    iterator = pecan.Iterator(distributed())
    states = []
    for _ in range(12):
        next(iterator)
    states.append(iterator.state_dict())
    assert list(iterator) == []
    states.append(iterator.state_dict())
    for state in states:
        again = pecan.Iterator(distributed())
        again.load_state_dict(state)
        assert [int(e[0]) for e in again] == passes[1]
        assert [int(e[0]) for e in again] == passes[2]


@pytest.mark.parametrize("after", [lambda d: d.take(5), lambda d: d.prefetch(20).take(5)], ids=["take", "prefetch"])
@pytest.mark.parametrize("make", [_large, lambda n: D.range(n).shuffle(n)], ids=["elements", "blocks"])
def test_elements_left_in_a_pass_are_not_counted_in_the_next_one(cluster, make, after):
    def distributed():
        return after(make(100).apply(pecan.distribute(cluster.target, deterministic=True, seed=5)))

    iterator = pecan.Iterator(distributed())
    assert len(list(iterator)) == 5
    between = iterator.state_dict()
    seen = [int(tf.reshape(next(iterator), [-1])[0]) for _ in range(2)]
    state = iterator.state_dict()
    seen += [int(tf.reshape(e, [-1])[0]) for e in iterator]
    again = pecan.Iterator(distributed())
    again.load_state_dict(state)
    assert int(tf.reshape(next(again), [-1])[0]) == seen[2]
    again = pecan.Iterator(distributed())
    again.load_state_dict(between)
    assert [int(tf.reshape(e, [-1])[0]) for e in again] == seen


def test_the_prefetches_of_an_older_iterator_are_not_counted(cluster):
    def distributed():
        return _large(200).apply(pecan.distribute(cluster.target, deterministic=True, seed=5))

    dataset = distributed()
    older = iter(dataset.prefetch(50))
    next(older)
    iterator = pecan.Iterator(dataset)
    for _ in range(10):
        # The older iterator may deliver elements at any time. They are never counted.
        next(iterator)
        state = iterator.state_dict()
        again = pecan.Iterator(distributed())
        again.load_state_dict(state)
        assert int(next(again)[0]) == int(next(iterator)[0])
    assert int(older.get_next()[0]) >= 0


def test_a_resume_after_empty_passes_begins_the_next_pass(cluster):
    def distributed():
        dice = D.range(1).map(lambda i: tf.random.uniform([])).filter(lambda u: u < 0.5)
        return dice.apply(pecan.distribute(cluster.target, deterministic=True, seed=11))

    whole = distributed()
    passes = [[float(e) for e in whole] for _ in range(6)]
    assert [] in passes[:5]
    iterator = pecan.Iterator(distributed())
    for number in range(5):
        assert [float(e) for e in iterator] == passes[number]
        again = pecan.Iterator(distributed())
        again.load_state_dict(iterator.state_dict())
        assert [float(e) for e in again] == passes[number + 1], number
