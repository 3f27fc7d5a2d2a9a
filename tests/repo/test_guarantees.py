"""docs/guarantees.md names the tests of its cells. The tests exist."""

from __future__ import annotations

import re

import pytest
import repository

PAGE = repository.text("docs/guarantees.md")
PYTHON = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+)(?:\[([^`\]]*))?)?`", PAGE)
GO = re.findall(r"`((?:service|native|tests)/[\w/]+): (\w+)`", PAGE)


def test_the_page_names_tests():
    assert len(PYTHON) + len(GO) >= 20
    # The patterns match everything that looks like a test.
    assert PAGE.count("`tests/") == len(PYTHON) + sum(package.startswith("tests/") for package, _ in GO)


@pytest.mark.parametrize(("path", "name", "case"), sorted(set(PYTHON)))
def test_a_named_test_in_python_exists(path, name, case):
    source = repository.text(path)
    assert not name or f"def {name}(" in source
    # The start of its id names a case.
    assert not case or f'"{case}"' in source


@pytest.mark.parametrize(("package", "name"), sorted(set(GO)))
def test_a_named_test_in_go_exists(package, name):
    if name.startswith("Test"):
        files = [f for f in repository.tracked() if f.startswith(package + "/") and f.endswith("_test.go")]
        assert any(f"func {name}(" in repository.text(f) for f in files)
    else:
        assert f"{package}/testdata/{name}.txt" in repository.tracked()
