"""How dispatchers and workers are to run: checked when it is said, and turned into the programs' flags."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pecan._src import checks, errors

# With less, a worker that is well looks dead as soon as a busy host lets it wait for its turn.
_MIN_WORKER_TIMEOUT_MS = 100
# A host name or address, with a port or without; an IPv6 address with a port is in brackets.
_ADDRESS = re.compile(r"([^\s,/:@\[\]]+|\[[0-9A-Fa-f:.%]+\])(:[1-9][0-9]{0,4})?")
_LEVELS = ("debug", "info", "warn", "error")


def _port(value: Any, name: str = "port") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.InvalidTypeError(f"`{name}` must be an integer, got {value!r}")
    if not 0 <= value < 65536:
        raise errors.InvalidArgumentError(f"`{name}` must be from 0 (picks a free one) to 65535, got {value}")


def _host(value: Any) -> None:
    if not isinstance(value, str) or not value or (any(c in value for c in " /:@") and not value.startswith("[")):
        raise errors.InvalidArgumentError(f"`host` must be a host name or an address to listen on, got {value!r}")


def _level(value: Any) -> None:
    if value not in _LEVELS:
        raise errors.InvalidArgumentError(f"`log_level` should be one of {', '.join(_LEVELS)}, got {value!r}")


def _directory(name: str, value: Any, without: str) -> None:
    if value is None:
        return
    if not isinstance(value, (str, pathlib.PurePath)):
        raise errors.InvalidTypeError(f"`{name}` must be a path, got {value!r} of type {type(value).__name__}")
    if not str(value):
        raise errors.InvalidArgumentError(f"`{name}` must not be empty: give a directory, or None {without}")
    if "\0" in str(value):
        raise errors.InvalidArgumentError(f"`{name}` {str(value)!r} has a NUL, which no path may have")


def _share(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise errors.InvalidTypeError(f"`checkpoint_share` must be a number, got {value!r}")
    if not 0 < value <= 1:
        raise errors.InvalidArgumentError(f"`checkpoint_share` must be above 0 and at most 1, got {value}")


def _not_negative(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.InvalidTypeError(f"`{what}` must be an integer, got {value!r}")
    if not 0 <= value < 1 << 63:
        raise errors.InvalidArgumentError(f"`{what}` must be from 0 to 2**63 - 1, got {value}")


def _metrics_port(value: Any) -> None:
    if value is not None:
        _port(value, "metrics_port")


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


def _ms(value: int) -> str:
    return f"{value}ms"


def _switch(value: bool) -> str | None:
    """A flag without a value."""
    return "" if value else None


def _list(value: Sequence[str]) -> str | None:
    return ",".join(value) or None


# Field, flag, and how its value is written: None leaves the flag out, an empty text gives it alone.
_Flags = tuple[tuple[str, str, Callable[[Any], "str | None"]], ...]

_DISPATCHER_FLAGS: _Flags = (
    ("listen", "--listen", str),
    ("log_level", "--log-level", str),
    ("work_dir", "--work-dir", str),
    ("worker_addresses", "--worker-addresses", _list),
    ("job_gc_timeout_ms", "--job-timeout", _ms),
    ("worker_timeout_ms", "--worker-dead-after", _ms),
    ("work_dir_reserve_bytes", "--work-dir-reserve-bytes", str),
    ("dataset_timeout_ms", "--dataset-timeout", _ms),
    ("metrics_listen", "--metrics-listen", str),
)
_WORKER_FLAGS: _Flags = (
    ("dispatcher_address", "--dispatcher", str),
    ("listen", "--listen", str),
    ("log_level", "--log-level", str),
    ("dispatcher_timeout_ms", "--dispatcher-timeout", _ms),
    ("worker_address", "--advertise", str),
    ("max_streams", "--max-streams", str),
    ("window_bytes", "--window-bytes", str),
    ("cache_dir", "--cache-dir", str),
    ("cache_bytes", "--cache-bytes", str),
    ("cache_compress", "--cache-compress", _switch),
    ("cache_orphan_after_ms", "--cache-orphan-after", _ms),
    ("checkpoint_dir", "--checkpoint-dir", str),
    ("checkpoint_share", "--checkpoint-share", "{:g}".format),
    ("checkpoint_interval_ms", "--checkpoint-interval", _ms),
    ("drain_timeout_ms", "--drain-timeout", _ms),
    ("shared_memory_bytes", "--shared-memory-bytes", str),
    ("threads", "--threads", str),
    ("metrics_listen", "--metrics-listen", str),
)


def _written(flags: _Flags, values: Mapping[str, Any]) -> list[str]:
    """The flags of what has a value; the program's default holds for what has none."""
    words: list[str] = []
    for field, flag, write in flags:
        text = None if values[field] is None else write(values[field])
        if text is not None:
            words += [flag, text] if text else [flag]
    return words


def _listening(config: DispatcherConfig | WorkerConfig) -> dict[str, str | None]:
    """Where a program listens: a host and a port are one flag."""
    metrics = None if config.metrics_port is None else f"{config.host}:{config.metrics_port}"
    return {"listen": f"{config.host}:{config.port}", "metrics_listen": metrics}


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
        work_dir_reserve_bytes: Free bytes on the disk of `work_dir` below which nothing new is begun until there is
            room again; 0 for none, None for the default of 64 MiB. Needs a work_dir.
        dataset_timeout_ms: After how long a dataset without jobs is forgotten; None for never.
        metrics_port: Port on `host` for metrics, health and readiness over HTTP; 0 picks a free one, which the log
            names; None serves none.

    Raises:
        PecanError: For a value that cannot be right, a `ValueError` or a `TypeError` that names it.
    """

    port: int = 0
    work_dir: str | pathlib.Path | None = None
    fault_tolerant_mode: bool = False
    worker_addresses: Sequence[str] | None = None
    job_gc_timeout_ms: int | None = None
    worker_timeout_ms: int | None = None
    host: str = "127.0.0.1"
    log_level: str = "info"
    work_dir_reserve_bytes: int | None = None
    dataset_timeout_ms: int | None = None
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        _port(self.port)
        _host(self.host)
        _level(self.log_level)
        _metrics_port(self.metrics_port)
        if self.fault_tolerant_mode and self.work_dir is None:
            raise errors.InvalidArgumentError(
                "fault_tolerant_mode=True needs a work_dir in which the dispatcher keeps what it must not forget"
            )
        _directory("work_dir", self.work_dir, "to use memory only")
        if self.work_dir_reserve_bytes is not None:
            _not_negative("work_dir_reserve_bytes", self.work_dir_reserve_bytes)
            if self.work_dir is None:
                raise errors.InvalidArgumentError("`work_dir_reserve_bytes` is of no use without a work_dir")
        _addresses(self.worker_addresses)
        for what in ("job_gc_timeout_ms", "worker_timeout_ms", "dataset_timeout_ms"):
            if getattr(self, what) is not None:
                checks.milliseconds(what, getattr(self, what))
        if self.worker_timeout_ms is not None and self.worker_timeout_ms < _MIN_WORKER_TIMEOUT_MS:
            raise errors.InvalidArgumentError(
                f"`worker_timeout_ms` must be at least {_MIN_WORKER_TIMEOUT_MS}, got {self.worker_timeout_ms}: with "
                "less, workers that are well would look dead between two heartbeats"
            )

    def arguments(self) -> list[str]:
        """The flags of pecan-dispatcher."""
        return _written(_DISPATCHER_FLAGS, vars(self) | _listening(self))


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
        cache_dir: Directory for what passes `pecan.cache()`; all workers of a service have to see the same one. None:
            the step does nothing.
        cache_bytes: Most bytes that the files there may have together; None for no bound.
        cache_compress: Compresses what is kept where that makes it smaller by a quarter.
        cache_orphan_after_ms: How long a file there that belongs to no cache is left alone; None for ten minutes.
        checkpoint_dir: Directory that all workers see, in which streams are saved that another worker could not begin
            at their index. None: none are, and they are run again from their start.
        checkpoint_interval_ms: Shortest time between two checkpoints of a stream; None for 10 seconds.
        checkpoint_share: The most of the worker's time that checkpoints may take, above 0 and at most 1.
        drain_timeout_ms: How long a worker that is stopped goes on serving what it has made, and runs streams to their
            ends that may not move, before its streams go to others; 0 moves them at once, None is 5 seconds.
        shared_memory_bytes: Shared memory for each trainer on this host; 0 turns it off, None is 1 GiB.
        threads: Threads in each of TensorFlow's pools; None for one per core.
        metrics_port: Port on `host` for metrics, health and readiness over HTTP; 0 picks a free one, which the log
            names; None serves none.

    Raises:
        PecanError: For a value that cannot be right, a `ValueError` or a `TypeError` that names it.
    """

    dispatcher_address: str | None = None
    worker_address: str | None = None
    port: int = 0
    dispatcher_timeout_ms: int = 10_000
    host: str = "127.0.0.1"
    max_streams: int | None = None
    window_bytes: int | None = None
    log_level: str = "info"
    cache_dir: str | pathlib.Path | None = None
    cache_bytes: int | None = None
    cache_compress: bool = False
    cache_orphan_after_ms: int | None = None
    checkpoint_dir: str | pathlib.Path | None = None
    checkpoint_interval_ms: int | None = None
    checkpoint_share: float = 0.01
    drain_timeout_ms: int | None = None
    shared_memory_bytes: int | None = None
    threads: int | None = None
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        if self.dispatcher_address is None:
            raise errors.InvalidArgumentError('`dispatcher_address` must be given: "host:port" of a running dispatcher')
        checks.service_target(self.dispatcher_address, "dispatcher_address")
        _port(self.port)
        _host(self.host)
        _level(self.log_level)
        checks.milliseconds("dispatcher_timeout_ms", self.dispatcher_timeout_ms)
        _metrics_port(self.metrics_port)
        _share(self.checkpoint_share)
        _directory("cache_dir", self.cache_dir, "to keep nothing")
        _directory("checkpoint_dir", self.checkpoint_dir, "to save nothing")
        if not isinstance(self.cache_compress, bool):
            raise errors.InvalidTypeError(f"`cache_compress` must be True or False, got {self.cache_compress!r}")
        for what in ("max_streams", "window_bytes", "cache_bytes", "threads"):
            if getattr(self, what) is not None:
                checks.positive(what, getattr(self, what))
        for what in ("cache_orphan_after_ms", "checkpoint_interval_ms"):
            if getattr(self, what) is not None:
                checks.milliseconds(what, getattr(self, what))
        for what in ("drain_timeout_ms", "shared_memory_bytes"):
            if getattr(self, what) is not None:
                _not_negative(what, getattr(self, what))
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
            checks.service_target(self.worker_address.replace("%port%", str(self.port)), "worker_address")

    def arguments(self) -> list[str]:
        """The flags of pecan-worker."""
        assert self.dispatcher_address is not None
        values = vars(self) | _listening(self)
        values["dispatcher_address"] = checks.service_target(self.dispatcher_address)
        if self.worker_address is not None:
            values["worker_address"] = self.worker_address.replace("%port%", str(self.port))
        if self.checkpoint_dir is None:
            values["checkpoint_share"] = None
        return _written(_WORKER_FLAGS, values)
