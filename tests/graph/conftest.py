"""Builds the command once for all tests here."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import graph_oracle as oracle


@pytest.fixture(scope="session")
def cutgraph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The command that plans and cuts."""
    return oracle.build_command(tmp_path_factory.mktemp("bin"))
