"""Proxies between the processes of a scenario. They hold bytes, reset connections and exchange frames."""

from __future__ import annotations

import json
import pathlib
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def build(directory: pathlib.Path) -> pathlib.Path:
    """Compiles the proxy."""
    binary = directory / "proxy"
    subprocess.run(["go", "build", "-trimpath", "-p", "2", "-o", str(binary), "./tests/faults/proxy"], cwd=REPOSITORY, check=True, timeout=600)
    return binary


class Proxy:
    """A running proxy. proxy/main.go describes its commands."""

    def __init__(self, binary: pathlib.Path, to: str = "") -> None:
        self._process = subprocess.Popen(
            [str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, process_group=0
        )
        self.address = self._line().removeprefix("listening on ").strip()
        if to:
            self.send("to", to)

    def send(self, *words: object) -> dict[str, int]:
        """Sends a command, and returns the counters."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(str(word) for word in words) + "\n")
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the proxy ended with {self._process.wait()}"
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=180)
