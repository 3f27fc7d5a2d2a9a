"""The private cluster: child processes that all datasets of a trainer share if it gives no service."""

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
# The cluster replaces dead workers. After this many deaths within this time, a dataset presumably kills them.
_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
# The dispatcher removes a dataset after this time without jobs, because no other process can read it.
_DATASET_TIMEOUT = "10m"


def default_workers() -> int:
    """Returns the number of workers for this host: one per four cores, at least 1 and at most 8.

    One worker runs many streams at once and keeps several cores busy. Each worker loads its own TensorFlow.
    """
    return max(1, min(8, len(os.sched_getaffinity(0)) // 4))


class Cluster:
    """One dispatcher and its workers.

    The constructor starts the dispatcher and waits until it serves. `grow` starts workers.

    Attributes:
        target: Address of the dispatcher.
    """

    def __init__(self) -> None:
        name = f"unix:@pecan-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._workers: list[Process] = []
        self._deaths: collections.deque[float] = collections.deque(maxlen=_DEATHS)
        self._failure: str | None = None
        arguments = ["--listen", name, "--log-level", "warn", "--dataset-timeout", _DATASET_TIMEOUT]
        self._dispatcher = Process(programs.DISPATCHER, arguments, self._on_death)
        self._dispatcher.address(_START_S)  # waits until the dispatcher serves
        self._cache_dir = scratch.directory()
        self.target = name

    def grow(self, workers: int) -> None:
        """Starts workers in the background until there are at least `workers`."""
        with self._lock:
            while len(self._workers) < workers and self._failure is None:
                self._workers.append(self._new_worker())

    def check(self) -> None:
        """Raises ServiceUnavailable if the cluster has failed."""
        if self._failure is not None:
            raise errors.make(f"{self._failure} [pecan:UNAVAILABLE]", "UNAVAILABLE", errors.ServiceUnavailable.code)

    @property
    def failed(self) -> bool:
        """Whether the cluster has failed and needs a replacement."""
        return self._failure is not None

    @property
    def processes(self) -> list[Process]:
        """The dispatcher and the workers."""
        with self._lock:
            return [self._dispatcher, *self._workers]

    def stop(self) -> None:
        """Stops all processes and removes the cache directory."""
        for process in self.processes:
            process.request_stop()
        for process in self.processes:
            process.stop()
        scratch.remove(self._cache_dir)

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
            self._cache_dir,
            "--cache-bytes",
            str(scratch.budget(self._cache_dir)),
        ]
        return Process(programs.WORKER, arguments, self._on_death)

    def _on_death(self, process: Process) -> None:
        """Replaces a dead worker, or marks the cluster as failed. Runs on the thread that waited for the child."""
        now = time.monotonic()
        with self._lock:
            if process is self._dispatcher:
                self._failure = process.describe_exit("of this trainer's private cluster died")
            else:
                self._workers.remove(process)
                self._deaths.append(now)
                if len(self._deaths) == _DEATHS and now - self._deaths[0] < _DEATHS_WITHIN_S:
                    self._failure = process.describe_exit(
                        f"of this trainer's private cluster died, the last of {_DEATHS} within {_DEATHS_WITHIN_S:g} s"
                    )
                else:
                    _log.warning("%s; another one is started", process.describe_exit("of the private cluster died"))
                    self._workers.append(self._new_worker())
            failure = self._failure
        if failure is not None:
            _log.error("%s", failure)
            session.fail(self.target, failure)


_lock = threading.Lock()
_cluster: Cluster | None = None


def cluster(workers: int | None) -> Cluster:
    """Returns the cluster of this process. The first call starts it; a call after a failure starts a new one.

    Args:
        workers: Least number of workers; None for the number that suits this host.
    """
    global _cluster
    with _lock:
        if _cluster is not None and _cluster.failed:
            failed, _cluster = _cluster, None
            session.disconnect(failed.target)
            failed.stop()  # its readers have the error already
        if _cluster is None:
            _cluster = Cluster()
        _cluster.grow(default_workers() if workers is None else workers)
        return _cluster


def running() -> Cluster | None:
    """Returns the cluster of this process, or None if there is none."""
    return _cluster
