"""Child processes that end when this process ends, even if it is killed."""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from pecan._src import errors
from pecan._src.servers import priority, programs, scratch

_log = logging.getLogger("pecan")
_LISTENING = "listening on "
# The last lines of a child's log that are kept, and how many of them an error message shows.
_KEPT_LINES = 40
_SHOWN_LINES = 12
# Lines that TensorFlow writes whenever it is loaded. They explain no exit, so error messages omit them.
_NOISE = re.compile(r"I\d{4} \d\d:\d\d:|WARNING: All log messages before absl::InitializeLog\(\) is called")
_STOP_GRACE_S = 5.0
_EXIT_GRACE_S = 1.0
_LOG_GRACE_S = 2.0


class Process:
    """One of the programs as a child process.

    The child's standard input is a pipe. When this process ends, even by SIGKILL, the pipe closes and the child stops.
    The child runs in its own session, so that Ctrl-C in a terminal reaches only this process.

    Attributes:
        name: Name of the program.
        pid: Process id of the child.
        owner: Process id of the process that started it. Only that process sends it signals.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        on_exit: Callable[[Process], None] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the program.

        Args:
            name: Name of the program.
            arguments: Its arguments.
            on_exit: Called on a thread of its own after the child ended, unless it was asked to stop.
            variables: More environment variables.
        """
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
            env={**programs.environment(name), **(variables or {})},
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

        Args:
            timeout_s: Most seconds to wait.

        Raises:
            ServerError: If the program ended, or does not serve in time. The message contains the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        with self._state:
            while self._address is None:
                if self._ended:
                    raise errors.ServerError(self.describe_exit("ended before it served"))
                left = deadline - time.monotonic()
                if left <= 0:
                    raise errors.ServerError(self.describe_exit(f"does not serve after {timeout_s:g} s"))
                self._state.wait(min(left, 0.1))
            return self._address

    @property
    def running(self) -> bool:
        """Whether the child is alive."""
        return not self._ended

    @property
    def stopping(self) -> bool:
        """Whether the child was asked to stop."""
        return self._stopping

    def describe_exit(self, what: str) -> str:
        """Returns a message: what happened to the child, its exit code or signal, and the last lines of its log."""
        code = self._child.returncode
        how = "" if code is None else f" (exit code {code})" if code >= 0 else f" (killed by signal {-code})"
        lines = "\n".join(f"  {line}" for line in list(self._lines)[-_SHOWN_LINES:] if not _NOISE.match(line))
        log = f"; its log ends with:\n{lines}" if lines else ""
        return f"{self.name} with process id {self.pid} {what}{how}{log}"

    def request_stop(self) -> None:
        """Asks the child to stop, and does not wait."""
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
        self.request_stop()
        if not self.join(grace_s):
            self.kill()

    def kill(self) -> None:
        """Kills the child, as a crash would."""
        self._signal(signal.SIGKILL)
        self.join(_STOP_GRACE_S)

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the child. Returns False if the timeout in seconds passed first; None waits forever."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._state:
            while not self._ended:
                left = 0.2 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                self._state.wait(min(left, 0.2))
        return True

    def _signal(self, number: int) -> None:
        # Popen sends nothing if the child has been reaped, so that no other process with the same id gets the signal.
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
            _log.debug("%s: %s", self.name, self._lines[-1])

    def _wait(self) -> None:
        self._child.wait()
        # The last lines explain the exit, so wait for them. A process that the child started may keep the pipe open.
        self._log_reader.join(_LOG_GRACE_S)
        with self._state:
            self._ended = True
            self._state.notify_all()
        _children.discard(self)
        if self._on_exit is not None and not self._stopping:
            self._on_exit(self)


_children: weakref.WeakSet[Process] = weakref.WeakSet()


def _end_all() -> None:
    """Stops all children when the interpreter exits, and kills those that do not end in time."""
    # A process forked from this one must not stop them.
    children = [child for child in list(_children) if child.running and child.owner == os.getpid()]
    for child in children:
        child.request_stop()
    deadline = time.monotonic() + _EXIT_GRACE_S
    for child in children:
        if not child.join(max(0.0, deadline - time.monotonic())):
            child.kill()
    scratch.remove_all()
    priority.remove_groups()


atexit.register(_end_all)
