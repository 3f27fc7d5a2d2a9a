"""A trainer resumes in mode at_least_once or at_most_once."""

import collections

import pecan
import pytest
import tensorflow as tf

from tests.e2e.test_epochs import _until

D = tf.data.Dataset


def _rolled(n=40, rows=50):
    """Numbers whose order depends on the clock in each run of a stream, so that an index does not identify an element."""

    def block(b):
        return D.from_tensor_slices(tf.roll(tf.range(rows * b, rows * (b + 1)), tf.cast(tf.timestamp() * 1e6, tf.int64) % rows, 0))

    return D.range(n).flat_map(block)


def _plain(n=40, rows=50):
    return D.range(n * rows).shuffle(100).map(lambda i: i)


def _read_from_streams(iterator, streams, rows=50):
    """Reads until elements of this many streams of _rolled() have come, and returns the elements."""
    seen, begun = [], set()
    while len(begun) < streams:
        seen.append(int(next(iterator)))
        begun.add(seen[-1] // rows % 10)
    return seen


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_position_in_a_weaker_mode_is_exact_if_an_index_identifies_an_element(cluster, mode):
    """L2: if an index identifies an element, exactly the next element follows."""

    def distributed():
        return _plain().apply(pecan.distribute(cluster.target, processing_mode=mode))

    iterator = pecan.Iterator(distributed())
    seen = [int(next(iterator)) for _ in range(555)]
    for _ in range(2):
        state = iterator.state_dict()
        iterator = pecan.Iterator(distributed())
        iterator.load_state_dict(state)
        seen += [int(next(iterator)) for _ in range(100)]
    assert sorted(seen + [int(e) for e in iterator]) == list(range(2000))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_position_in_a_weaker_mode_keeps_its_promise(cluster, mode):
    """L2: if an index does not identify an element, at_least_once skips nothing, and at_most_once repeats nothing."""

    def distributed():
        return _rolled().apply(pecan.distribute(cluster.target, processing_mode=mode))

    iterator = pecan.Iterator(distributed())
    seen = _read_from_streams(iterator, 3)
    for _ in range(2):
        state = iterator.state_dict()
        iterator = pecan.Iterator(distributed())
        iterator.load_state_dict(state)
        # Streams that start again include some that had begun.
        seen += _read_from_streams(iterator, 3)
    times = collections.Counter(seen + [int(e) for e in iterator])
    assert set(times) <= set(range(2000))
    if mode == "at_least_once":
        assert len(times) == 2000 and max(times.values()) > 1
    else:
        # At least one stream had not started at either stop, and three had.
        assert max(times.values()) == 1 and 200 <= len(times) < 2000


def test_a_position_with_nothing_left_begins_the_next_pass(cluster, caplog):
    """L2: every stream had started, and none may run again. The next pass starts, because an empty pass would end an outer repeat()."""

    def distributed():
        return _rolled().apply(pecan.distribute(cluster.target, processing_mode="at_most_once"))

    iterator = pecan.Iterator(distributed())
    _read_from_streams(iterator, 10)
    state = iterator.state_dict()
    iterator = pecan.Iterator(distributed())
    iterator.load_state_dict(state)
    assert sorted(int(e) for e in iterator) == list(range(2000))
    _until("the trainer logs a warning", lambda: "epoch 0 has no elements left" in caplog.text)
