"""Options of all tests: a test that hangs prints where it hangs and ends the run, and the longest files run first.

| directory | tests |
| --- | --- |
| e2e | Features, with a dispatcher, workers and trainers in separate processes |
| faults | Deaths, pauses and cut connections of those processes (README.md) |
| graph | What the Go code does with a graph, against `tf.data` in one process |
| sim | Thousands of simulated clusters in one Go process |
| k8s | The chart on a Kubernetes control plane (`make test-k8s`, not part of `make test`) |
| repo, docs | The repository's own rules, and the code of the documentation's pages |

`make check` runs one test of each kind, `make test` runs all but the slow ones (slow.py), `make slow` runs those, and `make soak` all. To run one: `make build`, then
`.venv/bin/python -m pytest tests/e2e/test_cache.py -k name`.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.slow import SLOW, SOAK

_STDERR = pytest.StashKey[int]()

# Trainers keep record indexes in the user's directory. Tests use a directory of their own. What a private
# cluster learned from jobs would change the plans of later tests.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["PECAN_HOME"] = tempfile.mkdtemp(prefix="pecan-tests-")
    atexit.register(shutil.rmtree, os.environ["PECAN_HOME"], ignore_errors=True)
os.environ["PECAN_LEARN"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the real standard error. Captured output is lost when a process ends at once."""
    config.addinivalue_line("markers", "slow: `make slow` runs the test, and `make test` does not (tests/slow.py)")
    config.addinivalue_line("markers", "soak: only `make soak` runs the test (tests/slow.py)")
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[_STDERR] = os.dup(2)


# The files that take longest, the longest first. Files run in parallel, and a long file that starts last would run alone.
LONGEST = (
    "tests/faults/test_network.py",
    "tests/faults/test_thesis.py",
    "tests/e2e/test_local_workers.py",
    "tests/graph/test_pipelines.py",
    "tests/e2e/test_processes.py",
    "tests/e2e/test_cache.py",
    "tests/graph/test_parts.py",
    "tests/e2e/test_huge_elements.py",
    "tests/e2e/test_cache_decision.py",
    "tests/faults/test_every_mode.py",
    "tests/e2e/test_deterministic.py",
    "tests/faults/test_poison.py",
    "tests/graph/test_random_proposals.py",
    "tests/e2e/test_resume.py",
    "tests/e2e/test_cache_parts.py",
    "tests/e2e/test_cache_objects.py",
    "tests/graph/test_keyed.py",
    "tests/graph/test_variables.py",
    "tests/e2e/test_leaving.py",
    "tests/graph/test_functions.py",
    "tests/e2e/test_scaling.py",
    "tests/e2e/test_leaks.py",
    "tests/e2e/test_cache_batches.py",
    "tests/e2e/test_provider.py",
    "tests/e2e/test_placement.py",
    "tests/e2e/test_endless_repeat.py",
    "tests/e2e/test_pipelines.py",
    "tests/e2e/test_order.py",
    "tests/e2e/test_cache_order.py",
    "tests/faults/test_disk.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of slow.py, and puts the longest files first. `make e2e` distributes files in this order."""
    for item in items:
        if item.nodeid.startswith(tuple(SOAK)):
            item.add_marker(pytest.mark.soak)
        elif item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.split("::")[0], len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def frozen_imports() -> None:
    """Takes the objects of all imports out of garbage collection. A full collection would visit a million objects of TensorFlow."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> Iterator[Callable[[float], None]]:
    """Sets how many seconds the test has from now on. After them the process prints the stack of every thread, and ends.

    The process ends because Python cannot interrupt a wait inside TensorFlow.
    """

    def set_limit(seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.stash[_STDERR])

    yield set_limit
    faulthandler.cancel_dump_traceback_later()
