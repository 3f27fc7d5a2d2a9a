"""One pass of a trainer through which a fault goes: what arrived when, and what the service did meanwhile.

Each element carries its id and the time at which it was made: so what was made after a fault is told from what was on
its way.
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
from cluster import Cluster, Program, cleared, wait
from row import Sample

TCP = {"data_transfer_protocol": "tcp"}
# So that the workers that are left have room for the streams of one that dies.
ROOMY = ("--max-streams", "16")
STREAMS = 16
# So that a trainer has next to nothing in store: on two cores a worker takes more than its share, and runs ahead.
ON_THE_WAY = 4096


class Arrival(NamedTuple):
    """An element that `next()` returned: when, which one, and when it was made; seconds of the wall clock."""

    at: float
    id: int
    made: float


def elements(total: int, millis: float = 1.5) -> tf.data.Dataset:
    """Ids below total and the times at which they were made; each takes about so many milliseconds of a core."""
    return tf.data.Dataset.range(total).map(costly(millis))


def costly(millis: float) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """A step that takes about so many milliseconds of a core."""
    size = int(300 * millis ** (1 / 3))

    def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        matrix = tf.random.stateless_uniform([size, size], [number, 1])
        return number, tf.timestamp(), tf.linalg.trace(tf.linalg.matmul(matrix, matrix))

    return step


@contextlib.contextmanager
def service(workers: int, *worker_flags: str) -> Iterator[Cluster]:
    """A dispatcher that keeps its state, and workers, with the programs' default times."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
        cluster = stack.enter_context(cleared(Cluster(directory, worker_flags=worker_flags, quick=False)))
        cluster.add_all(workers)
        yield cluster


class Trial:
    """A pass over a dataset by a trainer that takes whatever comes, at once."""

    def __init__(self, cluster: Cluster, dataset: tf.data.Dataset, passes: int = 1, **options: object) -> None:
        self.cluster, self.passes = cluster, passes
        known = {job["job_id"] for job in cluster.status()["jobs"]}
        distribute = pecan.distribute(cluster.target, max_outstanding_bytes=ON_THE_WAY, **options)
        self._iterator = iter(dataset.apply(distribute).repeat(passes))
        self.arrivals: list[Arrival] = []
        self.until(lambda: len(self.arrivals) > 0)
        (self.job,) = {job["job_id"] for job in cluster.status()["jobs"]} - known
        self.struck = self.stricken = 0.0
        self._logged = 0

    def until(self, condition: Callable[[], object], every: int = 1) -> None:
        """Reads until something holds, which has to be before the end."""
        while True:
            for _ in range(every):
                self._take(next(self._iterator))
            if condition():
                return

    def until_element(self, number: int) -> None:
        """Reads so many elements."""
        self.until(lambda: len(self.arrivals) >= number)

    def _take(self, element: tuple[tf.Tensor, ...]) -> None:
        self.arrivals.append(Arrival(time.time(), int(element[0]), float(element[1])))

    def hosts(self) -> dict[int, str]:
        """Worker's address of each stream of the first epoch."""
        held = self.cluster.leases().items()
        return {stream: address for (job, epoch, stream), (_, address) in held if job == self.job and epoch == 0}

    def victim(self) -> tuple[Program, set[int]]:
        """The worker that has most streams, and those."""
        by_worker: dict[str, set[int]] = {}
        for stream, address in self.hosts().items():
            by_worker.setdefault(address, set()).add(stream)
        address = max(by_worker, key=lambda each: len(by_worker[each]))
        (worker,) = [each for each in self.cluster.workers if each.running and each.address == address]
        return worker, by_worker[address]

    def strike(self, blow: Callable[[], object]) -> None:
        """Does the blow, which fails when it does nothing."""
        self._logged = len(self.cluster.dispatcher.log.read_text())
        self.struck = time.time()
        blow()
        self.stricken = time.time()

    def finish(self, ids: Iterable[int]) -> None:
        """Reads all that is left, and checks that every id came once in each pass."""
        struck = len(self.arrivals)
        for element in self._iterator:
            self._take(element)
        wanted = sorted(ids)
        size = len(wanted)
        assert 0 < struck < len(self.arrivals), "no element came before the fault, or none behind it"
        assert len(self.arrivals) == self.passes * size, f"{len(self.arrivals)} elements came"
        for number in range(self.passes):
            came = sorted(each.id for each in self.arrivals[number * size : (number + 1) * size])
            assert came == wanted, f"pass {number}: an element was lost or came twice"

    def next_of(self, streams: Iterable[int] | None = None) -> float:
        """Seconds from the blow to the first element that was made afterwards, of one of the streams."""
        wanted = range(STREAMS) if streams is None else streams
        fresh = (each.at for each in self.arrivals if each.made > self.stricken and each.id % STREAMS in wanted)
        return min(fresh) - self.struck

    def longest_gap(self) -> float:
        """Seconds, from the blow on, of the longest wait between two elements."""
        times = [each.at for each in self.arrivals]
        return max(b - a for a, b in itertools.pairwise(times) if b >= self.struck)

    def leased(self, streams: Iterable[int] | None = None) -> float:
        """Seconds from the blow until the dispatcher leased one of the streams."""
        wanted = "|".join(map(str, range(STREAMS) if streams is None else streams))
        return self.noted(f'msg="lease granted" .* epoch=0 stream=({wanted}) ')

    def noted(self, pattern: str) -> float:
        """Seconds from the blow until the dispatcher's log said so for the first time.

        On a quick machine the pass may be over before a silent worker counts as dead.
        """

        def line() -> str | None:
            said = self.cluster.dispatcher.log.read_text()[self._logged :].splitlines()
            return next((each for each in said if re.search(pattern, each)), None)

        when = re.match(r"time=(\S+)", str(wait(line, f"the dispatcher says {pattern!r}, or the fault did nothing")))
        return datetime.datetime.fromisoformat(when[1].replace("Z", "+00:00")).timestamp() - self.struck

    def status(self) -> dict:
        """What the dispatcher says of the job."""
        (job,) = [job for job in self.cluster.status()["jobs"] if job["job_id"] == self.job]
        return job

    def gaps(self, streams: Iterable[int] | None = None, *, dies: bool = True) -> Sample:
        """The figures of a worker that counts as dead, or from which streams move only."""
        return {
            **({"s to notice": self.noted('msg="worker lost"')} if dies else {}),
            "s to lease": self.leased(streams),
            "s to the next element": self.next_of(streams),
            "s longest gap": self.longest_gap(),
        }


class Goodbye:
    """SIGTERM for a worker, whose end is awaited while its trainer reads on."""

    def __init__(self, worker: Program) -> None:
        self._worker, self._code = worker, None
        os.killpg(worker.pid, signal.SIGTERM)
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        self._code = self._worker.lives[-1].wait()

    def check(self) -> None:
        """It has to have ended by itself."""
        self._thread.join()
        assert self._code == 0, f"the worker ended with {self._code}"


def revive(cluster: Cluster, worker: Program) -> None:
    """Starts a worker that is dead, or stopped, at its address, and waits until all are well."""
    if worker.running:
        worker.kill()
    worker.start(worker.address).ready()
    alive = sum(each.running for each in cluster.workers)
    wait(lambda: cluster.states() == ["connected"] * alive, "all workers are well")
