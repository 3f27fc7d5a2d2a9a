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

import functools
import gc
import os
import pathlib
import random

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

GOLDEN_PASSES = 5
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
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed", default=None)
    return random.SystemRandom().randrange(1 << 32) if given is None else given


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
    """The records of a run by their number of streams, with their elements in a local run and in a run without faults."""

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self.records = functools.cache(self._records)
        self.truth = functools.cache(self._truth)
        self.golden = functools.cache(self._golden)

    def _records(self, streams: int):
        import records

        # A stream has at least one file.
        return records.Records(
            self._directories.mktemp("records"), records.TOTAL, files=max(40, streams), streams=streams
        )

    def _truth(self, streams: int) -> dict[int, int]:
        return self.records(streams).truth()

    def _golden(self, streams: int, cached: bool) -> list[list[int]]:
        import cluster
        import ledger
        import pecan
        import run

        data, truth = self.records(streams), self.truth(streams)
        with cluster.running_cluster(cluster.Cluster(self._directories.mktemp("golden"))) as service:
            service.add_all(1)
            dataset = data.dataset().apply(pecan.cache()) if cached else None
            with run.Run(service, data, "deterministic", GOLDEN_PASSES, dataset=dataset) as quiet:
                quiet.finish()
            entries = ledger.lines(quiet.path)
            ledger.check(entries, truth, GOLDEN_PASSES)
            quiet.release()
        return [[line["id"] for line in epoch] for epoch in ledger.epochs(entries)]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory)


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
def golden(made: Made, streams: int) -> list[list[int]]:
    """The order of each epoch in mode deterministic without faults, with one worker. The scenarios have more workers."""
    return made.golden(streams, False)


@pytest.fixture
def golden_cached(made: Made, streams: int) -> list[list[int]]:
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
