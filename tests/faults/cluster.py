"""A cluster of real processes that a test can kill, stop, disconnect and restart over one work directory.

The methods check that a fault happened. `kill` fails if the process had ended before or does not die of the signal. `pause` fails if
the kernel does not report the process as stopped. Every wait polls a state and has a deadline.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pecan
from pecan._src.client import session
from pecan._src.servers import programs

WAIT_S = 60.0
# Timeout for the status. A status is requested again after a timeout, or the test fails.
STATUS_S = 30.0
# Timeouts for tests: long enough for a busy machine, short enough to wait for.
QUICK = ("--heartbeat", "200ms", "--worker-suspect-after", "1s", "--worker-dead-after", "3s", "--worker-return-grace", "300ms")


def wait(condition: Callable[[], object], what: str, within_s: float = WAIT_S) -> object:
    """Polls `condition` until its result is true, and returns the result. On a timeout it fails and names `what`."""
    end = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < end, f"after {within_s:g} s still not: {what}"
        time.sleep(0.02)
    return answer


class Program:
    """One of the programs in its own process group. It can be started several times, also at the same address."""

    def __init__(self, name: str, flags: tuple[str, ...], directory: pathlib.Path, label: str) -> None:
        self.name, self.flags, self.label = name, flags, label
        self.log = directory / f"{label}.log"
        self.output_path = directory / f"{label}.out"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start(self, address: str = "127.0.0.1:0") -> Program:
        """Starts a process. `ready` waits until the process serves."""
        assert not self.processes or self.processes[-1].poll() is not None, f"{self.label} still runs"
        with self.log.open("ab") as log, self.output_path.open("wb") as output:
            process = subprocess.Popen(
                [str(programs.path(self.name)), *self.flags, "--listen", address],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=programs.environment(self.name),
                process_group=0,
            )
        self.processes.append(process)
        return self

    def ready(self) -> Program:
        """Waits until the program serves."""

        def listening() -> str | None:
            assert self.processes[-1].poll() is None, f"{self.label} ended with {self.processes[-1].returncode}:\n{self.log_tail()}"
            found = re.search(r"^listening on (\S+)$", self.output_path.read_text(), re.MULTILINE)
            return found and found[1]

        self.address = str(wait(listening, f"{self.label} serves"))
        return self

    @property
    def pid(self) -> int:
        return self.processes[-1].pid

    @property
    def running(self) -> bool:
        return bool(self.processes) and self.processes[-1].poll() is None

    def kill(self) -> None:
        """Kills the process group, and checks that the process was alive before and died of SIGKILL."""
        process = self.processes[-1]
        assert process.poll() is None, f"{self.label} had ended with {process.returncode} before it was killed:\n{self.log_tail()}"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(WAIT_S) == -signal.SIGKILL, f"{self.label} was killed and ended with {process.returncode}"
        wait_until_gone(process.pid)

    def pause(self) -> None:
        """Sends SIGSTOP, and waits until the kernel reports the process as stopped."""
        os.killpg(self.pid, signal.SIGSTOP)
        wait(lambda: self._state() == "T", f"{self.label} is stopped")

    def resume(self) -> None:
        """Sends SIGCONT to a stopped process."""
        assert self._state() == "T", f"{self.label} was not stopped"
        os.killpg(self.pid, signal.SIGCONT)

    def terminate(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        os.killpg(self.pid, signal.SIGTERM)
        return self.processes[-1].wait(WAIT_S)

    def log_tail(self) -> str:
        """Returns the end of the log."""
        return self.log.read_text(errors="replace")[-4000:]

    def _state(self) -> str:
        return pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def clear(self) -> None:
        """Kills the process if it still runs, and checks that no process of any start remains."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            wait_until_gone(process.pid)


def wait_until_gone(group: int) -> None:
    """Waits until a process group has no processes."""

    def empty() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait(empty, f"process group {group} is gone")


class Cluster:
    """A dispatcher over a work directory, and workers. `quick` sets short timeouts and small windows in place of the defaults."""

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        work: pathlib.Path | None = None,
        flags: tuple[str, ...] = (),
        worker_flags: tuple[str, ...] = (),
        quick: bool = True,
    ) -> None:
        self.directory = directory
        self.worker_flags = (*(("--window-bytes", str(1 << 20)) if quick else ()), *worker_flags)
        self.work = work or directory / "work"
        flags = (*(QUICK if quick else ()), *flags, "--work-dir", str(self.work))
        self.dispatcher = Program("pecan-dispatcher", flags, directory, "dispatcher").start().ready()
        self.workers: list[Program] = []
        self._session: session.Session | None = None

    @property
    def target(self) -> str:
        return self.dispatcher.address

    def add(self, *flags: str, dispatcher: str = "", wait: bool = True) -> Program:
        """Starts a worker. With `wait` the worker has registered before the call returns."""
        flags = ("--dispatcher", dispatcher or self.target, *self.worker_flags, *flags)
        worker = Program("pecan-worker", flags, self.directory, f"worker-{len(self.workers)}").start()
        self.workers.append(worker)
        return worker.ready() if wait else worker

    def add_all(self, number: int, *flags: str) -> list[Program]:
        """Starts workers at the same time, and waits for all of them."""
        fresh = [self.add(*flags, wait=False) for _ in range(number)]
        return [worker.ready() for worker in fresh]

    def kill_workers(self) -> None:
        for worker in self.workers:
            worker.kill()

    def restart_workers(self) -> None:
        """Starts killed workers again at their old addresses, and waits for all of them."""
        for worker in self.workers:
            worker.start(worker.address)
        for worker in self.workers:
            worker.ready()

    def restart_dispatcher(self) -> None:
        """Starts a killed dispatcher again at its old address."""
        self.dispatcher.start(self.target).ready()

    def status(self) -> dict:
        """The service's status, as `pecanctl status --json` shows it. Raises AssertionError if the dispatcher does not answer.

        The session belongs to this object, so it goes directly to the dispatcher when the trainer's goes through a proxy.
        """
        try:
            self._session = self._session or session.Session(self.target, STATUS_S)
            return self._session.status()
        except pecan.PecanError as error:
            raise AssertionError(f"no status: {error}") from error

    def states(self) -> list[str]:
        """The states of the registered workers, sorted."""
        return sorted(worker["state"] for worker in self.status()["workers"])

    def leases(self) -> dict[tuple[str, int, int], tuple[int, str]]:
        """The lease and the worker's address of each leased stream."""
        return leases(self.status())

    def control(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of pecanctl that asks the dispatcher."""
        command = [str(programs.path("pecanctl")), *words, "--dispatcher", self.target]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    def journal(self) -> list[dict]:
        """Every record of a stopped dispatcher's journal, as `pecanctl store inspect --json` prints them."""
        inspected = subprocess.run(
            [str(programs.path("pecanctl")), "store", "inspect", "--json", str(self.work)],
            capture_output=True, text=True, timeout=WAIT_S, check=True,
        )  # fmt: skip
        return [json.loads(line) for line in inspected.stdout.splitlines()]

    def granted(self) -> list[tuple[str, ...]]:
        """The stream of each granted lease, from the logs. A poll of the status can miss a short stream.

        The dispatcher logs the leases of epochs with few streams. Workers log each stream that they start.
        """
        logs = (program.log.read_text(errors="replace") for program in (self.dispatcher, *self.workers))
        leases = {lease for log in logs for lease in _GRANT.findall(log)}
        return sorted(tuple(stream) for *stream, _ in leases)

    def clear(self) -> None:
        if self._session is not None:
            self._session.close()
        for program in (*self.workers, self.dispatcher):
            program.clear()

    def log_tail(self) -> str:
        """The ends of all logs, for the report of a failure."""
        return "\n".join(f"--- {p.label}\n{p.log_tail()}" for p in (self.dispatcher, *self.workers))


def leases(status: dict) -> dict[tuple[str, int, int], tuple[int, str]]:
    """The lease and the worker's address of each leased stream."""
    result: dict[tuple[str, int, int], tuple[int, str]] = {}
    for worker in status["workers"]:
        for stream in worker["streams"]:
            key = (stream["id"]["job_id"], int(stream["id"]["epoch"]), int(stream["id"]["stream"]))
            assert key not in result, f"stream {key} has two hosts"
            result[key] = (int(stream["lease"]), worker["address"]["tcp"])
    return result


_GRANT = re.compile(r'msg="(?:lease granted|the stream starts)"(?: worker=\S+)? job=(\S+) epoch=(\d+) stream=(\d+) lease=(\d+)')


class Observer:
    """Polls the dispatcher's status during a run: the leases of streams, and the duplicates that the trainer dropped.

    A dispatcher that is dead or stopped does not answer. The observer then polls again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leases: dict[tuple[str, int, int], list[tuple[int, str]]] = {}
        self.duplicates: dict[tuple[str, int], int] = {}
        self.looks = 0
        self._wrong: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        assert not self._wrong, self._wrong

    def look(self) -> None:
        """Polls once. Raises if the dispatcher does not answer."""
        status = self.cluster.status()
        self.looks += 1
        for key, lease in leases(status).items():
            seen = self.leases.setdefault(key, [])
            if not seen or seen[-1] != lease:
                if seen and lease[0] <= seen[-1][0]:
                    self._wrong.append(f"stream {key} went from lease {seen[-1]} to {lease}")
                seen.append(lease)
        for job in status["jobs"]:
            for epoch in job["epochs"]:
                for reported in epoch["passes"]:
                    key = (job["job_id"], int(epoch["epoch"]))
                    self.duplicates[key] = max(self.duplicates.get(key, 0), int(reported["duplicates_dropped"]))

    def _run(self) -> None:
        while not self._over.wait(0.15):
            try:
                self.look()
            except AssertionError:
                continue

    def moved(self) -> int:
        """The number of times that a stream got another lease."""
        return sum(times - 1 for times in collections.Counter(self.cluster.granted()).values())


@contextlib.contextmanager
def running_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Ends the cluster in every case, and prints its logs after a failure."""
    try:
        yield cluster
    except BaseException:
        print(cluster.log_tail())
        raise
    finally:
        cluster.clear()
