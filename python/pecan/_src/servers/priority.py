"""Lower priority for local workers, so that the trainer's own threads come first."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import time
from collections.abc import Callable

_log = logging.getLogger("pecan")
_PROCESS = pathlib.Path("/proc/self")
_PREFIX = "pecan-local-workers-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)")
# By default a group has the weight 100 in version 2, and 1024 shares in version 1. Like a nice value of 10, a tenth of
# that is about a tenth of the usual processor time.
_WEIGHT, _SHARES = "10", "102"
_LOWEST = 19
_SESSION_TRIES, _SESSION_PAUSE_S = 8, 0.05
# Groups of this process by the id of their creator, because a forked child must not delete them.
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
        OSError: If no control group divides the processors, or this process may not create the child.
    """
    parent, weigh = _own_group()
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
        weigh(group)
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise
    _owners[group] = os.getpid()
    return group


def _weigh_v1(group: pathlib.Path) -> None:
    (group / "cpu.shares").write_text(_SHARES)


def _weigh_v2(group: pathlib.Path) -> None:
    control = group.parent / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")
    _admit(group)
    (group / "cpu.weight").write_text(_WEIGHT)


def _admit(group: pathlib.Path) -> None:
    """Lets a group of version 2 have processes beside those of its parent. It must be threaded for that."""
    if (group / "cgroup.type").read_text().strip() == "domain invalid":
        (group / "cgroup.type").write_text("threaded")


def _own_group() -> tuple[pathlib.Path, Callable[[pathlib.Path], None]]:
    """Returns the control group of this process that divides the processors, and what lowers the weight of a child.

    Raises:
        FileNotFoundError: If there is none, or its directory is not visible here.
    """
    for line in (_PROCESS / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _directory(path, "cgroup", "cpu"), _weigh_v1
        if number == "0":
            group = _directory(path, "cgroup2", None)
            if "cpu" in (group / "cgroup.controllers").read_text().split():
                return group, _weigh_v2
    raise FileNotFoundError("no control group divides the processors")


def _directory(path: str, kind: str, controller: str | None) -> pathlib.Path:
    """Returns the directory of a control group, in a mounted file system of a kind and with a controller.

    Raises:
        FileNotFoundError: If no mount shows the group. A container may show a part of the groups only.
    """
    for line in (_PROCESS / "mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        root, point = mount.split()[3:5]
        name, _, options = system.split(" ", 2)
        if name != kind or (controller is not None and controller not in options.split(",")) or ".." in path:
            continue
        with contextlib.suppress(ValueError):
            group = pathlib.Path(point, pathlib.PurePath(path).relative_to(root))
            if group.is_dir():
                return group
    raise FileNotFoundError(f"no mount shows the control group {path}")
