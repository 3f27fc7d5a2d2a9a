"""Temporary cache directories for clusters of this process, removed when the process ends."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import tempfile

_PREFIX = "pecan-cache-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)-\w+")
# Directories of this process by the id of their creator, because a forked child must not delete them.
_owners: dict[str, int] = {}


def directory() -> str:
    """Creates a directory that only this user can access, and removes those of this user's dead processes.

    A process that is killed leaves its directory behind. Removing that directory loses only cached elements, which
    can be computed again.
    """
    base = pathlib.Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for entry in base.iterdir():
            name = _NAME.fullmatch(entry.name)
            if name is not None and not _alive(int(name[1])) and entry.lstat().st_uid == os.geteuid():
                shutil.rmtree(entry, ignore_errors=True)
    path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    _owners[path] = os.getpid()
    return path


def budget(path: str) -> int:
    """Returns the largest size of a private cache in bytes: half of the space that is free now."""
    return max(1, shutil.disk_usage(path).free // 2)


def remove(path: str) -> None:
    """Removes a directory if this process created it."""
    if _owners.get(path) == os.getpid():
        del _owners[path]
        shutil.rmtree(path, ignore_errors=True)


def remove_all() -> None:
    """Removes all directories of this process. Runs when the interpreter exits, after the workers have ended."""
    for path in list(_owners):
        remove(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
