"""Elements that end every worker that computes them."""

from __future__ import annotations

import collections
import gc
import pathlib
import re
import signal
import subprocess
import threading
import time

import pecan
import pytest
import records
import tensorflow as tf
from cluster import Cluster, running_cluster, wait
from run import MAX_OUTSTANDING_BYTES, Run


def _poisoned(data: records.Records, number: int, *, at_once: int | None = None, silent: bool = False) -> tf.data.Dataset:
    """The records with a step that ends the process at one of them. It aborts, or with `silent` it exits with code 0."""

    def die():
        with tf.control_dependencies([tf.raw_ops.Abort(error_msg="the poison", exit_without_error=silent)]):
            return tf.constant(0, tf.int64)

    def step(i, payload, value):
        return tf.cond(tf.equal(i, number), die, lambda: i), payload, value

    return data.dataset().map(step, num_parallel_calls=at_once)


class Supervisor:
    """Restarts each worker that has died, as an operator's supervisor does."""

    def __init__(self, cluster: Cluster, *expected: int) -> None:
        self.cluster, self.expected, self.causes = cluster, set(expected or [-signal.SIGABRT]), []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for worker in self.cluster.workers:
                if not worker.running:
                    self.causes.append(worker.processes[-1].returncode)
                    worker.start()

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert self.causes and set(self.causes) <= self.expected


def _index(cluster: Cluster, data: records.Records, number: int) -> tuple[int, int]:
    """The stream of a record and its index in the stream, in an undisturbed run of the same job."""
    # A stream reads two files alternately.
    (streams,) = {int(job["plan"]["num_streams"]) for job in cluster.status()["jobs"]}
    for stream in range(streams):
        files = tf.data.Dataset.from_tensor_slices(data.files_of(stream, streams))
        read = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
        for index, record in enumerate(read):
            if int.from_bytes(record.numpy()[:8], "little") == number:
                return stream, index
    raise AssertionError(number)


# The test of a stream that kills workers while it is opened has two workers.
@pytest.mark.parametrize("workers", [1, 2] if records.FULL else [1])
def test_an_element_that_kills_workers_fails_its_job_and_no_other(tmp_path, data, truth, golden, mode, rng, workers):
    """G6: the job fails after three deaths, and the error names stream, index and file. Another job on the same workers is complete."""
    number = rng.randrange(data.total // 4, data.total)
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(workers)
        # The other job reads first. Workers are so fast that the third may die before the trainer has its first element.
        with Supervisor(cluster) as supervisor, Run(cluster, data, mode, 2) as other:
            other.read_until(0, data.total // 20)
            options = dict(processing_mode=mode, seed=7, streams=data.streams)
            poisoned = _poisoned(data, number).apply(pecan.distribute(cluster.target, **options))
            seen = []
            with pytest.raises(tf.errors.DataLossError) as caught:
                seen.extend(int(element[0]) for element in poisoned)
            words = str(caught.value)
            stream, index = _index(cluster, data, number)
            wait(lambda: len(supervisor.causes) >= 3, "the third death is noticed")
            assert "[pecan:ELEMENT_POISON]" in words
            assert f"stream {stream} of epoch 0" in words
            assert re.search(rf"3 workers died in a row while they computed its element {index} ", words), (words, index)
            named = [path for path in data.files if path in words]
            # The worker names those files of the stream that it has open. The other job reads two of them, and each may be opening a next one.
            assert data.file_of(number) in named and len(named) <= 6, (data.file_of(number), words)
            assert number not in seen and len(seen) == len(set(seen))
            other.note_fault("a worker died of another job's element")
            other.finish()
            assert len(supervisor.causes) == 3
            del poisoned
            gc.collect()
            other.check(truth, golden, moved=1)
        other.release()


def test_an_element_that_kills_workers_in_a_parallel_step_fails_its_job(tmp_path, data, rng):
    """G6: a parallel step computes the element before it is requested. The error names this element, not the requested one."""
    number = rng.randrange(data.total // 4, data.total)
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(1)
        poisoned = _poisoned(data, number, at_once=16)
        iterator = iter(poisoned.apply(pecan.distribute(cluster.target, max_outstanding_bytes=MAX_OUTSTANDING_BYTES)))
        with Supervisor(cluster) as supervisor:
            stream, index = _index(cluster, data, number)
            with pytest.raises(tf.errors.DataLossError) as caught:
                for _ in iterator:
                    pass
            wait(lambda: len(supervisor.causes) >= 3, "the third death is noticed")
        words = str(caught.value)
        assert "[pecan:ELEMENT_POISON]" in words
        assert f"stream {stream} of epoch 0" in words
        assert f"3 workers died in a row while they computed its element {index} " in words
        assert len(supervisor.causes) == 3
        del iterator, poisoned
        gc.collect()


# Simulates a worker with less memory: a large allocation fails.
NARROW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void* malloc(size_t size) {
  static void* (*real)(size_t);
  if (!real) real = (void* (*)(size_t))dlsym(RTLD_NEXT, "malloc");
  return size < 300 << 20 ? real(size) : NULL;
}
"""


@pytest.mark.parametrize(("workers", "mode"), [(1, "exactly_once"), (2, "deterministic")])
def test_a_stream_that_kills_workers_while_it_is_opened_fails_its_job(tmp_path, data, monkeypatch, workers, mode):
    """G6: no element of the stream can be blamed. Another job on the same workers is complete."""
    narrow = tmp_path / "narrow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", narrow, "-x", "c", "-", "-ldl"], input=NARROW, text=True, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(narrow))
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(workers)
        plain = data.dataset().map(lambda number, *_: number)
        other = iter(plain.apply(pecan.distribute(cluster.target, processing_mode=mode, max_outstanding_bytes=1)))
        seen = [int(next(other)) for _ in range(data.total // 20)]
        # TensorFlow allocates the whole buffer with the iterator, and ends the process if that fails.
        poisoned = plain.shuffle(1 << 40).apply(pecan.distribute(cluster.target, processing_mode=mode, seed=7))
        # The process aborts, or it gets SIGSEGV, for which Go exits with code 2.
        with Supervisor(cluster, -signal.SIGABRT, 2) as supervisor:
            with pytest.raises(tf.errors.DataLossError) as caught:
                next(iter(poisoned))
            words = str(caught.value)
            assert "[pecan:ELEMENT_POISON]" in words
            assert re.search(r"stream \d+ of epoch 0 of job \S+: 3 workers died in a row while they opened it \(the last one: SIG(?:ABRT|SEGV) of ", words), words
            seen += [int(number) for number in other]
            wait(lambda: len(supervisor.causes) >= 3, "the third death is noticed")
        assert sorted(seen) == list(range(data.total))
        del other, poisoned
        gc.collect()


def test_a_stream_that_waits_for_others_does_not_block_them_under_the_crash_guard(tmp_path, data, mode):
    """G6: after two deaths suspicious elements are computed one at a time. The elements of a closing stream need other streams."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        (worker,) = cluster.add_all(1)
        kept = data.dataset().map(lambda number, *_: number).filter(lambda x: x % 7 != 0).batch(8)
        iterator = iter(kept.apply(pecan.distribute(cluster.target, processing_mode=mode, max_outstanding_bytes=1)))
        seen = []
        for _ in range(2):
            seen += [next(iterator).numpy() for _ in range(data.total // 80)]
            worker.kill()
            worker.start().ready()
        seen += [batch.numpy() for batch in iterator]
        assert sorted(number for batch in seen for number in batch) == [i for i in range(data.total) if i % 7]
        assert cluster.status()["jobs"][0]["plan"]["batch_strategy"] == "BATCH_STRATEGY_REMAINDER"
        del iterator
        gc.collect()


def test_an_element_that_exits_the_process_fails_its_job(tmp_path, data, rng):
    """G6: native code can end a process without a signal."""
    number = rng.randrange(data.total // 4, data.total)
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(1)
        poisoned = _poisoned(data, number, silent=True).apply(pecan.distribute(cluster.target))
        with Supervisor(cluster, 0) as supervisor:
            with pytest.raises(tf.errors.DataLossError, match=r"3 workers died[^$]*ELEMENT_POISON"):
                for _ in poisoned:
                    pass
            wait(lambda: len(supervisor.causes) == 3, "the third death is noticed")
        assert len(supervisor.causes) == 3
        del poisoned


def test_workers_killed_from_outside_at_one_element_fail_no_job(tmp_path, data):
    """G6: no element is blamed for kills from outside, although workers compute the same element each time."""
    kills, gate = 4, tmp_path / "open"

    def waits(number, *rest):
        shut = lambda: tf.equal(tf.size(tf.io.matching_files(str(gate))), 0)  # noqa: E731
        (turns,) = tf.while_loop(lambda _: shut(), lambda i: [i + 1], [tf.constant(0, tf.int64)])
        return (number + tf.minimum(turns, 0), *rest)

    with running_cluster(Cluster(tmp_path)) as cluster:
        (worker,) = cluster.add_all(1)
        dataset = data.dataset().map(waits).apply(pecan.distribute(cluster.target))
        seen: list[int] = []
        reader = threading.Thread(target=lambda: seen.extend(int(element[0]) for element in dataset))
        reader.start()
        for _ in range(kills):
            wait(lambda: _reads(worker.pid, data), "an element is being computed")
            # The crash guard suspects an element only if the worker has reported it before its death.
            began = time.monotonic()
            wait(lambda: _heartbeat(cluster) > began, "the worker has sent a heartbeat")
            worker.kill()
            worker.start().ready()
        gate.touch()
        reader.join(120)
        assert sorted(seen) == list(range(data.total))
        cluster.dispatcher.kill()
        assert _most_deaths(cluster) >= 3, "the kills did not hit an element"


def _heartbeat(cluster: Cluster) -> float:
    """The earliest possible time of the last heartbeat of the only live worker; 0 if there was none."""
    asked = time.monotonic()
    ages = [worker.get("last_heartbeat_s", 0.0) for worker in cluster.status()["workers"]]
    return asked - min(ages) if ages else 0.0


def _reads(pid: int, data: records.Records) -> bool:
    """Whether a process has one of the files open."""
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(entry.readlink()) in data.files:
                return True
        except FileNotFoundError:
            continue
    return False


def _most_deaths(cluster: Cluster) -> int:
    """The most deaths of workers that one stream had, from the journal of a stopped dispatcher."""
    deaths = collections.Counter()
    for record in cluster.journal():
        if record["kind"] == "lease_lost" and record["value"].get("cause") == "DIED":
            deaths[record["value"]["id"].get("stream", 0)] += 1
    return max(deaths.values(), default=0)
