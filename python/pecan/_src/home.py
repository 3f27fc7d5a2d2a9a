"""The user's directory: what Pecan keeps between two runs of a script."""

from __future__ import annotations

import os


def directory(name: str) -> str:
    """Returns the path of a part of the user's directory: in `PECAN_HOME`, or in the user's directory for caches.

    The path is relative if the user has no home directory; then nothing is kept. Go does not see environment variables
    that Python sets.
    """
    home = os.environ.get("PECAN_HOME")
    if home:
        return os.path.join(os.path.abspath(home), name)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(caches, "pecan", name)


def learns() -> bool:
    """Returns whether private clusters keep what was learned from jobs. `PECAN_LEARN=0` turns it off."""
    return os.environ.get("PECAN_LEARN") != "0"
