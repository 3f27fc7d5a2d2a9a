"""Generated files are equal to the output of their generators. `make generate` writes them again.

TensorFlow's messages and its registry of ops come from the installed TensorFlow. With another version than the recorded
one the tests are skipped.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest
import repository

RECORDED = (repository.ROOT / "service/graph/ops/ops.txt").read_text().splitlines()[0].removeprefix("tensorflow ")


def _installed() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def _compare(written: pathlib.Path, committed: list[str], at: str) -> None:
    made = {str(path.relative_to(written)): path.read_bytes() for path in written.rglob("*") if path.is_file()}
    assert sorted(made) == sorted(committed), "files were added or removed: run make generate and commit the result"
    old = [name for name, content in made.items() if (repository.ROOT / at / name).read_bytes() != content]
    assert not old, f"{old} differ from the output of {at or 'the generator'}: run make generate"


@pytest.mark.skipif(_installed() != RECORDED, reason=f"the files were generated with TensorFlow {RECORDED}")
@pytest.mark.parametrize("generator", ["proto/generate.py", "service/graph/ops/genops.py"])
def test_generated_files_equal_the_output_of_their_generators(generator: str, tmp_path: pathlib.Path) -> None:
    subprocess.run([sys.executable, str(repository.ROOT / generator), str(tmp_path)], check=True, timeout=300)
    if generator.startswith("proto"):
        committed = [name for name in repository.with_suffix(".pb.go") if name.startswith("proto/")]
        _compare(tmp_path, committed, "")
    else:
        _compare(tmp_path, ["ops.pb.gz", "ops.txt"], "service/graph/ops")


def test_every_generated_file_has_a_generator() -> None:
    unexpected = [
        name
        for name in repository.with_suffix(".go", ".py", ".c", ".h")
        if repository.generated(name) and not (name.startswith("proto/") and name.endswith(".pb.go"))
    ]
    # This module contains the mark in its text.
    unexpected.remove("tests/repo/repository.py")
    assert not unexpected, f"{unexpected}: add their generator to make generate and to this test"
