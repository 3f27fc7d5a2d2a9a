"""Python lines in a separate process, for tests that exit, fork, receive signals or use much memory.

Importing TensorFlow and Pecan takes about 3 s of CPU. A server imports both once, and forks a process for each script. The
process runs the lines as its main module, so Python exits there as it does after any script. The server runs no operation
of TensorFlow or Pecan, so a script starts with both imported and unused. `say(...)` prints a line, and `Script.line()`
reads it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN = """
import os, sys, time, gc, signal, threading
import tensorflow as tf, pecan
from pecan._src.servers import private_cluster
D = tf.data.Dataset
# A shell starts background processes with SIGINT ignored, and the script inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
def say(*words):
    print(*words, flush=True)
"""
# The main module of the server, and after the fork that of a script.
SERVER = """
import script
exec(script.BEGIN)
exec(compile(script.serve(int(sys.argv[1])), "<script>", "exec"))
"""


def _end_with_parent() -> None:
    """The kernel kills this process when its parent ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(control_fd: int) -> str:
    """Forks a process for each request. Returns in the child, with the script. Ends with the process that sends requests.

    A request has the descriptors of stdin, stdout, stderr and of a socket for replies. The first reply has a descriptor of
    the child's process, the second one its status.
    """
    _end_with_parent()
    control = socket.socket(fileno=control_fd)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for fd in select.select([control_fd, *children], [], [])[0]:
            if fd in children:
                pid, replies = children.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with replies, contextlib.suppress(OSError):
                    replies.send(str(status).encode())
                os.close(fd)
                continue
            message, files, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                os.closerange(files[-1], files[-1] + 1)
                for inherited in children:
                    os.close(inherited)
                for _, replies in children.values():
                    replies.close()
                control.close()
                return _become(json.loads(message), files[:3])
            for file in files[:3]:
                os.close(file)
            replies = socket.socket(fileno=files[3])
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (pid, replies)
            with contextlib.suppress(OSError):
                socket.send_fds(replies, [str(pid).encode()], [pidfd])


def _become(request: dict, files: list[int]) -> str:
    """Makes this process that of a script. Returns its lines."""
    _end_with_parent()
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request["network"]:
        with open(f"/run/netns/{request['network']}") as namespace:
            # 0x40000000 is CLONE_NEWNET.
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    return request["lines"]


class Server:
    """The process that scripts are forked from. It starts with the first script of a test process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests/e2e'}", TF_CPP_MIN_LOG_LEVEL="3")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()

    def start(self, request: dict, files: list[int]) -> tuple[int, int, socket.socket]:
        """Starts a script. Returns its pid, a descriptor of its process, and the socket that receives its status."""
        replies, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [json.dumps(request).encode()], [*files, theirs.fileno()])
        pid, (pidfd,), _, _ = socket.recv_fds(replies, 100, 1)
        return int(pid), pidfd, replies


_server: Server | None = None


class Process:
    """A script's process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, request: dict) -> None:
        global _server
        _server = _server or Server()
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self.pid, self._pidfd, self._replies = _server.start(request, theirs)
        for file in theirs:
            os.close(file)
        self.stdin = os.fdopen(pipes[0][1], "w")
        self.stdout, self.stderr = os.fdopen(pipes[1][0]), os.fdopen(pipes[2][0])
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Returns the exit code, or the negative number of the signal that ended the process."""
        if self.returncode is None:
            if not select.select([self._replies], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("script", timeout)
            self.returncode = int(self._replies.recv(100))
            self._replies.close()
            os.close(self._pidfd)
            self._pidfd = -1
        return self.returncode

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float, text: str = "") -> tuple[str, str]:
        """Writes the text as the last input, reads the rest of the outputs, and waits for the end. Closes the outputs."""
        end = time.monotonic() + timeout
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(text)
            self.stdin.close()
        rest = ["", ""]

        def read(number: int) -> None:
            rest[number] = (self.stdout, self.stderr)[number].read()

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("script", timeout)
        self.wait(max(0.0, end - time.monotonic()))
        self.stdout.close()
        self.stderr.close()
        return rest[0], rest[1]


class Script:
    """A Python process that runs `lines`, and its output.

    Args:
        lines: The script. The names of BEGIN are defined there.
        arguments: The values of `sys.argv[1:]`.
        network: Name of the network namespace that the script runs in.
        directory: The working directory. By default that of the test.
    """

    def __init__(self, lines: str, *arguments: str, network: str = "", directory: str | os.PathLike[str] = ".") -> None:
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), TF_CPP_MIN_LOG_LEVEL="3")
        self.process = Process(
            {
                "lines": textwrap.dedent(lines),
                "arguments": arguments,
                "network": network,
                "directory": os.path.abspath(directory),
                "environment": environment,
            }
        )

    def line(self) -> str:
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

    def rest(self, timeout: float = 60, text: str = "") -> tuple[int, str, str]:
        """Writes the text as the last input. Returns the exit code and the rest of the outputs."""
        out, err = self.process.communicate(timeout, text)
        return self.process.wait(timeout), out, err

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if not self.process.stdout.closed:
            self.process.communicate(timeout=180)
