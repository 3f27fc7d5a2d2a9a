"""Measures CPU and memory of processes with the kernel's counters, runs Go benchmarks, and describes the machine."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import resource
import subprocess
from collections.abc import Iterable

from row import ROOT

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root: int | None = None) -> set[int]:
    """Returns all descendants of a process, by default of this one."""
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
    """Returns the user and system seconds that all threads of the processes have used."""
    total = 0.0
    for pid in pids:
        fields = _stat(pid)
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def own_cpu_seconds() -> float:
    """Returns the user and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def all_cpu_seconds() -> float:
    """Returns the user and system seconds of this process and of all its descendants."""
    return own_cpu_seconds() + cpu_seconds(descendants())


def resident_mb(pid: int) -> tuple[float, float]:
    """Returns the resident megabytes of a process: its own, and those in memory files shared with others."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Rss")}
    return found["RssAnon"] + found["RssFile"], found["RssShmem"]


def command(pid: int) -> str:
    """Returns the name of the program that a process runs."""
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").rsplit("/", 1)[-1]


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat that follow the name of the program, which may contain blanks."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def go_benchmark(package: str, name: str, benchtime: str, unit: str = "ns/op") -> float:
    """Runs a Go benchmark of this repository, or the part of one that a slash names. Returns its figure in `unit`."""
    return go_figures(package, name, benchtime)[unit]


def go_figures(package: str, name: str, benchtime: str) -> dict[str, float]:
    """Runs a Go benchmark like `go_benchmark`. Returns its figures by unit."""
    pattern = "/".join(f"^{part}$" for part in name.split("/"))
    words = ["go", "test", "-run", "^$", "-bench", pattern, "-benchtime", benchtime, package]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    line = re.search(rf"^{name}\S*\s+\d+\s(.*)", done.stdout, re.MULTILINE)
    if line is None:
        raise RuntimeError(f"{' '.join(words)} printed no result:\n{done.stdout}{done.stderr}")
    return {unit: float(value) for value, unit in re.findall(r"([\d.]+) (\S+)", line[1])}


def machine() -> dict[str, str]:
    """Returns the description of this machine, for reports."""
    import tensorflow as tf

    def line(path: str, key: str) -> str:
        for text in pathlib.Path(path).read_text().splitlines():
            if text.startswith(key):
                return text.split(":", 1)[1].strip()
        return "unknown"

    def output(*words: str) -> str:
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
        "go": output("go", "env", "GOVERSION"),
        "commit": output("git", "rev-parse", "--short", "HEAD"),
        "load before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }
