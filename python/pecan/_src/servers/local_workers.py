"""Local workers: child processes of the trainer that run streams on its host, and only of jobs that this trainer reads.

A user gives their number, or the dispatcher decides on it for jobs with an objective. The workers connect to a running
service, or to the private cluster.
"""

from __future__ import annotations

import atexit
import collections
import functools
import logging
import os
import pathlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from pecan._src import errors
from pecan._src.client import session
from pecan._src.servers import priority, programs
from pecan._src.servers.process import Process

_log = logging.getLogger("pecan")
# Dead workers are replaced. After this many deaths within this time, a new worker would presumably die too.
_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
_POLL_S = 0.25
_TOO_MANY = (
    "%s: local_workers=%d starts more processes than this process has processors (%d). Each loads its own TensorFlow "
    'and runs several streams at once, so more than one per processor rarely helps: give fewer, or local_workers="auto"'
)
# How long workers stay after the last job that wanted them. The next dataset probably wants them again.
_LINGER_S = 10.0
_MEMORY = pathlib.Path("/proc/meminfo")
# A worker has about 0.5 GB with TensorFlow, by default 256 MiB of ready elements, and what its steps need.
_WORKER_BYTES = 1 << 30


@functools.cache
def most() -> int:
    """Returns the most local workers that the dispatcher may ask for: one per two cores and per GiB of memory, 1 to 8.

    One worker runs many streams at once, and each loads its own TensorFlow. The memory is that which the host has
    available at the first call. A limit that followed it would change with each worker, and begin new searches.
    """
    lines = _MEMORY.read_text().splitlines()
    kib = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 8 << 20)
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2, (kib << 10) // _WORKER_BYTES))


class LocalWorkers:
    """The local workers of one dispatcher.

    There are as many as the user or the dispatcher wants, whichever is more.
    """

    def __init__(
        self, target: str, whose: str, failed: Callable[[str], None], listen: str, arguments: Sequence[str] = ()
    ) -> None:
        """Creates an empty set of workers.

        Args:
            target: Address of the dispatcher.
            whose: What the workers belong to, for messages.
            failed: Called with a message when too many workers have died. Then no more are started.
            listen: Host and port on which the workers listen.
            arguments: More flags of the workers.
        """
        self.target = target
        self.nice = 0
        self._whose = whose
        self._failed = failed
        self._arguments = ["--dispatcher", target, "--listen", listen, "--kind", "local"]
        self._arguments += ["--log-level", "warn", *arguments]
        # Other users of the host see the flags of a process, and the id lets its jobs run with this user's rights.
        self._variables = {"PECAN_TRAINER_ID": session.trainer_id()}
        self._lock = threading.Lock()
        self._workers: list[Process] = []
        self._deaths: collections.deque[float] = collections.deque(maxlen=_DEATHS)
        self._least = self._wanted = 0
        # The number of open jobs for which the dispatcher decides.
        self._jobs = 0
        self._stopped = threading.Event()
        self._gave_up = False
        self._follower: threading.Thread | None = None
        # When a dataset last wanted the workers.
        self._used = time.monotonic()
        self._pid = os.getpid()
        _all.add(self)

    @property
    def processes(self) -> list[Process]:
        """The workers that run and are not about to leave."""
        with self._lock:
            return [worker for worker in self._workers if worker.running]

    def keep(self, least: int, nice: int | None, begin: int = 0) -> None:
        """Starts workers in the background until there are at least `least`. A later call tries again after a failure.

        Args:
            least: Number of workers.
            nice: Number added to the workers' nice value; None adds nothing.
            begin: Number of workers until the dispatcher decides. It does nothing while the dispatcher decides for an
                earlier job.
        """
        with self._lock:
            processors = len(os.sched_getaffinity(0))
            if least > max(self._least, processors):
                _log.warning(_TOO_MANY, self.target, least, processors)
            changed = nice is not None and nice != self.nice
            if nice is not None:
                self.nice = nice
            self._least = max(self._least, least)
            if self._jobs == 0:
                self._wanted = max(self._wanted, begin)
            self._gave_up = False
            self._deaths.clear()
            earlier = list(self._workers) if changed else []
            started = self._adjust()
        self._lower([worker for worker in earlier if worker.running] + started)

    def follow(self, link: session.Session) -> None:
        """Runs as many workers as the dispatcher wants from now on."""
        with self._lock:
            self._used = time.monotonic()
            if self._follower is None or not self._follower.is_alive():
                self._ask(link)  # the first heartbeat of the job has the limit
                self._follower = threading.Thread(
                    target=self._follow, args=(link,), name="pecan-local-workers", daemon=True
                )
                self._follower.start()

    def stop(self) -> None:
        """Stops all workers, and waits for them. A forked child does nothing: they are not its children."""
        if self._pid != os.getpid():
            return
        self._stopped.set()
        workers = self.processes
        for worker in workers:
            worker.request_stop()
        for worker in workers:
            worker.stop()

    def _ask(self, link: session.Session) -> tuple[int, int, str]:
        staying = sum(not worker.stopping for worker in self._workers)
        return link.local_workers(staying, staying if self._gave_up else most())

    def _follow(self, link: session.Session) -> None:
        """Adjusts the workers until the session ends. Runs on its own thread."""
        while not self._stopped.wait(_POLL_S):
            try:
                with self._lock:
                    self._jobs, number, why = self._ask(link)
                    if self._jobs:
                        self._used = time.monotonic()
                    elif time.monotonic() - self._used > _LINGER_S:
                        number, why = 0, "no dataset needs them"
                    before = sum(worker.running and not worker.stopping for worker in self._workers)
                    if number >= 0:
                        self._wanted = number
                    started = self._adjust()
                    if len(self._workers) != before:
                        now = len(self._workers)
                        _log.info("%s: local workers: %d instead of %d: %s", self.target, now, before, why)
                self._lower(started)
            except errors.PecanError:
                return  # the session is closed

    def _adjust(self) -> list[Process]:
        """Starts or stops workers. The newest are stopped first.

        The caller holds the lock. It must pass the result, the started workers, to `_lower` when it no longer does.
        """
        started = []
        self._workers = [worker for worker in self._workers if worker.running and not worker.stopping]
        number = max(self._least, self._wanted)
        while len(self._workers) > number:
            self._workers.pop().request_stop()
        while len(self._workers) < number and not self._gave_up and not self._stopped.is_set():
            try:
                worker = Process(programs.WORKER, self._arguments, self._on_death, self._variables)
            except (OSError, RuntimeError) as error:  # no memory or no process is left
                self._gave_up = True
                _log.error("no local worker can be started: %s; distribute() tries again", error)
                break
            self._workers.append(worker)
            started.append(worker)
        return started

    def _lower(self, workers: Sequence[Process]) -> None:
        """Lowers the priority of workers. The kernel may allow that only after a while, so the caller holds no lock."""
        for worker in workers:
            priority.lower(worker.pid, self.nice)

    def _on_death(self, worker: Process) -> None:
        """Replaces a dead worker, or gives up. Runs on the thread that waited for the child."""
        now = time.monotonic()
        failure = None
        with self._lock:
            self._deaths.append(now)
            if len(self._deaths) == _DEATHS and now - self._deaths[0] < _DEATHS_WITHIN_S:
                self._gave_up = True
                failure = worker.describe_exit(
                    f"of this trainer's {self._whose} died, the last of {_DEATHS} within {_DEATHS_WITHIN_S:g} s"
                )
            else:
                _log.warning("%s; another one is started", worker.describe_exit(f"of the {self._whose} died"))
            started = self._adjust()
        self._lower(started)
        if failure is not None:
            self._failed(failure)


_all: weakref.WeakSet[LocalWorkers] = weakref.WeakSet()
_lock = threading.Lock()
_services: dict[str, LocalWorkers] = {}


def of_service(target: str) -> LocalWorkers:
    """Returns the local workers of this process for a running service."""
    with _lock:
        workers = _services.get(target)
        if workers is None:
            workers = LocalWorkers(target, "local workers", _give_up, f"{_address_towards(target)}:0")
            _services[target] = workers
        return workers


def stop(target: str) -> None:
    """Stops the local workers of this process for a service, if there are any."""
    with _lock:
        workers = _services.pop(target, None)
    if workers is not None:
        workers.stop()


def _give_up(message: str) -> None:
    _log.error("%s; no more local workers are started", message)


def _address_towards(target: str) -> str:
    """Returns the address of this host by which the dispatcher, and so other workers, can reach it."""
    host, _, port = target.rpartition(":")
    if target.startswith("unix:"):
        return "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    return f"[{own}]" if ":" in own else own


def _start_no_more() -> None:
    """Runs when the interpreter exits, before process.py stops all children."""
    for workers in list(_all):
        if workers._pid == os.getpid():
            workers._stopped.set()


atexit.register(_start_no_more)
