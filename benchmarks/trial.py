"""Passes of a trainer during which a fault occurs: when elements arrived, and what the service did meanwhile.

Each element carries its id and the time of its computation. The time shows whether it was computed after the fault.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import pathlib
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pecan
import tensorflow as tf
from cluster import Cluster, Program, running_cluster, wait
from row import Sample

TCP = {"data_transfer_protocol": "tcp"}
# With this flag the remaining workers can run the streams of a dead one.
ROOMY = ("--max-streams", "16")
STREAMS = 16
# Bytes that the trainer requests ahead: few, so that no buffer hides a gap.
OUTSTANDING_BYTES = 4096


class Arrival(NamedTuple):
    """An element from `next()`: its arrival, its id and its computation. Times are Unix times in seconds."""

    at: float
    id: int
    computed: float


def elements(total: int, millis: float = 1.5) -> tf.data.Dataset:
    """Returns ids from 0 to `total` - 1 with the times of their computation. Each takes about `millis` ms of a core."""
    return tf.data.Dataset.range(total).map(expensive(millis))


def expensive(millis: float) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """Returns a step that takes about `millis` milliseconds of a core."""
    size = int(300 * millis ** (1 / 3))

    def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        matrix = tf.random.stateless_uniform([size, size], [number, 1])
        return number, tf.timestamp(), tf.linalg.trace(tf.linalg.matmul(matrix, matrix))

    return step


@contextlib.contextmanager
def service(workers: int, *worker_flags: str) -> Iterator[Cluster]:
    """Runs a dispatcher with a work directory, and workers, with the default times of the programs."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
        cluster = stack.enter_context(running_cluster(Cluster(directory, worker_flags=worker_flags, quick=False)))
        cluster.add_all(workers)
        yield cluster


class Trial:
    """A trainer that reads a dataset as fast as it can."""

    def __init__(self, cluster: Cluster, dataset: tf.data.Dataset, passes: int = 1, **options: object) -> None:
        self.cluster, self.passes = cluster, passes
        known = {job["job_id"] for job in cluster.status()["jobs"]}
        distribute = pecan.distribute(cluster.target, max_outstanding_bytes=OUTSTANDING_BYTES, **options)
        self._iterator = iter(dataset.apply(distribute).repeat(passes))
        self.arrivals: list[Arrival] = []
        self.until(lambda: len(self.arrivals) > 0)
        (self.job,) = {job["job_id"] for job in cluster.status()["jobs"]} - known
        # The Unix times before and after the fault.
        self.fault_at = self.injected = 0.0
        # The size of the dispatcher's log before the fault.
        self._log_size = 0

    def until(self, condition: Callable[[], object], every: int = 1) -> None:
        """Reads until the condition holds, checking it after every `every` elements."""
        while True:
            for _ in range(every):
                self._take(next(self._iterator))
            if condition():
                return

    def until_element(self, number: int) -> None:
        """Reads until `number` elements have come."""
        self.until(lambda: len(self.arrivals) >= number)

    def _take(self, element: tuple[tf.Tensor, ...]) -> None:
        self.arrivals.append(Arrival(time.time(), int(element[0]), float(element[1])))

    def hosts(self) -> dict[int, str]:
        """Returns the address of the worker of each stream of the first epoch."""
        held = self.cluster.leases().items()
        return {stream: address for (job, epoch, stream), (_, address) in held if job == self.job and epoch == 0}

    def victim(self) -> tuple[Program, set[int]]:
        """Returns the worker with the most streams, and their numbers."""
        by_worker: dict[str, set[int]] = {}
        for stream, address in self.hosts().items():
            by_worker.setdefault(address, set()).add(stream)
        address = max(by_worker, key=lambda each: len(by_worker[each]))
        (worker,) = [each for each in self.cluster.workers if each.running and each.address == address]
        return worker, by_worker[address]

    def inject(self, fault: Callable[[], object]) -> None:
        """Injects the fault, and records the time."""
        self._log_size = len(self.cluster.dispatcher.log.read_text())
        self.fault_at = time.time()
        fault()
        self.injected = time.time()

    def finish(self, ids: Iterable[int]) -> None:
        """Reads the rest, and checks that every id came once in each pass."""
        before = len(self.arrivals)
        for element in self._iterator:
            self._take(element)
        wanted = sorted(ids)
        size = len(wanted)
        assert 0 < before < len(self.arrivals), "no element came before the fault, or none after it"
        assert len(self.arrivals) == self.passes * size, f"{len(self.arrivals)} elements came"
        for number in range(self.passes):
            came = sorted(each.id for each in self.arrivals[number * size : (number + 1) * size])
            assert came == wanted, f"pass {number}: an element was lost or came twice"

    def next_of(self, streams: Iterable[int] | None = None) -> float:
        """Returns the seconds from the fault to the first element of the streams that was computed afterwards."""
        wanted = range(STREAMS) if streams is None else streams
        fresh = (each.at for each in self.arrivals if each.computed > self.injected and each.id % STREAMS in wanted)
        return min(fresh) - self.fault_at

    def longest_gap(self) -> float:
        """Returns the seconds of the longest gap between two elements after the fault."""
        times = [each.at for each in self.arrivals]
        return max(b - a for a, b in itertools.pairwise(times) if b >= self.fault_at)

    def leased(self, streams: Iterable[int] | None = None) -> float:
        """Returns the seconds from the fault until the dispatcher leased one of the streams."""
        wanted = "|".join(map(str, range(STREAMS) if streams is None else streams))
        return self.logged(f'msg="lease granted" .* epoch=0 stream=({wanted}) ')

    def logged(self, pattern: str) -> float:
        """Returns the seconds from the fault to the first matching line of the dispatcher's log.

        It waits for that line: on a fast machine the pass may end before a silent worker counts as dead.
        """

        def line() -> str | None:
            lines = self.cluster.dispatcher.log.read_text()[self._log_size :].splitlines()
            return next((each for each in lines if re.search(pattern, each)), None)

        when = re.match(r"time=(\S+)", str(wait(line, f"the dispatcher logs {pattern!r}, or the fault had no effect")))
        return datetime.datetime.fromisoformat(when[1].replace("Z", "+00:00")).timestamp() - self.fault_at

    def status(self) -> dict:
        """Returns the dispatcher's status of the job."""
        (job,) = [job for job in self.cluster.status()["jobs"] if job["job_id"] == self.job]
        return job

    def gaps(self, streams: Iterable[int] | None = None, *, lost: bool = True) -> Sample:
        """Returns the figures of a fault after which streams move, and the dispatcher counts the worker as `lost`."""
        return {
            **({"s to notice": self.logged('msg="worker lost"')} if lost else {}),
            "s to lease": self.leased(streams),
            "s to the next element": self.next_of(streams),
            "s longest gap": self.longest_gap(),
        }


class Goodbye:
    """Sends SIGTERM to a worker, and waits for its end on a thread while the trainer reads."""

    def __init__(self, worker: Program) -> None:
        self._worker, self._code = worker, None
        os.killpg(worker.pid, signal.SIGTERM)
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        self._code = self._worker.processes[-1].wait()

    def check(self) -> None:
        """Checks that the worker ended with exit code 0."""
        self._thread.join()
        assert self._code == 0, f"the worker ended with exit code {self._code}"


def revive(cluster: Cluster, worker: Program) -> None:
    """Restarts a dead or paused worker at its address, and waits until all workers are connected."""
    if worker.running:
        worker.kill()
    worker.start(worker.address).ready()
    alive = sum(each.running for each in cluster.workers)
    wait(lambda: cluster.states() == ["connected"] * alive, "all workers are connected")
