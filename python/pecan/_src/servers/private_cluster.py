"""The private cluster: child processes that all datasets of a trainer share if it gives no service."""

from __future__ import annotations

import logging
import os
import threading
import uuid

from pecan._src import errors, home
from pecan._src.client import session
from pecan._src.servers import programs, scratch
from pecan._src.servers.local_workers import LocalWorkers, most
from pecan._src.servers.process import Process

_log = logging.getLogger("pecan")
_START_S = 20.0
# The dispatcher removes a dataset after this time without jobs, because no other process can read it.
_DATASET_TIMEOUT = "10m"


def default_workers() -> int:
    """Returns the number of workers for this host: one per four cores, at least 1 and at most `most()`.

    One worker runs many streams at once and keeps several cores busy. Each worker loads its own TensorFlow.
    """
    return max(1, min(most(), len(os.sched_getaffinity(0)) // 4))


class Cluster:
    """One dispatcher and its workers. The next cluster of this user has what was learned from jobs.

    The constructor starts the dispatcher and waits until it serves. `workers` starts workers and replaces dead ones. If
    many die, a dataset presumably kills them, and the cluster fails.

    Attributes:
        target: Address of the dispatcher.
        workers: The workers.
    """

    def __init__(self) -> None:
        name = f"unix:@pecan-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._failure: str | None = None
        arguments = ["--listen", name, "--log-level", "warn", "--dataset-timeout", _DATASET_TIMEOUT]
        learned = home.directory("learned")
        if home.learns() and os.path.isabs(learned):
            arguments += ["--learned-dir", learned]
        self._dispatcher = Process(programs.DISPATCHER, arguments, self._on_death)
        self._dispatcher.address(_START_S)  # waits until the dispatcher serves
        self._cache_dir = scratch.directory()
        self.target = name
        cache = ["--cache-dir", self._cache_dir, "--cache-bytes", str(scratch.budget(self._cache_dir))]
        self.workers = LocalWorkers(name, "private cluster", self._fail, "127.0.0.1:0", cache)

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
        return [self._dispatcher, *self.workers.processes]

    def stop(self) -> None:
        """Stops all processes and removes the cache directory."""
        self._dispatcher.request_stop()
        self.workers.stop()
        self._dispatcher.stop()
        scratch.remove(self._cache_dir)

    def _on_death(self, dispatcher: Process) -> None:
        """Marks the cluster as failed. Runs on the thread that waited for the child."""
        self._fail(dispatcher.describe_exit("of this trainer's private cluster died"))

    def _fail(self, message: str) -> None:
        self._failure = self._failure or message
        _log.error("%s", message)
        session.fail(self.target, message)


_lock = threading.Lock()
_cluster: Cluster | None = None


def cluster() -> Cluster:
    """Returns the cluster of this process. The first call starts it; a call after a failure starts a new one."""
    global _cluster
    with _lock:
        if _cluster is not None and _cluster.failed:
            failed, _cluster = _cluster, None
            session.disconnect(failed.target)
            failed.stop()  # its readers have the error already
        if _cluster is None:
            _cluster = Cluster()
        return _cluster


def running() -> Cluster | None:
    """Returns the cluster of this process, or None if there is none."""
    return _cluster
