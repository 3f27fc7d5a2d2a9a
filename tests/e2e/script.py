"""Some lines of Python in a process of their own: for what would end, fork or fill the process of the tests."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import pecan

ROOT = pathlib.Path(pecan.__file__).resolve().parent.parent
BEGIN = """
import ctypes, os, sys, time, gc, signal, threading
# PR_SET_PDEATHSIG: the script ends when the tests are killed.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
import tensorflow as tf, pecan
from pecan._src.servers import private_cluster
D = tf.data.Dataset
# Tests that a shell started in the background inherit that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
def say(*words):
    print(*words, flush=True)
"""


class Script:
    """A Python process that runs some lines, by way of another command if one is given, and what it prints."""

    def __init__(self, lines: str, through: list[str] | None = None) -> None:
        environment = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3")
        self.process = subprocess.Popen(
            [*(through or []), sys.executable, "-c", BEGIN + textwrap.dedent(lines)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the script ended: {self.process.communicate(timeout=180)}")
        return line.strip()

    def interrupted(self) -> str:
        """The line that it prints when Ctrl-C is pressed. Python drops one that comes while something is finalised, so people press again."""
        seen = threading.Event()

        def press() -> None:
            while not seen.wait(10):
                self.process.send_signal(signal.SIGINT)

        self.process.send_signal(signal.SIGINT)
        again = threading.Thread(target=press)
        again.start()
        try:
            return self.line()
        finally:
            seen.set()
            again.join()

    def rest(self, timeout: float = 60) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=180)
