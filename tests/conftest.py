"""What the tests of all rooms share: one that hangs shows where, and ends the run."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator

import pytest

_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the real standard error: while a test runs its output is captured, and a process that ends at once loses that."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[_STDERR] = os.dup(2)


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> Iterator[Callable[[float], None]]:
    """Gives the test so many seconds from now on; then the process shows where every thread is, and ends.

    A wait inside TensorFlow cannot be interrupted from Python.
    """

    def set_limit(seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.stash[_STDERR])

    yield set_limit
    faulthandler.cancel_dump_traceback_later()
