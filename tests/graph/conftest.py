"""Builds the command once for all tests here."""

from __future__ import annotations

import collections
import pathlib
import sys

import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
# The steps of gen.py are tried here as well.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "service" / "graph" / "testdata"))

import graph_oracle as oracle


@pytest.fixture(scope="session")
def cutgraph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The command that plans and cuts."""
    return oracle.build_command(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="session")
def ordergraph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The command that tells what may change places, and puts it there."""
    return oracle.build_command(tmp_path_factory.mktemp("bin"), "ordergraph")


@pytest.fixture(autouse=True)
def no_seed():
    """Removes a global seed that a test has set: it would become part of the datasets of every later test."""
    yield
    tf.random.set_seed(None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many orders of random pipelines were compared."""
    counts: collections.Counter = collections.Counter()
    for report in terminalreporter.getreports("passed"):
        counts.update(dict(report.user_properties).get("orders", {}))
    if counts:
        terminalreporter.write_line(
            f"{counts['pipelines']} random pipelines were compared in {counts['orders']} orders other than the registered one, each once; "
            f"in {counts['registered']} of them the registered one was best for some measurement."
        )
