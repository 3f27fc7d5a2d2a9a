"""Fixtures of the fault scenarios: a seed, data, the elements of a local run, a deadline, and a check for leaks.

README.md says what the scenarios must show and how to repeat a run. A scenario works like this:

- `cluster.Cluster` starts a dispatcher over a work directory, and workers. `cluster.Program` kills, stops and restarts them.
- `run.Run` reads epochs in a trainer process (`trainer.py`), which writes a line to a ledger for each element.
- `ledger.check` compares the ledger with the fixture `truth`, the elements of a local run.
- `cluster.Observer` polls the dispatcher during the run, and checks the leases.
- `proxies.Proxy` delays or cuts connections between two processes.

To run one test: `make build`, then `.venv/bin/python -m pytest tests/faults/test_poison.py -k name`.
"""

from __future__ import annotations

import gc
import os
import pathlib
import random

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

GOLDEN_PASSES = 5
# Without the option, 40 files have ten streams. With fewer streams, some workers have none, and a scenario has no victim.
STREAMS = ("auto", 16, 17, 25, 40)
# A test that takes longer than this hangs.
DEADLINE_S = 1800 if os.environ.get("PECAN_FAULTS_FULL") else 240


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of the run to repeat (fault scenarios)")


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
def data(tmp_path_factory: pytest.TempPathFactory, seed: int):
    """Records in 40 files of different lengths. The seed decides the number of streams; workers have two slots each."""
    import records

    streams = random.Random(f"{seed} streams").choice(STREAMS)
    print(f"streams={streams}")
    return records.Records(tmp_path_factory.mktemp("records"), records.TOTAL, streams=streams)


@pytest.fixture(scope="session")
def truth(data) -> dict[int, int]:
    """The CRC of each element of a local run, by id."""
    return data.truth()


@pytest.fixture(scope="session")
def golden(data, truth, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The order of each epoch in mode deterministic without faults, with one worker. The scenarios have more workers."""
    return quiet_order(data, truth, tmp_path_factory, data.dataset())


@pytest.fixture(scope="session")
def golden_cached(data, truth, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The same for a dataset with `pecan.cache()` at its end. The workers have no directory for caches."""
    import pecan

    return quiet_order(data, truth, tmp_path_factory, data.dataset().apply(pecan.cache()))


def quiet_order(data, truth, tmp_path_factory: pytest.TempPathFactory, dataset) -> list[list[int]]:
    """The order of each epoch of a dataset in mode deterministic, with one worker and without faults."""
    import cluster
    import ledger
    import run

    with cluster.running_cluster(cluster.Cluster(tmp_path_factory.mktemp("golden"))) as service:
        service.add_all(1)
        with run.Run(service, data, "deterministic", GOLDEN_PASSES, dataset=dataset) as quiet:
            quiet.finish()
        entries = ledger.lines(quiet.path)
        ledger.check(entries, truth, GOLDEN_PASSES)
        quiet.release()
    return [[line["id"] for line in epoch] for epoch in ledger.epochs(entries)]


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
