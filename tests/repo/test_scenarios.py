"""docs/scenarios.md names the tests of each scenario. The tests exist, and their comments name the scenario.

The commands of docs/bug-history.md run tests that exist, and so do the names in tests/slow.py.
"""

from __future__ import annotations

import ast
import re

import pytest
import repository

from tests.slow import SLOW, SOAK

PAGE = repository.text("docs/scenarios.md")
ROWS = {row[0]: row for row in re.findall(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)}
# The scenarios that the service promises to survive. The page may have more.
WANTED = re.findall(
    r"\w+",
    "T1 T2 T3 T4 T5 T6 T7 K1 K2 K3 K4 K5 K6 K9 K10 K11 K12 K15 D1 D2 D3 D7 D8 D11 N1 N2 N4 N7 N8 N9 N10 G1 G2 G5 G6 G7 C1 "
    "L1 L2 L3 L4 L5 L7 L8 L13 X1 X2",
)
KINDS = {"processes", "simulation", "unit"}
PYTHON = [(row[0], *named) for row in ROWS.values() for named in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[4])]
GO = [(row[0], *named) for row in ROWS.values() for named in re.findall(r"`((?:service|native|tests)/[\w/-]+): (\w+)`", row[4])]


def says(identity: str, words: str) -> bool:
    """Whether a comment starts with the scenario, alone or in a list: `K1, K2: ...`, `G1, short: ...`."""
    return re.match(rf"(?:[A-Z]\d+, )*{identity}\b[^:]{{0,20}}:", words) is not None


def test_every_scenario_has_a_row_with_tests_and_their_kind():
    assert list(ROWS) == re.findall(r"^\| ([A-Z]\d+) ", PAGE, re.MULTILINE), "a row is duplicate, or has another form than the others"
    assert not set(WANTED) - set(ROWS)
    named = {identity for identity, _, _ in PYTHON + GO}
    assert named == set(ROWS), "rows without tests"
    for identity, _, _, kinds, tests in ROWS.values():
        assert set(kinds.split(", ")) <= KINDS, f"{identity}: {kinds}"
        assert tests.count("`") == 2 * len([test for test in PYTHON + GO if test[0] == identity]), f"{identity}: a name looks like a test and is not one"


@pytest.mark.parametrize(("identity", "path", "name"), PYTHON)
def test_a_python_test_names_its_scenario(identity, path, name):
    functions = {node.name: node for node in ast.parse(repository.text(path)).body if isinstance(node, ast.FunctionDef)}
    assert name in functions, f"{path} has no {name}"
    assert says(identity, ast.get_docstring(functions[name]) or "")


@pytest.mark.parametrize(("identity", "package", "name"), GO)
def test_a_go_test_names_its_scenario(identity, package, name):
    files = [f for f in repository.tracked() if f.rpartition("/")[0] == package and f.endswith("_test.go")]
    found = [m for f in files if (m := re.search(rf"((?:^//.*\n)*)^func {name}\(", repository.text(f), re.MULTILINE))]
    assert found, f"{package} has no {name}"
    assert re.match(rf"Test(?:[A-Z]\d+)*{identity}(?!\d)", name) or says(identity, found[0][1].removeprefix("// "))


HISTORY = re.findall(r"`go test ([^` ]+) -run '?([\w|\\]+)'?", repository.text("docs/bug-history.md"))


@pytest.mark.parametrize(("package", "patterns"), HISTORY)
def test_a_command_of_the_bug_history_runs_a_test(package, patterns):
    directory = package.removeprefix("./").removesuffix("/...")
    tests = [f for f in repository.tracked() if f.startswith(directory + "/") and f.endswith("_test.go")]
    names = [name for f in tests for name in re.findall(r"^func ((?:Test|Fuzz)\w+)", repository.text(f), re.MULTILINE)]
    for pattern in re.split(r"\\?\|", patterns):
        assert any(pattern in name for name in names), f"{package} has no test {pattern}"


def test_a_comment_with_another_scenario_is_detected():
    assert says("K1", "K1, K2, K3: it dies") and says("G1", "G1, short: it is held") and says("K2", "K1, K2, K3: it dies")
    assert not says("K1", "K10: it dies") and not says("K1", "As in K1: it dies") and not says("K1", "")


@pytest.mark.parametrize("name", [*SLOW, *SOAK])
def test_a_slow_test_exists(name):
    path, _, test = name.partition("::")
    functions = [node.name for node in ast.parse(repository.text(path)).body if isinstance(node, ast.FunctionDef)]
    assert not test or test.partition("[")[0] in functions
