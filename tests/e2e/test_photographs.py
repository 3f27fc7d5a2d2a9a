"""The photographs of the demo. Their names are its labels, and identify the photographs in a set of records."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "photographs" / "sources.py"


@pytest.fixture
def sources():
    spec = importlib.util.spec_from_file_location("sources", SOURCES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_photograph_of_the_large_demo_has_a_unique_name(sources, tmp_path):
    expected = 0
    for package, photographs in sources.WALLPAPERS.items():
        for inside in photographs.values():
            expected += 1
            (tmp_path / package / inside).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / package / inside).write_bytes(package.encode() + inside.encode())
    found = [*sources.built_in(), *sources.wallpapers(tmp_path)]
    names = [name for name, _ in found]
    assert len(names) == len(set(names)), names
    assert len(names) == len(sources.BUILT_IN) + expected


def test_a_photograph_that_a_package_does_not_have_is_left_out(sources, tmp_path):
    for package in sources.WALLPAPERS:
        (tmp_path / package).mkdir()
    assert list(sources.wallpapers(tmp_path)) == []
