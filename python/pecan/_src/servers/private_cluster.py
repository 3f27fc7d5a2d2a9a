"""The private cluster of a trainer that names no service: child processes, shared by all its datasets."""

from __future__ import annotations

import collections
import logging
import os
import threading
import time
import uuid

from pecan._src import errors
from pecan._src.client import session
from pecan._src.servers import programs, scratch
from pecan._src.servers.process import Process

_log = logging.getLogger("pecan")
_START_S = 20.0
# A worker that dies is replaced, unless so many died within so long: then the dataset kills them.
_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
# A dataset that no dataset object of this process reads any more is of no use to anybody.
_DATASET_TIMEOUT = "10m"


def default_workers() -> int:
    """How many workers suit this host.

    One process runs many streams at once and keeps many cores busy; more of them only help where there are many cores,
    and each holds a TensorFlow of its own.
    """
    return max(1, min(8, len(os.sched_getaffinity(0)) // 4))


class Cluster:
    """One dispatcher and its workers.

    Attributes:
        target: The dispatcher's address.
    """

    def __init__(self) -> None:
        name = f"unix:@pecan-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._workers: list[Process] = []
        self._deaths: collections.deque[float] = collections.deque(maxlen=_DEATHS)
        self._broken: str | None = None
        arguments = ["--listen", name, "--log-level", "warn", "--dataset-timeout", _DATASET_TIMEOUT]
        self._dispatcher = Process(programs.DISPATCHER, arguments, self._on_death)
        self._dispatcher.address(_START_S)
        self._caches = scratch.directory()
        self.target = name

    def grow(self, workers: int) -> None:
        """Brings the number of workers to at least so many. They start in the background."""
        with self._lock:
            while len(self._workers) < workers and self._broken is None:
                self._workers.append(self._new_worker())

    def check(self) -> None:
        """Raises what broke the cluster, if anything did."""
        if self._broken is not None:
            raise errors.make(f"{self._broken} [pecan:UNAVAILABLE]", "UNAVAILABLE", 14)

    @property
    def broken(self) -> bool:
        """Whether it is of no use any more."""
        return self._broken is not None

    @property
    def processes(self) -> list[Process]:
        """The dispatcher and the workers."""
        with self._lock:
            return [self._dispatcher, *self._workers]

    def stop(self) -> None:
        """Ends all of it."""
        for process in self.processes:
            process.tell_to_stop()
        for process in self.processes:
            process.stop()
        scratch.remove(self._caches)

    def _new_worker(self) -> Process:
        arguments = [
            "--dispatcher",
            self.target,
            "--listen",
            "127.0.0.1:0",
            "--placement",
            "local",
            "--log-level",
            "warn",
            "--cache-dir",
            self._caches,
            "--cache-bytes",
            str(scratch.budget(self._caches)),
        ]
        return Process(programs.WORKER, arguments, self._on_death)

    def _on_death(self, process: Process) -> None:
        """Runs on the dead child's thread."""
        now = time.monotonic()
        with self._lock:
            if process is self._dispatcher:
                self._broken = process.obituary("of this trainer's private cluster died")
            else:
                self._workers.remove(process)
                self._deaths.append(now)
                if len(self._deaths) == _DEATHS and now - self._deaths[0] < _DEATHS_WITHIN_S:
                    self._broken = process.obituary(
                        f"of this trainer's private cluster died, the last of {_DEATHS} within {_DEATHS_WITHIN_S:g} s"
                    )
                else:
                    _log.warning("%s; another one is started", process.obituary("of the private cluster died"))
                    self._workers.append(self._new_worker())
            broken = self._broken
        if broken is not None:
            _log.error("%s", broken)
            session.fail(self.target, broken)


_lock = threading.Lock()
_cluster: Cluster | None = None


def cluster(workers: int | None) -> Cluster:
    """The cluster of this process with at least so many workers, started at the first call and when it had broken."""
    global _cluster
    with _lock:
        if _cluster is not None and _cluster.broken:
            broken, _cluster = _cluster, None
            session.disconnect(broken.target)
            broken.stop()  # what read from it was told why
        if _cluster is None:
            _cluster = Cluster()
        _cluster.grow(default_workers() if workers is None else workers)
        return _cluster


def running() -> Cluster | None:
    """The cluster if there is one."""
    return _cluster
