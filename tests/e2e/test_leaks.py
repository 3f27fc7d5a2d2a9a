"""Trainers and workers leak no memory, descriptors, threads or shared memory over many iterations.

TensorFlow itself keeps some memory of each iterator. A loop that needs more than its allowance is therefore compared
with the same loop over the local dataset. PECAN_RECREATIONS sets how often a dataset is distributed (50 by default). PECAN_DATASETS sets how many datasets are created and dropped
unread (100 by default). `make soak` sets both higher.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import signal
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from script import Script
from soak import cases

# A round of a test that takes longer than this hangs.
ROUND_S = 600
D = tf.data.Dataset
TIMES = int(os.environ.get("PECAN_RECREATIONS", "50"))
DATASETS = int(os.environ.get("PECAN_DATASETS", "100"))
WARM_UP = 20
MIB = 1 << 20
# Go keeps a thread for each concurrent call into C, and a busy machine has more of them. Every loop runs at least 50
# times, so a leak of one thread per iteration exceeds this limit.
THREADS = 40


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources of a process."""

    memory: int
    descriptors: int
    threads: int
    shared: int

    @staticmethod
    def of(process: int | str = "self") -> Resources:
        """Reads them from /proc."""
        root = f"/proc/{process}"
        with open(f"{root}/statm") as file:
            memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open(f"{root}/maps") as file:
            shared = sum("pecan" in line and ("memfd:" in line or "/dev/shm" in line) for line in file)
        return Resources(memory, len(os.listdir(f"{root}/fd")), len(os.listdir(f"{root}/task")), shared)


def _eventually(what, timeout_s=30.0):
    """Waits until a condition holds, and fails at the deadline."""
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "the condition did not hold in time"
        time.sleep(0.02)


def _settled() -> Resources:
    """The resources of this process after garbage collection and after the allocator has returned free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return Resources.of()


@pytest.fixture(scope="module")
def cluster():
    """A cluster for this file only, so that no other test changes the resources of its workers.

    Its windows are small. With the default of 256 MB, workers would compute hundreds of elements that the test does not read.
    """
    with pecan.LocalCluster(workers=2, worker=pecan.WorkerConfig("replaced:1", window_bytes=2 << 20)) as cluster:
        yield cluster


def _link(cluster):
    return session.connect(cluster.target.removeprefix("pecan://"), 10)


def _failing(i):
    return tf.debugging.check_numerics(tf.fill([30_000], 1.0 / tf.cast(i % 5 - 3, tf.float32)), "three")


def _large(i):
    return tf.fill([30_000], i), tf.as_string(i), tf.RaggedTensor.from_row_lengths(tf.range(i), [i])


def _read_whole(dataset):
    assert len(list(dataset)) == 10


def _leave_early(dataset):
    for _ in dataset:
        break


def _meet_errors(dataset):
    failures, iterator = 0, iter(dataset)
    while True:
        try:
            if next(iterator, None) is None:
                break
        except tf.errors.InvalidArgumentError:
            failures += 1
    assert failures == 2


def _never_start(dataset):
    iter(dataset)


def _named_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "pecan" in name}


# This test is the first in the file. A worker keeps the memory of an earlier connection for half a minute, and the test
# would wait for that.
def test_a_trainer_that_is_killed_leaves_no_shared_memory(cluster):
    before = _named_memory()
    with Script(
        f"""
        dataset = D.range(1000).repeat().map(lambda i: tf.fill([30_000], i))
        iterator = iter(dataset.apply(pecan.distribute({cluster.target!r})))
        next(iterator)
        say(sum("memfd:pecan" in line for line in open("/proc/self/maps")))
        time.sleep(100)
        """
    ) as script:
        assert int(script.line()) > 0
        workers = [server.process.pid for server in cluster.workers]
        assert any(Resources.of(pid).shared for pid in workers)
        script.process.kill()
        script.rest()
        _eventually(lambda: not any(Resources.of(pid).shared for pid in workers))
    assert _named_memory() == before


USES = {
    "read to the end": (lambda: D.range(10).map(lambda i: (i, tf.as_string(i))), _read_whole),
    "rows in blocks": (lambda: D.range(10), _read_whole),
    "left early with elements in flight": (lambda: D.range(10).repeat().map(_large), _leave_early),
    "failing elements": (lambda: D.range(10).map(_failing), _meet_errors),
    "an unread iterator": (lambda: D.range(10).map(_large).prefetch(1), _never_start),
}


# Two other cases also read to the end.
@pytest.mark.parametrize("use", cases(USES, soak=["read to the end"]))
def test_repeated_creation_and_reading_of_a_dataset_leaks_nothing(cluster, limit, use):
    make, read = USES[use]
    # TensorFlow traces the functions of the plain dataset once. distribute() creates the dataset of Pecan in each iteration.
    plain = make()
    link = _link(cluster)
    workers = [server.process.pid for server in cluster.workers]

    def measure(iteration):
        """The resources of this process and of the workers before and after a loop."""
        for _ in range(WARM_UP):
            iteration()
        before, theirs = _settled(), [Resources.of(pid) for pid in workers]
        for number in range(TIMES):
            if number % 100 == 0:
                limit(ROUND_S)
            iteration()
        _eventually(lambda: (gc.collect(), link.stats())[1]["live"] == 0)
        _eventually(lambda: link.stats()["pool"]["Buffers"] == 0)
        return before, _settled(), theirs, [Resources.of(pid) for pid in workers]

    before, after, theirs_before, theirs_after = measure(
        lambda: read(plain.apply(pecan.distribute(cluster.target, deterministic=True)))
    )
    stats = link.stats()["pool"]
    assert stats["Misuses"] == 0
    # The pool keeps idle buffers on purpose, Python and the allocator fragment memory, and TensorFlow keeps about 20 kB of
    # graph and functions for each dataset.
    grew, allowed = after.memory - before.memory, stats["IdleBytes"] + 24 * MIB + TIMES * 20_000
    if grew >= allowed:
        local_before, local_after, _, _ = measure(lambda: read(plain.take(-1)))
        allowed += max(0, local_after.memory - local_before.memory)
    assert grew < allowed, (before, after)
    assert after.descriptors - before.descriptors < 8, (before, after)
    assert after.threads - before.threads < THREADS, (before, after)
    assert after.shared - before.shared < 16, (before, after)
    for worker_before, worker_after in zip(theirs_before, theirs_after):
        assert worker_after.descriptors - worker_before.descriptors < 8, (worker_before, worker_after)
        assert worker_after.threads - worker_before.threads < THREADS, (worker_before, worker_after)
        assert worker_after.shared - worker_before.shared < 16, (worker_before, worker_after)
        # Workers keep windows and shared memory while a reader is connected. Their budgets limit both.
        assert worker_after.memory - worker_before.memory < 128 * MIB + TIMES * 20_000, (worker_before, worker_after)


def test_unread_datasets_leak_nothing(limit):
    """L8: this process keeps nothing of them, and the dispatcher removes jobs and datasets within the trainer's timeout."""
    config = pecan.DispatcherConfig(dataset_timeout_ms=500)
    with pecan.LocalCluster(1, dispatcher=config) as cluster:
        link = _link(cluster)
        processes = [cluster.dispatcher.process.pid, cluster.workers[0].process.pid]

        def make(number):
            return D.range(number % 50 + 1).apply(pecan.distribute(cluster.target))

        def forgotten():
            gc.collect()
            status = link.status()
            return not status.get("jobs") and not status.get("datasets") and link.stats()["live"] == 0

        for number in range(WARM_UP):
            make(number)
        _eventually(forgotten)
        before, theirs = _settled(), [Resources.of(pid) for pid in processes]
        for number in range(DATASETS):
            if number % 100 == 0:
                limit(ROUND_S)
            make(number)
        last = make(0)
        assert link.status()["jobs"]
        del last
        _eventually(forgotten, 60)
        for was, now in zip([before, *theirs], [_settled(), *(Resources.of(pid) for pid in processes)]):
            # TensorFlow keeps about 20 kB of graph and functions for each dataset.
            assert now.memory - was.memory < 32 * MIB + DATASETS * 20_000, (was, now)
            assert now.descriptors - was.descriptors < 8, (was, now)
            assert now.threads - was.threads < THREADS, (was, now)
            assert now.shared - was.shared < 8, (was, now)


# Cheap epochs run more often than epochs with large elements.
EPOCHS = {"small": (lambda: D.range(10), 3 * TIMES), "large": (lambda: D.range(10).map(_large), TIMES)}


@pytest.mark.parametrize("size", EPOCHS)
def test_many_epochs_leak_nothing(cluster, limit, size):
    make, epochs = EPOCHS[size]
    processes = [cluster.dispatcher.process.pid, *(server.process.pid for server in cluster.workers)]
    iterator = iter(make().repeat().apply(pecan.distribute(cluster.target)))
    for _ in range(10 * WARM_UP):
        next(iterator)
    before, ours_before = {pid: Resources.of(pid) for pid in processes}, _settled()
    for epoch in range(epochs):
        if epoch % 100 == 0:
            limit(ROUND_S)
        for _ in range(10):
            next(iterator)
    for pid, earlier in before.items():
        now = Resources.of(pid)
        assert now.memory - earlier.memory < 32 * MIB, (earlier, now)
        assert now.descriptors - earlier.descriptors < 8, (earlier, now)
        assert now.threads - earlier.threads < THREADS, (earlier, now)
        assert now.shared - earlier.shared < 16, (earlier, now)
    now = _settled()
    assert now.memory - ours_before.memory < 32 * MIB, (ours_before, now)
    assert now.descriptors - ours_before.descriptors < 8, (ours_before, now)
    assert now.threads - ours_before.threads < THREADS, (ours_before, now)
    assert now.shared - ours_before.shared < 16, (ours_before, now)


def test_a_worker_that_is_killed_leaves_no_shared_memory():
    # Connections to other workers keep their shared memory for half a minute after their last use.
    before, mapped = _named_memory(), Resources.of().shared
    with pecan.LocalCluster(workers=2) as cluster:
        iterator = iter(D.range(400).map(_large).apply(pecan.distribute(cluster.target)))
        seen = [int(next(iterator)[0][0]) for _ in range(20)]
        assert Resources.of().shared > mapped
        os.kill(cluster.workers[0].process.pid, signal.SIGKILL)
        seen += [int(element[0][0]) for element in iterator]
        assert sorted(seen) == list(range(400))
        os.kill(cluster.workers[1].process.pid, signal.SIGKILL)
        del iterator
        _eventually(lambda: (gc.collect(), Resources.of().shared)[1] <= mapped)
    assert _named_memory() == before
