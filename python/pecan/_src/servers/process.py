"""Child processes that end with this one, however it ends."""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from pecan._src import errors
from pecan._src.servers import programs, scratch

_LISTENING = "listening on "
# Lines of a child's log that are kept for its obituary.
_KEPT_LINES = 40
# What TensorFlow's library writes by itself when it is loaded: it explains no death.
_CHATTER = re.compile(r"I\d{4} \d\d:\d\d:|WARNING: All log messages before absl::InitializeLog\(\) is called")
_STOP_GRACE_S = 5.0
_EXIT_GRACE_S = 1.0
_LAST_WORDS_S = 2.0


class Process:
    """One of the programs, running as a child.

    The child's standard input is a pipe. When this process ends, even by SIGKILL, the pipe closes and the child stops.
    The child runs in a session of its own, so that Ctrl-C in a terminal reaches only this process.

    Attributes:
        name: The program.
        pid: The child's process id.
        owner: The process that started it.
    """

    def __init__(self, name: str, arguments: Sequence[str], on_exit: Callable[[Process], None] | None = None) -> None:
        self.name = name
        self.owner = os.getpid()
        self._on_exit = on_exit
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._state = threading.Condition()
        self._address: str | None = None
        self._ended = False
        self._stopping = False
        self._child = subprocess.Popen(
            [str(programs.path(name)), *arguments, "--exit-with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=programs.environment(name),
            start_new_session=True,
        )
        self.pid = self._child.pid
        self._log_reader = threading.Thread(target=self._read_log, name=f"{name}-{self.pid}-log", daemon=True)
        self._log_reader.start()
        threading.Thread(target=self._read_output, name=f"{name}-{self.pid}", daemon=True).start()
        threading.Thread(target=self._wait, name=f"{name}-{self.pid}-wait", daemon=True).start()
        _children.add(self)

    def address(self, timeout_s: float) -> str:
        """Waits until the program serves, and returns its address.

        Raises:
            ServerError: If the program ended, or does not serve in time. The message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        with self._state:
            while self._address is None:
                if self._ended:
                    raise errors.ServerError(self.obituary("ended before it served"))
                left = deadline - time.monotonic()
                if left <= 0:
                    raise errors.ServerError(self.obituary(f"does not serve after {timeout_s:g} s"))
                self._state.wait(min(left, 0.1))
            return self._address

    @property
    def running(self) -> bool:
        """Whether the child is alive."""
        return not self._ended

    @property
    def stopping(self) -> bool:
        """Whether the child was told to stop."""
        return self._stopping

    def obituary(self, what: str) -> str:
        """What happened, with the last lines of the child's log."""
        code = self._child.returncode
        how = "" if code is None else f" (exit code {code})" if code >= 0 else f" (killed by signal {-code})"
        lines = "\n".join(f"  {line}" for line in list(self._lines)[-12:] if not _CHATTER.match(line))
        return f"{self.name} with process id {self.pid} {what}{how}" + (
            f"; its last words were:\n{lines}" if lines else ""
        )

    def tell_to_stop(self) -> None:
        """Asks the child to stop, without waiting."""
        self._stopping = True
        if os.getpid() != self.owner:
            return
        stdin = self._child.stdin
        if stdin is not None:
            with contextlib.suppress(OSError):
                stdin.close()
        self._signal(signal.SIGTERM)

    def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Stops the child and waits for it. After the grace period it kills the child."""
        if os.getpid() != self.owner:
            return
        self.tell_to_stop()
        if not self.join(grace_s):
            self.kill()

    def kill(self) -> None:
        """Kills the child, as a crash would."""
        self._signal(signal.SIGKILL)
        self.join(_STOP_GRACE_S)

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the child's end; False when it did not come in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._state:
            while not self._ended:
                left = 0.2 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                self._state.wait(min(left, 0.2))
        return True

    def _signal(self, number: int) -> None:
        # Popen looks whether the child was reaped already, so no other process can be hit.
        if os.getpid() == self.owner:
            self._child.send_signal(number)

    def _read_output(self) -> None:
        assert self._child.stdout is not None
        for raw in self._child.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            if line.startswith(_LISTENING) and self._address is None:
                with self._state:
                    self._address = line[len(_LISTENING) :].strip()
                    self._state.notify_all()

    def _read_log(self) -> None:
        assert self._child.stderr is not None
        for raw in self._child.stderr:
            self._lines.append(raw.decode("utf-8", "replace").rstrip())

    def _wait(self) -> None:
        self._child.wait()
        # Why it ended is in its last lines. What it started may hold the pipe open behind it.
        self._log_reader.join(_LAST_WORDS_S)
        with self._state:
            self._ended = True
            self._state.notify_all()
        _children.discard(self)
        if self._on_exit is not None and not self._stopping:
            self._on_exit(self)


_children: weakref.WeakSet[Process] = weakref.WeakSet()


def _end_all() -> None:
    """Runs when the interpreter leaves; what is still there is killed."""
    # A process that was forked off this one leaves them alone.
    children = [child for child in list(_children) if child.running and child.owner == os.getpid()]
    for child in children:
        child.tell_to_stop()
    deadline = time.monotonic() + _EXIT_GRACE_S
    for child in children:
        if not child.join(max(0.0, deadline - time.monotonic())):
            child.kill()
    scratch.remove_all()


atexit.register(_end_all)
