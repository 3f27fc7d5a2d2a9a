"""docs/architecture.md must fit the code: its terms, the files and functions that it names, and its table of imports."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping

import repository
import test_imports


def test_the_architecture_page_explains_its_terms():
    page = repository.text("docs/architecture.md")
    for word in (
        "dataset",
        "job",
        "epoch",
        "stream",
        "element",
        "split",
        "lease",
        "plan",
        "local / remote worker",
        "node",
    ):
        assert re.search(rf"^\| {re.escape(word)} \|", page, re.MULTILINE), (
            f"docs/architecture.md does not explain {word!r}"
        )


def test_files_that_the_architecture_page_names_exist():
    named = re.findall(r"`([\w/]+\.(?:go|py))`", repository.text("docs/architecture.md"))
    assert len(named) > 50, "could not read the names of files from docs/architecture.md"
    files = repository.tracked()
    missing = [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]
    assert not missing, f"docs/architecture.md names {missing}, which do not exist: follow a renamed file"


# A file of a hop, and the functions after it: `dir/file.go` (`First`, `Second`).
HOP = re.compile(r"`([\w/]+\.(?:go|py))`(?: \(`(\w+)`((?:, `\w+`)*)\))?")


def lost_hops(paths: str, text_of: Callable[[str], str]) -> list[str]:
    """A sentence for every file in the text of the paths without a function, or with one that the file does not have.

    A file without a directory is beside the one before it.
    """
    lost, directory = [], ""
    for name, first, others in HOP.findall(paths):
        directory = os.path.dirname(name) or directory
        file = f"{directory}/{os.path.basename(name)}"
        functions = [first, *re.findall(r"\w+", others)] if first else []
        if not functions:
            lost.append(f"{name}: say at which function to start")
        source = text_of(file)
        lost += [
            f"{file} has no function {function}"
            for function in functions
            if not re.search(rf"^(?:func (?:\([^)]*\) )?|def ){function}\b", source, re.MULTILINE)
        ]
    return lost


def test_paths_of_the_architecture_page_name_functions_of_their_files():
    paths = repository.text("docs/architecture.md").partition(" paths through the code\n")[2].partition("\n## ")[0]
    hops = re.findall(r"^\d+\. .*", paths, re.MULTILINE)
    assert len(hops) > 40, "could not read the paths of docs/architecture.md"
    assert not [hop for hop in hops if not HOP.search(hop)], "each hop names a file"
    lost = lost_hops(paths, lambda file: repository.text(file) if file in repository.tracked() else "")
    assert not lost, "docs/architecture.md: follow what moved: " + "; ".join(lost)


def returns(path: str) -> list[str]:
    """The files that two hops of a path name: a path runs forward."""
    found, twice, directory = set(), [], ""
    for hop in re.findall(r"^\d+\. .*", path, re.MULTILINE):
        of_hop = set()
        for name, _, _ in HOP.findall(hop):
            directory = os.path.dirname(name) or directory
            of_hop.add(f"{directory}/{os.path.basename(name)}")
        twice += sorted(found & of_hop)
        found |= of_hop
    return twice


def test_paths_of_the_architecture_page_run_forward():
    paths = repository.text("docs/architecture.md").partition(" paths through the code\n")[2].partition("\n## ")[0].split("\n### ")[1:]
    assert len(paths) == 5, "could not read the paths of docs/architecture.md"
    back = {path.partition("\n")[0]: returns(path) for path in paths}
    assert not any(back.values()), f"docs/architecture.md: a hop names a file of an earlier hop: {back}"


def test_a_path_that_returns_is_detected():
    there = "1. `a/b.go` (`Run`), then `c.go` (`open`) and `a/c.go` (`read`)\n2. `a/d.go` (`open`)\n"
    assert not returns(there)
    assert returns(there + "3. `a/e.go` (`open`), then `c.go` (`write`) beside it\n") == ["a/c.go"]


def test_a_hop_that_leads_nowhere_is_detected():
    sources = {"a/b.go": "func (s *T) Run(x int) {\n", "a/c.go": "func open() {\n", "a/d.py": "def read(\n"}
    good = "`a/b.go` (`Run`), `c.go` (`open`) and `a/d.py` (`read`)"
    assert not lost_hops(good, lambda file: sources.get(file, ""))
    for bad in ("`a/b.go` runs", "`a/b.go` (`run`)", "`a/b.go` (`Run`, `open`)", "`a/b.go` (`Run`), `d.go` (`open`)"):
        assert len(lost_hops(bad, lambda file: sources.get(file, ""))) == 1, bad


def page_rows(page: str) -> dict[str, set[str] | None]:
    """Package → packages that it may import by the page; None if the row says nothing. "x and below" includes x's packages."""
    table = page.partition("## Packages\n")[2].partition("\n## ")[0]
    rows: dict[str, set[str] | None] = {}
    for packages, cell in re.findall(r"^\| (`[^|]+`) \| [^|]+ \| ?([^|]*) \|$", table, re.MULTILINE):
        named = re.findall(r"`([\w/]+)`( and below)?", cell)
        for package in re.findall(r"`([\w/]+)`", packages):
            rows[package] = {name.rstrip("/") + below for name, below in named} if cell else None
    return rows


def differing_rows(rows: Mapping[str, Collection[str] | None], rules: Mapping[str, tuple[Collection[str], str]]) -> list[str]:
    """A sentence for every layer that the page lacks, or that may import other packages by the page than by the rules."""
    sentences, covered = [], set()
    for row, in_page in rows.items():
        path = row.rstrip("/")
        layers = [layer for layer in rules if layer == path or (row.endswith("/") and test_imports.inside(layer, path))]
        covered |= set(layers)
        in_rules = {
            "service/graph and below" if target == "service/graph" else target.rstrip("=")
            for layer in layers
            for target in rules[layer][0]
            if not (row.endswith("/") and test_imports.inside(target, path))
        }
        if in_page is not None and layers and set(in_page) != in_rules:
            sentences.append(f"{row}: the page allows {sorted(in_page)}, test_imports.py {sorted(in_rules)}")
        if in_page is not None and not layers:
            sentences.append(f"{row}: test_imports.py has no rule")
    mute = [layer for layer in rules if layer not in covered and not layer.endswith("test")]
    return sentences + [f"{layer}: the page has no row" for layer in mute]


def test_the_table_of_imports_fits_the_import_rules():
    rows = page_rows(repository.text("docs/architecture.md"))
    assert len(rows) > 50, "could not read the table of packages from docs/architecture.md"
    different = differing_rows(rows, test_imports.IMPORT_RULES)
    assert not different, "docs/architecture.md: " + "; ".join(different)


def test_a_row_that_does_not_fit_the_rules_is_detected():
    page = "## Packages\n\n| package | has | may import |\n| `a` | x | `proto/`, `service/graph` and below |\n| `b/` | y | nothing of Pecan |\n| `c/` | z | |\n"
    rules = {"a": (("proto", "service/graph"), ""), "b/one": (("b/two",), ""), "b/two": ((), ""), "c": (("proto",), ""), "d/helptest": ((), "")}
    assert not differing_rows(page_rows(page), rules)
    for layer, allowed in (("a", ("proto", "service/graph=")), ("b/two", ("proto",)), ("d", ()), ("a", ("proto",))):
        assert len(differing_rows(page_rows(page), {**rules, layer: (allowed, "")})) == 1, layer
    del rules["a"]
    assert len(differing_rows(page_rows(page), rules)) == 1


def diagram(source: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Node → the path that its label begins with, and node → the nodes that its arrows lead to."""
    nodes = dict(re.findall(r'(\w+) \[label="([\w/]+)', source))
    arrows: dict[str, set[str]] = {node: set() for node in nodes}
    for start, end in re.findall(r"(\w+) -> (\w+);", source):
        arrows[start].add(end)
    return nodes, arrows


def reached(arrows: Mapping[str, Collection[str]], start: str) -> set[str]:
    """The nodes to which a way of arrows leads."""
    found, waiting = set(), [start]
    while waiting:
        new = set(arrows[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def wrong_arrows(source: str, imports: Mapping[str, Collection[str]]) -> list[str]:
    """A sentence for every arrow without an import, and for every import that no way of arrows shows."""
    nodes, arrows = diagram(source)

    def node_of(path: str) -> str | None:
        return max((node for node, layer in nodes.items() if test_imports.inside(path, layer)), key=lambda node: len(nodes[node]), default=None)

    pairs = {(node_of(path), node_of(imported)) for path, all_of in imports.items() for imported in all_of}
    pairs = {(start, end) for start, end in pairs if start and end and start != end}
    in_go = {node for node in map(node_of, imports) if node}
    sentences = [
        f"{nodes[start]} does not import {nodes[end]}"
        for start in nodes
        for end in arrows[start]
        if start in in_go and (start, end) not in pairs
    ]
    sentences += [f"{path} has no package" for node, path in nodes.items() if node not in in_go and "python" not in path]
    return sentences + [
        f"no arrow shows that {nodes[start]} imports {nodes[end]}" for start, end in sorted(pairs) if end not in reached(arrows, start)
    ]


def test_arrows_of_the_diagrams_are_imports():
    imports = {
        package.path: [name for name in package.ours if name not in package.ours_in_tests]
        for package in repository.go_packages()
        if package.path not in test_imports.ONLY_FOR_TESTS
    }
    sources = [name for name in repository.with_suffix(".dot") if "[label=\"service/" in repository.text(name)]
    assert len(sources) == 4, "could not find the diagrams of packages"
    wrong = {name: wrong_arrows(repository.text(name), imports) for name in sources}
    assert not any(wrong.values()), wrong


def test_a_wrong_arrow_is_detected():
    source = 'a [label="a\\nx"]; b [label="a/b"]; c [label="c"]; p [label="python/pecan"]; a -> b; b -> c; p -> a;'
    imports = {"a": ["a/b", "c"], "a/b/d": ["c/e", "f"], "c": []}
    assert not wrong_arrows(source, imports)
    assert len(wrong_arrows(source + "c -> b;", imports)) == 1
    assert len(wrong_arrows(source.replace("b -> c;", ""), imports)) == 2
    assert len(wrong_arrows(source + 'g [label="g"];', imports)) == 1
