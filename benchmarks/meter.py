"""Reads the kernel's books: CPU seconds and resident memory of processes, and what machine this is."""

from __future__ import annotations

import os
import pathlib
import platform
import resource
import subprocess
from collections.abc import Iterable

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root: int | None = None) -> set[int]:
    """All processes below root (this process by default), itself left out."""
    parents: dict[int, int] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
            except (OSError, IndexError):
                continue
    found, frontier = set(), {root or os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system seconds that the processes have used so far, all their threads summed."""
    total = 0.0
    for pid in pids:
        fields = _stat(pid)
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def own_cpu_seconds() -> float:
    """User and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_mb(pid: int) -> tuple[float, float]:
    """Resident megabytes of a process: its own, and those it shares with others through memory files."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Rss")}
    return found["RssAnon"] + found["RssFile"], found["RssShmem"]


def command(pid: int) -> str:
    """Name of the program that a process runs."""
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").rsplit("/", 1)[-1]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (the name before it may hold blanks)."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    import tensorflow as tf

    def line(path: str, key: str) -> str:
        for text in pathlib.Path(path).read_text().splitlines():
            if text.startswith(key):
                return text.split(":", 1)[1].strip()
        return "unknown"

    def said(*words: str) -> str:
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return "unknown"

    return {
        "processor": line("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": f"{int(line('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "go": said("go", "env", "GOVERSION"),
        "commit": said("git", "rev-parse", "--short", "HEAD"),
        "load before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }
