"""Fixtures of the fault scenarios: a seed, data, the elements of a local run, a deadline, and a check for leaks.

README.md says what the scenarios must show and how to repeat a run. A scenario works like this:

- `cluster.Cluster` starts a dispatcher over a work directory, and workers. `cluster.Program` kills, stops and restarts them.
- `run.Run` reads epochs in a trainer process (`trainer.py`), which writes a line to a ledger for each element.
- `ledger.check` compares the ledger with the fixture `truth`, the elements of a local run.
- The fixture `data` has the records. Their jobs have 1 to 1,024 streams, a random choice of the run. A scenario that does not allow
  every number has the mark `streams(least, most)`.
- `cluster.Observer` polls the dispatcher during the run, and checks the leases.
- `proxies.Proxy` delays or cuts connections between two processes.

To run one test: `make build`, then `.venv/bin/python -m pytest tests/faults/test_poison.py -k name`.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import pathlib
import pickle
import random
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MOST_STREAMS = 1024
# A test that takes longer than this hangs.
DEADLINE_S = 1800 if os.environ.get("PECAN_FAULTS_FULL") else 240


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of the run to repeat (fault scenarios)")
    parser.addoption(
        "--streams", type=int, default=None, help="number of streams instead of a random one (fault scenarios)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "streams(least, most): the numbers of streams that a fault scenario allows")


@pytest.fixture(autouse=True)
def deadline(limit):
    """Ends the whole run when a single test hangs."""
    limit(DEADLINE_S)


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest, testrun_uid: str) -> int:
    """The seed of the run, which is the same in all processes of a parallel run."""
    given = request.config.getoption("--seed", default=None)
    return int(testrun_uid[:8], 16) if given is None else given


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> random.Random:
    """The source of every random choice of a test. A failed test shows the seed."""
    print(f"to repeat it: pytest {request.node.nodeid} --seed {seed}")
    return random.Random(f"{seed} {request.node.nodeid}")


MODES = ("exactly_once", "deterministic")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a scenario in mode deterministic, which promises more, unless it names its modes.

    The simulation (tests/sim) runs the faults in every mode.
    """
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    named = {name.strip() for names in given for name in (names.split(",") if isinstance(names, str) else names)}
    if "mode" in metafunc.fixturenames and "mode" not in named:
        both = bool(os.environ.get("PECAN_FAULTS_FULL"))
        metafunc.parametrize("mode", MODES if both else MODES[1:])


@pytest.fixture(scope="session")
def any_streams(request: pytest.FixtureRequest, seed: int) -> int:
    """The number of streams that the run has chosen. Small numbers are as frequent as large ones."""
    chance = random.Random(f"{seed} streams")
    least = 1 << chance.randrange(11)
    given = request.config.getoption("--streams")
    return given or min(least + chance.randrange(least), MOST_STREAMS)


class Made:
    """The records of a run by their number of streams, with their elements in a local run and in a run without faults.

    Tests run in several processes at the same time. Whatever a test requires first is made once, and the other processes read it
    from a file.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self.records = functools.cache(lambda streams: self._once(f"records-{streams}", self._records, streams))
        self.truth = functools.cache(lambda streams: self._once(f"truth-{streams}", self._truth, streams))
        self.golden = functools.cache(lambda *key: self._once("golden-{}-{}".format(*key), self._golden, *key))

    def _once(self, name: str, make: Callable[..., Any], *key: Any) -> Any:
        """What `make` returns in the first process that requires it. A process that fails leaves it to the next one."""
        path = self._directory / f"{name}.pickle"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                fresh = path.with_suffix(".new")
                fresh.write_bytes(pickle.dumps(make(*key)))
                fresh.rename(path)
        return pickle.loads(path.read_bytes())

    def _directory_of(self, what: str) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(prefix=f"{what}-", dir=self._directory))

    def _records(self, streams: int):
        import records

        # A stream has at least one file.
        return records.Records(self._directory_of("records"), records.TOTAL, files=max(40, streams), streams=streams)

    def _truth(self, streams: int) -> dict[int, int]:
        return self.records(streams).truth()

    def _golden(self, streams: int, cached: bool) -> list[int]:
        import cluster
        import ledger
        import pecan
        import run

        data, truth = self.records(streams), self.truth(streams)
        with cluster.running_cluster(cluster.Cluster(self._directory_of("golden"))) as service:
            service.add_all(1)
            dataset = data.dataset().apply(pecan.cache()) if cached else None
            with run.Run(service, data, "deterministic", 2, dataset=dataset) as quiet:
                quiet.finish()
            entries = ledger.lines(quiet.path)
            ledger.check(entries, truth, 2)
            quiet.release()
        first, second = ([line["id"] for line in epoch] for epoch in ledger.epochs(entries))
        # Nothing is shuffled. A new order in each epoch would need a golden run with as many epochs as the scenarios have.
        assert first == second, "epochs without faults have different orders"
        return first


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    # The processes of a parallel run have base directories in one directory.
    base = tmp_path_factory.getbasetemp()
    return Made((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "faults")


@pytest.fixture
def streams(request: pytest.FixtureRequest, any_streams: int) -> int:
    """The number of streams of a test: that of the run, within what the scenario allows."""
    allowed = {"least": 1, "most": MOST_STREAMS}
    for mark in request.node.iter_markers("streams"):
        allowed |= mark.kwargs
    streams = min(max(any_streams, allowed["least"]), allowed["most"])
    print(f"{streams} streams")
    return streams


@pytest.fixture
def data(made: Made, streams: int):
    """Records in files of different lengths, and the number of streams of jobs over them. Workers have two slots each."""
    return made.records(streams)


@pytest.fixture
def truth(made: Made, streams: int) -> dict[int, int]:
    """The CRC of each element of a local run, by id."""
    return made.truth(streams)


@pytest.fixture
def golden(made: Made, streams: int) -> list[int]:
    """The order of every epoch in mode deterministic without faults, with one worker. The scenarios have more workers."""
    return made.golden(streams, False)


@pytest.fixture
def golden_cached(made: Made, streams: int) -> list[int]:
    """The same for a dataset with `pecan.cache()` at its end. The workers have no directory for caches."""
    return made.golden(streams, True)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest):
    """Checks that this process keeps no mapping of a worker's memory and no open file. `Cluster.clear` checks processes."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    from cluster import wait

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    wait(lambda: "pecan-slot" not in pathlib.Path("/proc/self/maps").read_text(), "workers' memory is unmapped", 30)
    wait(lambda: len(os.listdir("/proc/self/fd")) <= before + 8, f"at most about {before} open files", 30)


@pytest.fixture(scope="session")
def proxy_binary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    import proxies

    return proxies.build(tmp_path_factory.mktemp("proxy"))


@pytest.fixture
def proxy(proxy_binary: pathlib.Path):
    """Starts proxies. They end with the test."""
    import proxies

    started = []

    def start(to: str = "") -> proxies.Proxy:
        started.append(proxies.Proxy(proxy_binary, to))
        return started[-1]

    yield start
    for one in started:
        one.close()
