"""Private directories for the caches of clusters that belong to this process. They go with it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import tempfile

_PREFIX = "pecan-cache-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)-\w+")
_made: dict[str, int] = {}


def directory() -> str:
    """A new directory that only this user can use, beside what other processes of this user have left behind.

    A process that is killed leaves its directory. The next one removes it: what a cache holds can be lost at any time.
    """
    base = pathlib.Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for entry in base.iterdir():
            name = _NAME.fullmatch(entry.name)
            if name is not None and not _alive(int(name[1])) and entry.lstat().st_uid == os.geteuid():
                shutil.rmtree(entry, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    _made[made] = os.getpid()
    return made


def budget(path: str) -> int:
    """Bytes that a private cache may take: half of what is free now."""
    return max(1, shutil.disk_usage(path).free // 2)


def remove(path: str) -> None:
    """Removes a directory that this process made."""
    if _made.get(path) == os.getpid():
        del _made[path]
        shutil.rmtree(path, ignore_errors=True)


def remove_all() -> None:
    """Runs when the interpreter leaves, behind the end of the workers."""
    for path in list(_made):
        remove(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
