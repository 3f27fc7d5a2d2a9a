"""Options of `distribute()` and `from_dataset_id()`: checks them and converts them to `ReadOptions`."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import numbers
import re
from collections.abc import Mapping
from typing import Any

from pecan._src import checks, errors, workers

#: Bytes of elements that one iterator may have requested and not yet returned.
DEFAULT_MAX_OUTSTANDING_BYTES = 256 << 20
#: Seconds without an answer from the dispatcher after which a call fails.
DEFAULT_DISPATCHER_TIMEOUT_S = 10.0
#: Seconds without a server after which an iterator fails. A restarted server is back sooner.
DEFAULT_OUTAGE_TIMEOUT_S = 60.0

#: Least and greatest weight of a job.
WEIGHTS = (0.01, 100.0)
#: Tenant of jobs that name none.
DEFAULT_TENANT = "default"
#: Largest number of streams of a dataset.
MAX_STREAMS = 1 << 16
#: Size of the largest element that a worker can send.
MAX_ELEMENT_BYTES = 2 << 30


class ShardingPolicy(enum.IntEnum):
    """How the source is divided among workers. Names and meanings are those of tf.data service.

    Streams are not bound to workers. Therefore no policy needs a fixed list of workers, and a worker's restart loses or
    repeats no element, except with `OFF`.

    Attributes:
        OFF: Every worker returns the whole dataset.
        DYNAMIC: Each element once. Splits go to whichever worker is free.
        FILE: Each element once. Streams get whole files; their number is the length of the dispatcher's list of
            workers. Without a list, there is one stream for each of up to 8 files, and 8 for up to 35. More files have
            one stream for every four files, at most 16.
        DATA: Each element once. Streams get positions in the source.
        FILE_OR_DATA: FILE if there are enough files, else DATA.
        HINT: Each element once. `shard(SHARD_HINT, SHARD_HINT)` marks the step at which the pipeline is divided.
    """

    OFF = 0
    DYNAMIC = 1
    FILE = 2
    DATA = 3
    FILE_OR_DATA = 4
    HINT = 5


#: Older names of two policies in tf.data service.
LEGACY_MODES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}
#: How the order of a dataset's steps is chosen.
ORDERS = ("off", "auto", "paper", "paper_unguarded")
#: How much the values of elements may differ in another order.
TOLERANCES = ("approximate", "exact", "any")
DEFAULT_ORDER = "auto"
DEFAULT_TOLERANCE = "approximate"
#: Which steps may be cached.
CACHES = ("candidates", "auto", "paper", "off")
DEFAULT_CACHE = "candidates"
#: Pecan's processing modes, named by their guarantees.
GUARANTEES = ("exactly_once", "deterministic", "at_least_once", "at_most_once", "off")


def as_policy(value: Any) -> ShardingPolicy | None:
    """Returns the policy for a policy of Pecan or TensorFlow, or an older name; None for any other value."""
    if isinstance(value, ShardingPolicy):
        return value
    if isinstance(value, str):
        return LEGACY_MODES.get(value)
    kind = type(value)
    # TensorFlow's enumeration is recognised by its name, so that this needs no import of TensorFlow.
    if kind.__name__ == "ShardingPolicy" and isinstance(value, enum.Enum) and value.name in ShardingPolicy.__members__:
        return ShardingPolicy[value.name]
    return None


def _mode_and_sharding(processing_mode: Any, sharding: Any, deterministic: bool) -> tuple[str, str]:
    """Returns the mode and the lower-case name of the policy. Raises if two arguments contradict each other."""
    policy = as_policy(processing_mode)
    mode = processing_mode if policy is None else None
    if mode is not None and mode not in GUARANTEES:
        raise errors.InvalidArgumentError(
            'processing_mode should be a ShardingPolicy, "parallel_epochs", "distributed_epoch", or one of '
            f"{', '.join(map(repr, GUARANTEES))}, got {processing_mode!r}"
        )
    if sharding is not None:
        own = as_policy(sharding)
        if own is None:
            raise errors.InvalidArgumentError(f"sharding should be a ShardingPolicy, got {sharding!r}")
        if policy is not None and policy != own:
            raise errors.InvalidArgumentError(
                f"processing_mode={processing_mode!r} and sharding={sharding!r} contradict each other: give one of them"
            )
        policy = own
    if policy == ShardingPolicy.OFF:
        if mode not in (None, "off"):
            raise errors.InvalidArgumentError(
                f"processing_mode={mode!r} guarantees each element once, but ShardingPolicy.OFF returns it once per "
                "worker: give one of them"
            )
        mode = "off"
    elif mode == "off" and policy is not None:
        raise errors.InvalidArgumentError(
            f'processing_mode="off" gives every worker the whole dataset, but sharding={policy.name} divides it: give '
            "one of them"
        )
    if deterministic:
        if mode not in (None, "exactly_once", "deterministic"):
            given = "ShardingPolicy.OFF" if policy is not None else f"processing_mode={mode!r}"
            raise errors.InvalidArgumentError(
                f"deterministic=True guarantees a fixed order with each element once, but {given} does not: give one "
                "of them"
            )
        mode = "deterministic"
    mode = mode or "exactly_once"
    if mode == "off":
        return mode, "off"
    return mode, "unspecified" if policy is None else policy.name.lower()


def _order(order: Any, tolerance: Any, mode: str) -> tuple[str, str]:
    """Returns the order and the tolerance, with the defaults of the mode."""
    name = checks.one_of("order", order, ORDERS)
    given = None if tolerance is None else checks.one_of("order_tolerance", tolerance, TOLERANCES)
    if not name.startswith("paper"):
        # The time at which a new order starts depends on measurements. Deterministic elements must not depend on it.
        return name, given or ("exact" if mode == "deterministic" else DEFAULT_TOLERANCE)
    if given not in (None, "any"):
        raise errors.InvalidArgumentError(
            f'`order`="{name}" does not limit how values change, but `order_tolerance`={given!r} does: leave '
            '`order_tolerance` out, or give order="auto"'
        )
    return name, "any"


def _streams(value: Any, mode: str, policy: str) -> int:
    """Returns the number of streams; 0 for "auto"."""
    if isinstance(value, str) and value == "auto":
        return 0
    if isinstance(value, str) or value is None:
        raise errors.InvalidArgumentError(f'`streams` should be "auto" or a number, got {value!r}')
    number = checks.positive("streams", value)
    if number > MAX_STREAMS:
        raise errors.InvalidArgumentError(f"`streams` must be at most {MAX_STREAMS}, got {number}")
    if mode == "off":
        raise errors.InvalidArgumentError(
            f"`streams`={number} divides the dataset, but ShardingPolicy.OFF gives every worker the whole dataset: "
            "leave `streams` out, or choose another policy"
        )
    if policy == "hint":
        raise errors.InvalidArgumentError(
            f"`streams`={number} has no effect with ShardingPolicy.HINT, where steps after the hint count in each "
            "stream: leave `streams` out, or choose another policy"
        )
    return number


def compression_name(value: Any) -> str:
    """Returns "auto", "snappy" or "none" for a value of the argument `compression`."""
    if value is None:
        return "none"
    if isinstance(value, str) and value.lower() in ("auto", "snappy", "none"):
        return value.lower()
    raise errors.InvalidArgumentError(f'compression should be "auto", "snappy" or None, got {value!r}')


def _protocol(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, str) and value.lower() in ("auto", "tcp", "shm"):
        return value.lower()
    raise errors.InvalidArgumentError(
        f'data_transfer_protocol should be "auto" (shared memory on one host, else TCP), "tcp" or "shm", got {value!r}'
    )


def timeouts(dispatcher_timeout_s: Any) -> tuple[float, float]:
    """Returns the timeouts in seconds of a call and of an iterator that waits for elements."""
    if dispatcher_timeout_s is None:
        return DEFAULT_DISPATCHER_TIMEOUT_S, DEFAULT_OUTAGE_TIMEOUT_S
    given = checks.seconds("dispatcher_timeout_s", dispatcher_timeout_s)
    return given, given


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Checked options of one distributed dataset.

    Attributes:
        mode: One of `GUARANTEES`.
        sharding: Lower-case name of a policy, or "unspecified".
        job_name: Name of a shared job; None for a job of its own.
        seed: Seed from which all others are derived; None lets the service choose.
        allow_nondeterministic: Whether a weaker mode may replace a `mode` whose guarantee the dataset cannot keep.
        compression: "auto", "snappy" or "none".
        protocol: "auto", "tcp" or "shm".
        max_outstanding_bytes: Bytes that one iterator may have requested and not yet returned.
        max_outstanding_requests: The same bound in elements, used if an element's size is known; None for no bound.
        max_element_bytes: Size of the largest accepted element; None for the maximum.
        payload_checksum: Whether payloads between hosts have checksums, as headers do.
        order: One of `ORDERS`.
        order_tolerance: One of `TOLERANCES`.
        cache: One of `CACHES`.
        streams: Number of streams that the user asks for; 0 lets the service choose.
        placement: What the job wants of its workers, as the bindings take it; None if all serve it.
        weight: The job's part of its tenant's slots, compared with those of the tenant's other jobs.
        tenant: Who the job belongs to.
        target_workers: "local" if only workers on this host may serve the job, else "unspecified".
        local_workers: Which local workers this process runs.
        dispatcher_timeout_s: Seconds without the dispatcher after which a call fails.
        outage_timeout_s: Seconds without the dispatcher or any worker after which a waiting iterator fails.
    """

    mode: str = "exactly_once"
    sharding: str = "unspecified"
    job_name: str | None = None
    seed: int | None = None
    allow_nondeterministic: bool = False
    compression: str = "auto"
    protocol: str = "auto"
    max_outstanding_bytes: int = DEFAULT_MAX_OUTSTANDING_BYTES
    max_outstanding_requests: int | None = None
    max_element_bytes: int | None = None
    payload_checksum: bool = False
    order: str = DEFAULT_ORDER
    order_tolerance: str = DEFAULT_TOLERANCE
    cache: str = DEFAULT_CACHE
    streams: int = 0
    placement: dict[str, Any] | None = None
    weight: float = 1.0
    tenant: str = DEFAULT_TENANT
    target_workers: str = "unspecified"
    local_workers: workers.LocalWorkers = workers.NO_LOCAL_WORKERS
    dispatcher_timeout_s: float = DEFAULT_DISPATCHER_TIMEOUT_S
    outage_timeout_s: float = DEFAULT_OUTAGE_TIMEOUT_S


def _weight(value: Any) -> float:
    """Returns the weight of a job."""
    least, most = WEIGHTS
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise errors.InvalidTypeError(f"`weight` must be a number, got {value!r}")
    if not least <= float(value) <= most:
        raise errors.InvalidArgumentError(f"`weight` must be from {least} to {most:g}, got {value!r}")
    return float(value)


def _tenant(value: Any) -> str:
    """Returns the name of a tenant."""
    if not isinstance(value, str):
        raise errors.InvalidTypeError(f"`tenant` must be a string, got {value!r} of type {type(value).__name__}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", value):
        raise errors.InvalidArgumentError(
            "`tenant` must be 1 to 63 lower-case letters, digits, dots, underscores or hyphens, the first a letter or "
            f"digit, got {value!r}"
        )
    return value


def _consumers(consumer_index: Any, num_consumers: Any, name: str | None) -> None:
    """Checks the arguments of coordinated reads, and raises if they are valid: Pecan does not support such reads."""
    if (consumer_index is None) != (num_consumers is None):
        raise errors.InvalidArgumentError(
            "set both `consumer_index` and `num_consumers`, or neither; got "
            f"consumer_index={consumer_index}, num_consumers={num_consumers}"
        )
    if num_consumers is None:
        return
    number, index = checks.positive("num_consumers", num_consumers), checks.integer("consumer_index", consumer_index)
    if not 0 <= index < number:
        raise errors.InvalidArgumentError(f"`consumer_index` must be from 0 to {number - 1}, got {index}")
    if name is None:
        raise errors.InvalidArgumentError(
            f"`job_name` must be set when `num_consumers` is: consumers find each other by it (num_consumers={number})"
        )
    raise errors.UnsupportedError(
        "coordinated reads (`consumer_index`, `num_consumers`) are not supported yet: leave both out, and trainers "
        "with one `job_name` share the elements, first come, first served"
    )


def read_options(
    *,
    processing_mode: Any,
    sharding: Any,
    deterministic: Any,
    job_name: Any,
    consumer_index: Any,
    num_consumers: Any,
    max_outstanding_requests: Any,
    data_transfer_protocol: Any,
    compression: Any,
    cross_trainer_cache: Any,
    target_workers: Any,
    max_outstanding_bytes: Any,
    max_element_bytes: Any,
    payload_checksum: Any,
    dispatcher_timeout_s: Any,
    seed: Any,
    allow_nondeterministic: Any,
    order: Any,
    order_tolerance: Any,
    cache: Any,
    streams: Any,
    objective: Any,
    budget_per_hour: Any,
    worker_limits: Any,
    trainer_type: Any,
    weight: Any,
    tenant: Any,
    service: Any,
    local_workers: Any,
    local_worker_nice: Any,
) -> ReadOptions:
    """Checks the user's arguments and returns them in one form. Raises a PecanError that names a wrong one."""
    mode, policy = _mode_and_sharding(processing_mode, sharding, checks.flag("deterministic", deterministic))
    name = checks.name("job_name", job_name)
    _consumers(consumer_index, num_consumers, name)
    if cross_trainer_cache is not None:
        raise errors.UnsupportedError(
            "`cross_trainer_cache` is not supported yet: give each trainer a job of its own, and each reads every "
            "element"
        )
    chosen = workers.objective_of(objective, service is None, local_workers, policy)
    placement = workers.placement(chosen, budget_per_hour, worker_limits, trainer_type)
    own = workers.local(local_workers, local_worker_nice, objective, service is None, placement)
    if placement is not None and policy not in workers.ANY_WORKER:
        raise errors.InvalidArgumentError(
            "`objective` needs workers that may take any part of the dataset, and ShardingPolicy."
            f"{policy.upper()} does not allow that: leave `objective` out, or give ShardingPolicy.DYNAMIC or no policy"
        )
    requests = -1
    if max_outstanding_requests is not None:
        requests = checks.integer("max_outstanding_requests", max_outstanding_requests)
    if requests <= 0 and requests != -1:
        raise errors.InvalidArgumentError(
            f"`max_outstanding_requests` must be positive, or -1 or None for no bound, got {requests}"
        )
    if seed is not None:
        seed = checks.integer("seed", seed)
        if not -(1 << 63) <= seed < 1 << 64:
            raise errors.InvalidArgumentError(f"`seed` must fit into 64 bits, got {seed}")
        seed %= 1 << 64
    if max_element_bytes is not None and checks.positive("max_element_bytes", max_element_bytes) > MAX_ELEMENT_BYTES:
        raise errors.InvalidArgumentError(
            f"`max_element_bytes` must be at most {MAX_ELEMENT_BYTES} (2 GiB), got {max_element_bytes}"
        )
    call, outage = timeouts(dispatcher_timeout_s)
    steps, tolerance = _order(order, order_tolerance, mode)
    return ReadOptions(
        mode=mode,
        sharding=policy,
        job_name=name,
        seed=seed,
        allow_nondeterministic=checks.flag("allow_nondeterministic", allow_nondeterministic),
        compression=compression_name(compression),
        protocol=_protocol(data_transfer_protocol),
        max_outstanding_bytes=checks.positive("max_outstanding_bytes", max_outstanding_bytes),
        max_outstanding_requests=None if requests == -1 else requests,
        max_element_bytes=None if max_element_bytes is None else int(max_element_bytes),
        payload_checksum=checks.flag("payload_checksum", payload_checksum),
        order=steps,
        order_tolerance=tolerance,
        cache=checks.one_of("cache", cache, CACHES),
        streams=_streams(streams, mode, policy),
        placement=placement,
        weight=_weight(weight),
        tenant=_tenant(tenant),
        target_workers=workers.target(target_workers),
        local_workers=own,
        dispatcher_timeout_s=call,
        outage_timeout_s=outage,
    )


_PARAMETERS = tuple(inspect.signature(read_options).parameters)


def from_parameters(values: Mapping[str, Any]) -> ReadOptions:
    """Calls `read_options` with the values of the same names, such as the `locals()` of a public function."""
    return read_options(**{name: values[name] for name in _PARAMETERS})
