"""Lower priority for child processes, as the kernel shows it."""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from pecan._src.servers import priority


@contextlib.contextmanager
def child(*, session: bool) -> Iterator[int]:
    """The id of a child process that sleeps."""
    process = subprocess.Popen(["sleep", "100"], start_new_session=session, process_group=None if session else 0)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def of_session(pid: int | str) -> int:
    """The nice value of a session. Skips the test where sessions have none."""
    file = pathlib.Path(f"/proc/{pid}/autogroup")
    words = file.read_text().split() if file.exists() else []
    if not words:
        pytest.skip("this kernel does not divide the processors among sessions")
    return int(words[-1])


def test_the_nice_value_of_a_child_is_raised():
    with child(session=True) as pid:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        priority.lower(pid, 7)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + 7, 19)


def test_the_nice_value_of_a_childs_session_is_raised():
    """Beside the sessions of other processes, the nice value of a process alone has no effect."""
    own = of_session("self")
    with child(session=True) as pid:
        priority.lower(pid, 7)
        assert of_session(pid) == min(own + 7, 19)


def test_the_session_of_this_process_keeps_its_nice_value():
    own = of_session("self")
    with child(session=False) as pid:
        priority.lower(pid, 7)
        assert of_session("self") == own
