"""Fixtures of the graph tests.

These tests compare what the Go code does with a dataset's graph to `tf.data` itself. They need no cluster. Two commands,
which are built once, do the work of the service:

- `cutgraph` plans a dataset and writes the graphs of all its streams. `graph_oracle` runs them in this process.
- `ordergraph` says which steps may change places, proposes orders, and writes a dataset in another order.

`graph_pipelines.py` and `graph_batches.py` have typical pipelines with their expected plans. `graph_orders.py` requests proposals
of orders. The other tests build their own pipelines.
To run one test: `.venv/bin/python -m pytest tests/graph/test_orders.py -k name`. It needs Go and TensorFlow, and no `make build`.
"""

from __future__ import annotations

import collections
import pathlib
import sys

import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
# test_passes.py and others use the steps of gen.py.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "service" / "graph" / "testdata"))

import graph_oracle as oracle


@pytest.fixture(scope="session")
def cutgraph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The command that plans a dataset and writes its streams."""
    return oracle.build_command(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="session")
def ordergraph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The command that analyses and changes the order of steps."""
    return oracle.build_command(tmp_path_factory.mktemp("bin"), "ordergraph")


@pytest.fixture(autouse=True)
def no_seed():
    """Removes a global seed that a test has set, because it would become part of the datasets of later tests."""
    yield
    tf.random.set_seed(None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many orders of random pipelines were compared."""
    counts: collections.Counter = collections.Counter()
    for report in terminalreporter.getreports("passed"):
        counts.update(dict(report.user_properties).get("orders", {}))
    if counts:
        terminalreporter.write_line(
            f"{counts['pipelines']} random pipelines were compared in {counts['orders']} orders other than the registered one, each once; "
            f"in {counts['registered']} of them the registered one was best for some measurement."
        )
