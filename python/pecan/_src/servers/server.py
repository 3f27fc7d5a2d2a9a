"""Dispatchers and workers as child processes, for tests, notebooks and the private cluster of a trainer."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import Any

from pecan._src import checks, errors
from pecan._src.servers import local_workers, programs, scratch
from pecan._src.servers.config import DispatcherConfig, WorkerConfig
from pecan._src.servers.process import Process

# Seconds until a program must serve. A worker loads TensorFlow first.
_START_S = 60.0


class _Server:
    """Base class of the servers."""

    _program = ""

    def __init__(self, arguments: list[str], start: bool) -> None:
        self._arguments = arguments
        self._process: Process | None = None
        self._stopped = False
        if start:
            self.start()

    def start(self) -> None:
        """Starts the server and waits until it serves. A stopped server cannot be started again.

        Raises:
            ServerError: If the server was stopped, or does not serve within 60 s.
        """
        if self._stopped:
            raise errors.ServerError(f"this {self._program} was stopped: create a new one")
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
        """The child process, for tests that kill it."""
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
    """A dispatcher in a child process. It ends with this process at the latest.

    Example:
        >>> with pecan.DispatchServer() as dispatcher:
        ...     worker = pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target))
        ...     dataset = dataset.apply(pecan.distribute(dispatcher.target))
    """

    _program = programs.DISPATCHER

    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        """Creates the server.

        Args:
            config: Configuration; None uses the defaults.
            start: Whether to start the server immediately.

        Raises:
            ServerError: If the server does not start, for example because the port is in use.
        """
        config = DispatcherConfig() if config is None else config
        if not isinstance(config, DispatcherConfig):
            raise errors.InvalidTypeError(f"`config` must be a pecan.DispatcherConfig, got {type(config).__name__}")
        super().__init__(config.arguments(), start)

    @property
    def target(self) -> str:
        """Address of the dispatcher, for `distribute()` and workers."""
        _ = self.process
        return f"pecan://{self._address}"


class WorkerServer(_Server):
    """A worker in a child process. It ends with this process at the latest."""

    _program = programs.WORKER

    def __init__(self, config: WorkerConfig, start: bool = True) -> None:
        """Creates the server.

        Args:
            config: Configuration, with the address of the dispatcher.
            start: Whether to start the server immediately.

        Raises:
            ServerError: If the server does not start, for example because the dispatcher is unreachable.
        """
        if not isinstance(config, WorkerConfig):
            raise errors.InvalidTypeError(f"`config` must be a pecan.WorkerConfig, got {type(config).__name__}")
        super().__init__(config.arguments(), start)

    @property
    def target(self) -> str:
        """Address of the worker's data plane."""
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
        """Starts the cluster and waits until all servers serve.

        Args:
            workers: Number of workers; 0 starts none yet.
            dispatcher: Configuration of the dispatcher; None uses the defaults.
            worker: Configuration of each worker; the cluster replaces its `dispatcher_address`. Without a `cache_dir`
                the cluster creates a temporary one and removes it at the end. It uses at most half of the free space.

        Raises:
            ServerError: If a server does not start.
        """
        if workers != 0:
            checks.positive("workers", workers)
        if worker is not None and not isinstance(worker, WorkerConfig):
            raise errors.InvalidTypeError(f"`worker` must be a pecan.WorkerConfig, got {type(worker).__name__}")
        self._config = worker
        self.workers: list[WorkerServer] = []
        self.dispatcher = DispatchServer(dispatcher)
        self._cache_dir = None if worker is not None and worker.cache_dir is not None else scratch.directory()
        try:
            if workers != 0:
                self.add_workers(workers)
        except BaseException:
            self.stop()
            raise

    @property
    def target(self) -> str:
        """Address of the dispatcher, for `distribute()`."""
        return self.dispatcher.target

    def add_workers(self, number: int = 1) -> list[WorkerServer]:
        """Starts more workers at the same time.

        Args:
            number: Number of workers, at least 1.

        Returns:
            The new workers.
        """
        checks.positive("number", number)
        config = self._config or WorkerConfig(self.target)
        config = dataclasses.replace(config, dispatcher_address=self.target)
        if self._cache_dir is not None:
            size = config.cache_bytes or scratch.budget(self._cache_dir)
            config = dataclasses.replace(config, cache_dir=self._cache_dir, cache_bytes=size)
        servers = [WorkerServer(config, start=False) for _ in range(number)]
        for server in servers:
            server._process = Process(server._program, server._arguments)
        self.workers += servers
        for server in servers:
            server.start()
        return servers

    def stop(self) -> None:
        """Stops all servers, and the local workers of this process. Idempotent.

        Datasets that read from the cluster fail afterwards.
        """
        from pecan._src.client import session

        if self.dispatcher._process is not None:
            local_workers.stop(checks.service_target(self.target))
            session.retire(checks.service_target(self.target))
        for server in self.workers:
            if server._process is not None:
                server._process.request_stop()
        for server in self.workers:
            server.stop()
        self.dispatcher.stop()
        if self._cache_dir is not None:
            scratch.remove(self._cache_dir)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
