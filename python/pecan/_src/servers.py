"""Dispatchers and workers as child processes, for tests, notebooks and the private cluster of a trainer."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from pecan._src import errors, options, programs
from pecan._src.processes import Process

# How long a program may take to serve. A worker loads TensorFlow first.
_START_S = 60.0
# With less, a worker that is well looks dead as soon as a busy host lets it wait for its turn.
_MIN_WORKER_TIMEOUT_MS = 100
# A host name or address, with a port or without; an IPv6 address with a port is in brackets.
_ADDRESS = re.compile(r"([^\s,/:@\[\]]+|\[[0-9A-Fa-f:.%]+\])(:[1-9][0-9]{0,4})?")
_LEVELS = ("debug", "info", "warn", "error")


def _port(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.InvalidTypeError(f"`port` must be an integer, got {value!r}")
    if not 0 <= value < 65536:
        raise errors.InvalidArgumentError(f"`port` must be from 0 (picks a free one) to 65535, got {value}")


def _host(value: Any) -> None:
    if not isinstance(value, str) or not value or (any(c in value for c in " /:@") and not value.startswith("[")):
        raise errors.InvalidArgumentError(f"`host` must be a host name or an address to listen on, got {value!r}")


def _level(value: Any) -> None:
    if value not in _LEVELS:
        raise errors.InvalidArgumentError(f"`log_level` should be one of {', '.join(_LEVELS)}, got {value!r}")


def _directory(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, (str, pathlib.PurePath)):
        raise errors.InvalidTypeError(f"`work_dir` must be a path, got {value!r} of type {type(value).__name__}")
    if not str(value):
        raise errors.InvalidArgumentError("`work_dir` must not be empty: give a directory, or None to use memory only")
    if "\0" in str(value):
        raise errors.InvalidArgumentError(f"`work_dir` {str(value)!r} has a NUL, which no path may have")


def _addresses(value: Any) -> None:
    if value is None:
        return
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise errors.InvalidTypeError(f"`worker_addresses` must be a list of addresses, got {value!r}")
    for address in value:
        if not isinstance(address, str):
            raise errors.InvalidTypeError(
                f"`worker_addresses` must be a list of strings, got {address!r} of type {type(address).__name__} in it"
            )
        if not _ADDRESS.fullmatch(address) and not _is_ipv6(address):
            raise errors.InvalidArgumentError(
                f'`worker_addresses` must have "host:port" or "host" each, got {address!r}'
            )


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class DispatcherConfig:
    """How a dispatcher runs. The first fields have tf.data service's names and meanings.

    Attributes:
        port: Port to listen on; 0 picks a free one.
        work_dir: Directory for the durable state; None keeps it in memory, and a restart forgets it.
        fault_tolerant_mode: Says that a restart must forget nothing, which needs a work_dir. With a work_dir it is so
            in any case.
        worker_addresses: The only workers accepted, "host:port" or "host" each; None accepts any.
        job_gc_timeout_ms: After how long without trainers a named job is forgotten; None leaves it at the default.
        worker_timeout_ms: After how long a silence a worker's streams go to others; None leaves it at the default.
        host: Address to listen on. Only processes of this host reach the default.
        log_level: What the dispatcher logs: "debug", "info", "warn" or "error".
    """

    port: int = 0
    work_dir: str | pathlib.Path | None = None
    fault_tolerant_mode: bool = False
    worker_addresses: Sequence[str] | None = None
    job_gc_timeout_ms: int | None = None
    worker_timeout_ms: int | None = None
    host: str = "127.0.0.1"
    log_level: str = "info"

    def __post_init__(self) -> None:
        _port(self.port)
        _host(self.host)
        _level(self.log_level)
        if self.fault_tolerant_mode and self.work_dir is None:
            raise errors.InvalidArgumentError(
                "fault_tolerant_mode=True needs a work_dir in which the dispatcher keeps what it must not forget"
            )
        _directory(self.work_dir)
        _addresses(self.worker_addresses)
        for what in ("job_gc_timeout_ms", "worker_timeout_ms"):
            if getattr(self, what) is not None:
                options.milliseconds(what, getattr(self, what))
        if self.worker_timeout_ms is not None and self.worker_timeout_ms < _MIN_WORKER_TIMEOUT_MS:
            raise errors.InvalidArgumentError(
                f"`worker_timeout_ms` must be at least {_MIN_WORKER_TIMEOUT_MS}, got {self.worker_timeout_ms}: with "
                "less, workers that are well would look dead between two heartbeats"
            )

    def arguments(self) -> list[str]:
        """The flags of pecan-dispatcher."""
        flags = ["--listen", f"{self.host}:{self.port}", "--log-level", self.log_level]
        if self.work_dir is not None:
            flags += ["--work-dir", str(self.work_dir)]
        if self.worker_addresses:
            flags += ["--worker-addresses", ",".join(self.worker_addresses)]
        if self.job_gc_timeout_ms is not None:
            flags += ["--job-timeout", f"{self.job_gc_timeout_ms}ms"]
        if self.worker_timeout_ms is not None:
            flags += ["--worker-dead-after", f"{self.worker_timeout_ms}ms"]
        return flags


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """How a worker runs. The first fields have tf.data service's names and meanings.

    Attributes:
        dispatcher_address: The dispatcher, "host:port" or "pecan://host:port". Has to be given.
        worker_address: "host:port" by which trainers reach this worker; None takes the one it listens on. "%port%"
            stands for `port`, which must not be 0 then.
        port: Port of the data plane; 0 picks a free one.
        dispatcher_timeout_ms: How long the dispatcher may be out of reach at the start.
        host: Address to listen on. Only processes of this host reach the default.
        max_streams: How many streams run at once; None for one per core.
        window_bytes: Bytes of ready elements kept for all streams together; None for the worker's default.
        log_level: What the worker logs: "debug", "info", "warn" or "error".
    """

    dispatcher_address: str | None = None
    worker_address: str | None = None
    port: int = 0
    dispatcher_timeout_ms: int = 10_000
    host: str = "127.0.0.1"
    max_streams: int | None = None
    window_bytes: int | None = None
    log_level: str = "info"

    def __post_init__(self) -> None:
        if self.dispatcher_address is None:
            raise errors.InvalidArgumentError('`dispatcher_address` must be given: "host:port" of a running dispatcher')
        options.service_target(self.dispatcher_address, "dispatcher_address")
        _port(self.port)
        _host(self.host)
        _level(self.log_level)
        options.milliseconds("dispatcher_timeout_ms", self.dispatcher_timeout_ms)
        for what in ("max_streams", "window_bytes"):
            if getattr(self, what) is not None:
                options.positive(what, getattr(self, what))
        if self.worker_address is not None:
            if not isinstance(self.worker_address, str):
                raise errors.InvalidTypeError(
                    f"`worker_address` must be a string, got {self.worker_address!r} of type "
                    f"{type(self.worker_address).__name__}"
                )
            if "%port%" in self.worker_address and self.port == 0:
                raise errors.InvalidArgumentError(
                    f"`worker_address` {self.worker_address!r} with port=0: give the port, or leave worker_address out "
                    "to take the address that the worker listens on"
                )
            options.service_target(self.worker_address.replace("%port%", str(self.port)), "worker_address")

    def arguments(self) -> list[str]:
        """The flags of pecan-worker."""
        assert self.dispatcher_address is not None
        flags = ["--dispatcher", options.service_target(self.dispatcher_address)]
        flags += ["--listen", f"{self.host}:{self.port}", "--log-level", self.log_level]
        flags += ["--dispatcher-timeout", f"{self.dispatcher_timeout_ms}ms"]
        if self.worker_address is not None:
            flags += ["--advertise", self.worker_address.replace("%port%", str(self.port))]
        if self.max_streams is not None:
            flags += ["--max-streams", str(self.max_streams)]
        if self.window_bytes is not None:
            flags += ["--window-bytes", str(self.window_bytes)]
        return flags


class _Server:
    """What dispatcher and worker have in common."""

    _program = ""

    def __init__(self, arguments: list[str], start: bool) -> None:
        self._arguments = arguments
        self._process: Process | None = None
        self._stopped = False
        if start:
            self.start()

    def start(self) -> None:
        """Starts the server and waits until it serves. A server that was stopped cannot be started again."""
        if self._stopped:
            raise errors.ServerError(f"this {self._program} was stopped: make a new one")
        if self._process is None:
            self._process = Process(self._program, self._arguments)
        try:
            self._address = self._process.address(_START_S)
        except BaseException:
            self._stopped = True
            self._process.stop()
            raise

    @property
    def process(self) -> Process:
        """The child process, for tests that want to see it die."""
        if self._process is None:
            raise errors.ServerError(f"this {self._program} was not started: call start()")
        return self._process

    def join(self) -> None:
        """Waits until the server has ended."""
        self.process.join()

    def stop(self) -> None:
        """Stops the server. Idempotent."""
        self._stopped = True
        if self._process is not None:
            self._process.stop()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class DispatchServer(_Server):
    """A dispatcher in a child process, which ends with this process at the latest.

    Example:
        >>> with pecan.DispatchServer() as dispatcher:
        ...     worker = pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target))
        ...     dataset = dataset.apply(pecan.distribute(dispatcher.target))
    """

    _program = programs.DISPATCHER

    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        """Makes the server.

        Args:
            config: How it runs.
            start: Whether it is started at once.

        Raises:
            ServerError: If it does not start, for example because the port is in use.
        """
        config = DispatcherConfig() if config is None else config
        if not isinstance(config, DispatcherConfig):
            raise errors.InvalidTypeError(f"`config` must be a pecan.DispatcherConfig, got {type(config).__name__}")
        super().__init__(config.arguments(), start)

    @property
    def target(self) -> str:
        """What to give to `distribute()` and to workers."""
        _ = self.process
        return f"pecan://{self._address}"


class WorkerServer(_Server):
    """A worker in a child process, which ends with this process at the latest."""

    _program = programs.WORKER

    def __init__(self, config: WorkerConfig, start: bool = True) -> None:
        """Makes the server.

        Args:
            config: How it runs, and where its dispatcher is.
            start: Whether it is started at once.

        Raises:
            ServerError: If it does not start, for example because the dispatcher cannot be reached.
        """
        if not isinstance(config, WorkerConfig):
            raise errors.InvalidTypeError(f"`config` must be a pecan.WorkerConfig, got {type(config).__name__}")
        super().__init__(config.arguments(), start)

    @property
    def target(self) -> str:
        """Where the worker's data plane serves."""
        _ = self.process
        return str(self._address)


class LocalCluster:
    """A dispatcher and workers on this host, for tests and notebooks.

    Example:
        >>> with pecan.LocalCluster(workers=2) as cluster:
        ...     dataset = dataset.apply(pecan.distribute(cluster.target))
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        dispatcher: DispatcherConfig | None = None,
        worker: WorkerConfig | None = None,
    ) -> None:
        """Starts the cluster and waits until all of it serves.

        Args:
            workers: How many workers; 0 for none yet.
            dispatcher: How the dispatcher runs.
            worker: How each worker runs; its dispatcher_address is replaced.
        """
        if workers != 0:
            options.positive("workers", workers)
        if worker is not None and not isinstance(worker, WorkerConfig):
            raise errors.InvalidTypeError(f"`worker` must be a pecan.WorkerConfig, got {type(worker).__name__}")
        self._config = worker
        self.workers: list[WorkerServer] = []
        self.dispatcher = DispatchServer(dispatcher)
        try:
            if workers != 0:
                self.add_workers(workers)
        except BaseException:
            self.stop()
            raise

    @property
    def target(self) -> str:
        """What to give to `distribute()`."""
        return self.dispatcher.target

    def add_workers(self, number: int = 1) -> list[WorkerServer]:
        """Starts more workers, all at once, and gives them; at least one."""
        options.positive("number", number)
        config = self._config or WorkerConfig(self.target)
        config = dataclasses.replace(config, dispatcher_address=self.target)
        fresh = [WorkerServer(config, start=False) for _ in range(number)]
        for server in fresh:
            server._process = Process(server._program, server._arguments)
        self.workers += fresh
        for server in fresh:
            server.start()
        return fresh

    def stop(self) -> None:
        """Stops all of it. Datasets that read from it fail from now on. Idempotent."""
        from pecan._src import session

        if self.dispatcher._process is not None:
            session.retire(options.service_target(self.target))
        for server in self.workers:
            if server._process is not None:
                server._process.tell_to_stop()
        for server in self.workers:
            server.stop()
        self.dispatcher.stop()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
