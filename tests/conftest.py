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


# Files that take longest, the longest first. Files run side by side, and one that is begun last would be waited for alone.
LONGEST = (
    "tests/e2e/test_leaks.py",
    "tests/e2e/test_huge_elements.py",
    "tests/e2e/test_leaving.py",
    "tests/e2e/test_processes.py",
    "tests/faults/test_network.py",
    "tests/faults/test_thesis.py",
    "tests/e2e/test_resume.py",
    "tests/graph/test_proposals.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first; `make e2e` gives files out in this order."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(LONGEST)))


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> Iterator[Callable[[float], None]]:
    """Gives the test so many seconds from now on; then the process shows where every thread is, and ends.

    A wait inside TensorFlow cannot be interrupted from Python.
    """

    def set_limit(seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.stash[_STDERR])

    yield set_limit
    faulthandler.cancel_dump_traceback_later()
