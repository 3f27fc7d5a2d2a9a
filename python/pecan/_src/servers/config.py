"""Configurations of dispatchers and workers: checked at construction, and turned into flags of the programs."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pecan._src import checks, errors

# With a shorter timeout, a healthy worker on a busy host looks dead.
_MIN_WORKER_TIMEOUT_MS = 100
# A host name or address, with or without a port. An IPv6 address with a port is in brackets.
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
        raise errors.InvalidArgumentError(f"`{name}` {str(value)!r} contains a NUL, which is not valid in a path")


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
                f"`worker_addresses` must be a list of strings, but contains {address!r} of type "
                f"{type(address).__name__}"
            )
        if not _ADDRESS.fullmatch(address) and not _is_ipv6(address):
            raise errors.InvalidArgumentError(
                f'each of `worker_addresses` must be "host:port" or "host", got {address!r}'
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
    """Returns the text of a flag that has no value: present if True."""
    return "" if value else None


def _list(value: Sequence[str]) -> str | None:
    return ",".join(value) or None


# Field, flag, and a function that formats the value. None omits the flag; an empty text writes the flag alone.
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
    ("cache_write_rate", "--cache-write-rate", str),
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
    """Returns the flags of all fields that have a value. The program uses its default for the others."""
    arguments: list[str] = []
    for field, flag, write in flags:
        text = None if values[field] is None else write(values[field])
        if text is not None:
            arguments += [flag, text] if text else [flag]
    return arguments


def _listening(config: DispatcherConfig | WorkerConfig) -> dict[str, str | None]:
    """Returns the addresses to listen on, each a host and a port in one flag."""
    metrics = None if config.metrics_port is None else f"{config.host}:{config.metrics_port}"
    return {"listen": f"{config.host}:{config.port}", "metrics_listen": metrics}


@dataclasses.dataclass(frozen=True)
class DispatcherConfig:
    """Configuration of a dispatcher. The first fields have the names and meanings of tf.data service.

    Attributes:
        port: Port to listen on, 0 to 65535; 0 picks a free one.
        work_dir: Directory for the durable state. None keeps the state in memory, and a restart loses it.
        fault_tolerant_mode: Requires that a restart loses no state, which needs `work_dir`. A dispatcher with a
            `work_dir` never loses state.
        worker_addresses: The accepted workers, each "host:port" or "host"; None accepts any worker.
        job_gc_timeout_ms: Milliseconds without trainers after which the dispatcher removes a named job; None uses the
            program's default.
        worker_timeout_ms: Milliseconds without a message after which a worker's streams move to other workers, at
            least 100; None uses the program's default.
        host: Address to listen on. The default accepts only processes on this host.
        log_level: Lowest level that the dispatcher logs: "debug", "info", "warn" or "error".
        work_dir_reserve_bytes: Free bytes on the disk of `work_dir`. Below that number the dispatcher accepts nothing
            new until space is free again. 0 turns the check off; None means 64 MiB. Needs `work_dir`.
        dataset_timeout_ms: Milliseconds without jobs after which the dispatcher removes a dataset; None means never.
        metrics_port: Port on `host` for metrics, health and readiness over HTTP. 0 picks a free port and logs it;
            None serves no metrics.

    Raises:
        PecanError: For an invalid value; also a `ValueError` or a `TypeError` that names the field.
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
                "fault_tolerant_mode=True needs a work_dir, where the dispatcher stores its state"
            )
        _directory("work_dir", self.work_dir, "to use memory only")
        if self.work_dir_reserve_bytes is not None:
            _not_negative("work_dir_reserve_bytes", self.work_dir_reserve_bytes)
            if self.work_dir is None:
                raise errors.InvalidArgumentError("`work_dir_reserve_bytes` has no effect without a work_dir")
        _addresses(self.worker_addresses)
        for what in ("job_gc_timeout_ms", "worker_timeout_ms", "dataset_timeout_ms"):
            if getattr(self, what) is not None:
                checks.milliseconds(what, getattr(self, what))
        if self.worker_timeout_ms is not None and self.worker_timeout_ms < _MIN_WORKER_TIMEOUT_MS:
            raise errors.InvalidArgumentError(
                f"`worker_timeout_ms` must be at least {_MIN_WORKER_TIMEOUT_MS}, got {self.worker_timeout_ms}: with a "
                "shorter timeout, healthy workers look dead between two heartbeats"
            )

    def arguments(self) -> list[str]:
        """Returns the flags of `pecan-dispatcher`."""
        return _written(_DISPATCHER_FLAGS, vars(self) | _listening(self))


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker. The first fields have the names and meanings of tf.data service.

    Attributes:
        dispatcher_address: Address of the dispatcher, "host:port" or "pecan://host:port". Required.
        worker_address: "host:port" at which trainers reach this worker; None takes the address that it listens on.
            "%port%" stands for `port`, which must then not be 0.
        port: Port of the data plane, 0 to 65535; 0 picks a free one.
        dispatcher_timeout_ms: Milliseconds that the worker waits for the dispatcher when it starts.
        host: Address to listen on. The default accepts only processes on this host.
        max_streams: Most streams that run at once; None means one per core.
        window_bytes: Bytes of ready elements that the worker buffers for all streams together; None uses the program's
            default.
        log_level: Lowest level that the worker logs: "debug", "info", "warn" or "error".
        cache_dir: Directory for the elements of `pecan.cache()`. All workers of a service must see the same
            directory. None turns caching off on this worker.
        cache_bytes: Most bytes that the files in `cache_dir` may have together; None sets no bound.
        cache_write_rate: Most bytes that the worker writes into `cache_dir` in a second, at least 1 MiB; None sets no
            bound.
        cache_compress: Compresses cached elements if that makes them at least a quarter smaller. Without it, the worker
            does so only if `cache_dir` is slower than the compressor.
        cache_orphan_after_ms: Milliseconds for which the worker leaves a file that belongs to no cache in `cache_dir`;
            None means ten minutes.
        checkpoint_dir: Directory for checkpoints of streams that another worker cannot start at an index. All workers
            must see the same directory. None writes no checkpoints, and such streams restart from the beginning.
        checkpoint_interval_ms: Least milliseconds between two checkpoints of a stream; None means 10 seconds.
        checkpoint_share: Largest share of the worker's time that checkpoints may take, above 0 and at most 1.
        drain_timeout_ms: Milliseconds for which a stopping worker serves the elements that it has computed and
            finishes streams that cannot move. Then its streams move to other workers. 0 moves them immediately;
            None means 5 seconds.
        shared_memory_bytes: Bytes of shared memory for each trainer on this host; 0 turns it off, None means 1 GiB.
        threads: Threads in each of TensorFlow's thread pools; None means one per core.
        metrics_port: Port on `host` for metrics, health and readiness over HTTP. 0 picks a free port and logs it;
            None serves no metrics.

    Raises:
        PecanError: For an invalid value; also a `ValueError` or a `TypeError` that names the field.
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
    cache_write_rate: int | None = None
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
        for what in ("max_streams", "window_bytes", "cache_bytes", "cache_write_rate", "threads"):
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
                    f"`worker_address` {self.worker_address!r} needs a port other than 0: give the port, or leave "
                    "worker_address out to take the address that the worker listens on"
                )
            checks.service_target(self.worker_address.replace("%port%", str(self.port)), "worker_address")

    def arguments(self) -> list[str]:
        """Returns the flags of `pecan-worker`."""
        assert self.dispatcher_address is not None
        values = vars(self) | _listening(self)
        values["dispatcher_address"] = checks.service_target(self.dispatcher_address)
        if self.worker_address is not None:
            values["worker_address"] = self.worker_address.replace("%port%", str(self.port))
        if self.checkpoint_dir is None:
            values["checkpoint_share"] = None
        return _written(_WORKER_FLAGS, values)
