"""Python lines in a separate process, for tests that exit, fork or use much memory.

A script imports TensorFlow and Pecan first, which takes about 2 s. `say(...)` prints a line, and `Script.line()` reads it.
"""

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
# A shell starts background processes with SIGINT ignored, and the script inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
def say(*words):
    print(*words, flush=True)
"""


class Script:
    """A Python process that runs `lines`, and its output. `through` is a command that starts Python, such as `ip netns exec`."""

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
        """Sends SIGINT until the script prints a line, and returns the line.

        Python drops a KeyboardInterrupt that is raised in a finalizer, so one signal may not be enough.
        """
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
