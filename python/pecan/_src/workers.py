"""Options of `distribute()` that say which workers serve a job, and which ones this process starts."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from pecan._src import checks, errors

#: What a service may minimise when it chooses workers for a job.
OBJECTIVES = ("cost", "time", "budget")
#: Sharding policies with which any worker may take any part of the dataset.
ANY_WORKER = ("unspecified", "dynamic")
# The objective of a private cluster that sizes itself.
_PRIVATE_OBJECTIVE = "cost"
#: What is added to the nice value of local workers.
DEFAULT_NICE = 10
_LARGEST_NICE = 19
#: Most local workers of one process.
MAX_LOCAL_WORKERS = 1024
# Memory that an idle worker does not share with other processes, at least.
_WORKER_BYTES = 48 << 20


@dataclasses.dataclass(frozen=True)
class LocalWorkers:
    """Which local workers this process runs.

    Attributes:
        number: Number that the user wants; None for "auto".
        decided: Whether the dispatcher decides on the number.
        nice: Number added to the workers' nice value; None adds nothing.
        private: Whether they are those of the private cluster.
        most: The most that may serve; None sets no bound.
    """

    number: int | None = None
    decided: bool = False
    nice: int | None = None
    private: bool = False
    most: int | None = None

    @property
    def starts(self) -> bool:
        """Whether this process starts some, or may."""
        return self.private or self.decided or bool(self.number)


NO_LOCAL_WORKERS = LocalWorkers()


def objective_of(given: Any, private: bool, local_workers: Any, policy: str) -> Any:
    """Returns the objective of a job. A private cluster sizes itself, unless the user gives the number of its workers.

    Args:
        given: The argument `objective`.
        private: Whether the job runs in the private cluster.
        local_workers: The argument `local_workers`.
        policy: Lower-case name of the sharding policy.
    """
    sizes_itself = private and isinstance(local_workers, str) and local_workers == "auto" and policy in ANY_WORKER
    return _PRIVATE_OBJECTIVE if given is None and sizes_itself else given


def placement(objective: Any, budget: Any, limits: Any, trainer_type: Any) -> dict[str, Any] | None:
    """Returns what the job wants of its workers; None without an objective."""
    if objective is None:
        for what, value in (("budget_per_hour", budget), ("worker_limits", limits), ("trainer_type", trainer_type)):
            if value:
                raise errors.InvalidArgumentError(f"`{what}`={value!r} has no effect without an `objective`: give one")
        return None
    name = checks.one_of("objective", objective, OBJECTIVES)
    if (name == "budget") != (budget is not None):
        raise errors.InvalidArgumentError('`objective`="budget" and `budget_per_hour` need each other: give both')
    if not isinstance(trainer_type, str):
        raise errors.InvalidTypeError(f"`trainer_type` should be a string, got {trainer_type!r}")
    wanted: dict[str, Any] = {"objective": name, "trainer_type": trainer_type}
    if budget is not None:
        wanted["budget_per_hour"] = checks.seconds("budget_per_hour", budget)
    if limits is not None and not (isinstance(limits, dict) and set(limits) <= {"remote", "local"}):
        raise errors.InvalidArgumentError(
            f'`worker_limits` should be a dictionary such as {{"remote": (1, 8), "local": (0, 2)}}, got {limits!r}'
        )
    for kind, bounds in (limits or {}).items():
        if not (isinstance(bounds, tuple | list) and len(bounds) == 2):
            raise errors.InvalidArgumentError(f"`worker_limits`[{kind!r}] should be (least, most), got {bounds!r}")
        least = checks.integer(f"worker_limits[{kind!r}][0]", bounds[0])
        most = None if bounds[1] is None else checks.integer(f"worker_limits[{kind!r}][1]", bounds[1])
        if least < 0 or (most is not None and most < least):
            raise errors.InvalidArgumentError(
                f"`worker_limits`[{kind!r}]={bounds!r}: the least number is at least 0 and at most the greatest one"
            )
        # The service takes 0 as no maximum, and -1 as no worker of the kind.
        wanted["min_" + kind], wanted["max_" + kind] = least, 0 if most is None else most or -1
    return wanted


def target(value: Any) -> str:
    """Returns the name of the workers that may serve the job. "AUTO" and "ANY" are all of them."""
    if not isinstance(value, str) or value.upper() not in ("AUTO", "ANY", "LOCAL"):
        raise errors.InvalidArgumentError(f'`target_workers` should be "AUTO", "ANY" or "LOCAL", got {value!r}')
    return "local" if value.upper() == "LOCAL" else "unspecified"


def local(value: Any, nice: Any, objective: Any, private: bool, placement: dict[str, Any] | None) -> LocalWorkers:
    """Returns which local workers this process runs.

    Args:
        value: The argument `local_workers`.
        nice: The argument `local_worker_nice`.
        objective: The argument `objective`.
        private: Whether they are those of the private cluster.
        placement: What the job wants of its workers; None without an objective.
    """
    most = (placement or {}).get("max_local", 0)
    if private and most < 0:
        raise errors.InvalidArgumentError(
            '`worker_limits`={"local": (0, 0)} leaves the private cluster without workers: allow at least 1, or give '
            "the `service` whose workers run the dataset"
        )
    number = None
    if not (isinstance(value, str) and value == "auto"):
        if isinstance(value, str) or value is None:
            raise errors.InvalidArgumentError(f'`local_workers` should be "auto" or a number, got {value!r}')
        number = checks.integer("local_workers", value)
        if not 0 <= number <= MAX_LOCAL_WORKERS:
            raise errors.InvalidArgumentError(f"`local_workers` must be from 0 to {MAX_LOCAL_WORKERS}, got {number}")
        if number > (room := _memory() // _WORKER_BYTES):
            raise errors.InvalidArgumentError(
                f"`local_workers`={number} needs more memory than this host has: each is a process with its own "
                f"TensorFlow, which takes {_WORKER_BYTES >> 20} MiB or more before it computes. Give at most {room}, "
                'better one per processor, or "auto"'
            )
        if private and number == 0:
            raise errors.InvalidArgumentError(
                "`local_workers`=0 leaves the private cluster without workers: give at least 1, or the `service` whose "
                "workers run the dataset"
            )
    if nice is not None:
        nice = checks.integer("local_worker_nice", nice)
        if not 0 <= nice <= _LARGEST_NICE:
            raise errors.InvalidArgumentError(f"`local_worker_nice` must be from 0 to {_LARGEST_NICE}, got {nice}")
    elif objective is not None or not private:
        nice = DEFAULT_NICE
    return LocalWorkers(number, number is None and placement is not None, nice, private, most or None)


def _memory() -> int:
    """Returns the bytes of memory of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
