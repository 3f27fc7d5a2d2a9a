"""A wait for missing workers or a missing dispatcher ends in time with a typed error that names the cause. The iterator can be read again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time

import pecan
import pytest
import tensorflow as tf
from test_commands import Program

D = tf.data.Dataset


@pytest.fixture
def programs():
    """Starts programs, and kills them at the end of the test."""
    started = []

    def start(name: str, *flags: str) -> Program:
        started.append(Program(name, *flags))
        return started[-1]

    yield start
    for program in started:
        with contextlib.suppress(ProcessLookupError):
            program.process.kill()
        program.process.communicate(timeout=180)


def _wait_for_log(caplog, words: str, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not any(words in record.getMessage() for record in caplog.records):
        assert time.monotonic() < end, f"nothing of {words!r} in {[r.getMessage() for r in caplog.records]}"
        time.sleep(0.02)


def _rest(iterator, within_s: float = 60.0) -> list:
    """Reads all remaining elements. It calls the iterator again after each outage, as a trainer can that waits for workers.

    On a busy machine a worker that is starting can cause several outages. After `within_s` the last error is raised.
    """
    seen: list = []
    end = time.monotonic() + within_s
    while True:
        try:
            seen.extend(iterator)
        except tf.errors.UnavailableError:
            if time.monotonic() > end:
                raise
        else:
            return seen


def test_the_death_of_all_workers_is_an_error_and_a_new_worker_continues(programs, caplog):
    dispatcher = programs("pecan-dispatcher", "--listen", "127.0.0.1:0", "--worker-dead-after", "2s")
    workers = [programs("pecan-worker", "--dispatcher", dispatcher.address) for _ in range(2)]
    dataset = D.range(1000).map(lambda i: tf.fill([1000], i)).batch(2)
    dataset = dataset.apply(pecan.distribute(dispatcher.address, dispatcher_timeout_s=5, max_outstanding_bytes=1))
    iterator = iter(dataset)
    seen = [next(iterator)]
    for worker in workers:
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait(timeout=180)
    with caplog.at_level(logging.WARNING, logger="pecan"), pytest.raises(tf.errors.UnavailableError) as caught:
        seen.extend(iter(lambda: next(iterator), None))
    assert "[pecan:NO_WORKERS]" in str(caught.value)
    assert dispatcher.address in str(caught.value)
    assert "start workers" in str(caught.value)
    _wait_for_log(caplog, "no element for 2s", 1)
    programs("pecan-worker", "--dispatcher", dispatcher.address)
    seen.extend(_rest(iterator))
    assert sorted(int(row[0]) for batch in seen for row in batch) == list(range(1000))


def test_a_worker_with_an_unreachable_address_is_an_error(programs):
    dispatcher = programs("pecan-dispatcher", "--listen", "127.0.0.1:0")
    flags = ("--dispatcher", dispatcher.address, "--shared-memory-bytes", "0")
    wrong = programs("pecan-worker", *flags, "--advertise", "127.0.0.1:9")
    dataset = D.range(50).apply(pecan.distribute(dispatcher.address, dispatcher_timeout_s=5))
    iterator = iter(dataset)
    began = time.monotonic()
    with pytest.raises(tf.errors.UnavailableError) as caught:
        next(iterator)
    assert time.monotonic() - began > 5
    for words in ("[pecan:UNAVAILABLE]", "127.0.0.1:9", "--advertise"):
        assert words in str(caught.value)
    wrong.stop()
    programs("pecan-worker", *flags)
    assert sorted(int(i) for i in _rest(iterator)) == list(range(50))


def test_no_worker_at_all_is_an_error(programs):
    dispatcher = programs("pecan-dispatcher", "--listen", "127.0.0.1:0")
    dataset = D.range(50).apply(pecan.distribute(dispatcher.address, dispatcher_timeout_s=4))
    with pytest.raises(tf.errors.UnavailableError, match="NO_WORKERS"):
        next(iter(dataset))


def test_an_element_may_take_longer_than_the_timeout(programs, tmp_path):
    dispatcher = programs("pecan-dispatcher", "--listen", "127.0.0.1:0")
    programs("pecan-worker", "--dispatcher", dispatcher.address)
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    # Opening a pipe blocks until a writer opens it. TensorFlow cannot read a pipe by position, so the element then fails.
    dataset = D.from_tensor_slices([gate]).map(tf.io.read_file).ignore_errors()
    dataset = dataset.apply(pecan.distribute(dispatcher.address, dispatcher_timeout_s=4))
    passed = threading.Event()

    def open_gate():
        while not passed.is_set():
            with open(gate, "w"):
                pass

    timer = threading.Timer(10, open_gate)
    timer.start()
    began = time.monotonic()
    try:
        assert list(dataset.as_numpy_iterator()) == []
        assert time.monotonic() - began > 8
    finally:
        passed.set()
        os.close(os.open(gate, os.O_RDONLY | os.O_NONBLOCK))
