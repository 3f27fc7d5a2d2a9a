"""Mounts and processes in namespaces of their own, which end with the command that makes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

# Runs the command that follows, which may begin with more options of unshare.
COMMAND = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")


def missing(programs: Sequence[str], packages: str) -> str:
    """Why programs cannot mount anything here; empty if they can."""
    for program in programs:
        if shutil.which(program) is None:
            return f"there is no {program}: apt-get install {packages}"
    return "" if os.getuid() == 0 else "only root may mount"
