"""Lower priority for local workers, so that the trainer's own threads come first."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import time

_log = logging.getLogger("pecan")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_PREFIX = "pecan-local-workers-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)")
# The default weight of a group is 100. Like a nice value of 10, it is about a tenth of the usual share.
_WEIGHT = "10"
_LOWEST = 19
_SESSION_TRIES, _SESSION_PAUSE_S = 8, 0.05
# Groups of this process, each with the id of the process that created it: a forked child has them too.
_owners: dict[pathlib.Path, int] = {}


def lower(pid: int, nice: int) -> None:
    """Lowers the priority of a child process that leads its own session, as far as this process may.

    Args:
        pid: The child. All its threads are in its process group and session.
        nice: What is added to the nice value of this process, 0 to 19. 0 changes nothing.
    """
    if nice == 0:
        return
    try:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PGRP, pid, min(own + nice, _LOWEST))
    except OSError as error:
        _log.debug("the nice value of process %d stays as it is: %s", pid, error)
    try:
        _lower_session(pid, nice)
    except OSError as error:
        _log.debug("the nice value of the session of process %d stays as it is: %s", pid, error)
    try:
        (_group() / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        _log.debug("process %d has no cgroup with a lower weight: %s", pid, error)


def _lower_session(pid: int, nice: int) -> None:
    """Raises the nice value of a child's session above that of this process's session.

    Some kernels divide the processors among sessions first ("autogroup"). The nice value of a process then counts
    within its session only, and the session's value counts among sessions.

    Raises:
        OSError: If the kernel does not do so, or does not allow it. Users other than root may make one change in 0.1 s.
    """
    if os.getsid(pid) != pid:
        return
    # Empty for a process whose control group counts instead.
    words = pathlib.Path("/proc/self/autogroup").read_text().split()
    value = min((int(words[-1]) if words else 0) + nice, _LOWEST)
    for again in range(_SESSION_TRIES, 0, -1):
        try:
            pathlib.Path(f"/proc/{pid}/autogroup").write_text(str(value))
            return
        except BlockingIOError:
            if again == 1:
                raise
            time.sleep(_SESSION_PAUSE_S)


def remove_groups() -> None:
    """Removes the control groups of this process. Runs when the interpreter exits, after the workers have ended."""
    for group, owner in list(_owners.items()):
        if owner == os.getpid():
            del _owners[group]
            with contextlib.suppress(OSError):
                group.rmdir()


def _group() -> pathlib.Path:
    """Returns a child of this process's control group that has a lower weight.

    Raises:
        OSError: If there is no cgroup v2, or this process may not create the child. A group other than the root cannot
            have both processes and weighted children.
    """
    parent = _own_group()
    group = parent / f"{_PREFIX}{os.getpid()}"
    if group in _owners:
        return group
    for left in parent.glob(_PREFIX + "*"):
        name = _NAME.fullmatch(left.name)
        if name is not None and not pathlib.Path("/proc", name[1]).exists():
            with contextlib.suppress(OSError):
                left.rmdir()
    group.mkdir(exist_ok=True)
    try:
        if "cpu" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+cpu")
        (group / "cpu.weight").write_text(_WEIGHT)
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise
    _owners[group] = os.getpid()
    return group


def _own_group() -> pathlib.Path:
    """Returns the directory of this process's control group of version 2. Raises FileNotFoundError without one."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        group = _CGROUPS / path.lstrip("/")
        if number == "0" and (group / "cgroup.controllers").exists():
            return group
    raise FileNotFoundError(f"no control group of version 2 is in {_CGROUPS}")
