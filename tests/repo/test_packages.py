"""Rules about packages: their size, what their doc.go says, how wide their interfaces are, and what docs/packages.md lists."""

from __future__ import annotations

import os
import re
import runpy

import repository

MOST_FILES, MOST_LINES, MOST_METHODS = 15, 3000, 7
# The interfaces that may have more methods. Their comments give the reasons.
WIDE = ("service/dispatcher.Store",)
# A sentence of a doc.go that says what may not be done in the package.
FORBIDS = re.compile(r"\b(?:[Dd]o not|must not|may not)\b")
# A sentence of a doc.go that gives the reason for many files or lines.
REASON = re.compile(r"\b(?:files|lines)\b[^.]*\bbecause\b")


def sources() -> dict[str, list[str]]:
    """Files of each Go package: Go and C, without tests and generated files."""
    found: dict[str, list[str]] = {}
    for name in repository.with_suffix(".go", ".c", ".h"):
        if not name.endswith("_test.go") and not repository.generated(name):
            found.setdefault(os.path.dirname(name), []).append(name)
    return found


def doc_of(directory: str) -> str:
    """The package comment of a doc.go on one line; empty without the file."""
    comment = repository.text(f"{directory}/doc.go").partition("\npackage ")[0] if f"{directory}/doc.go" in repository.tracked() else ""
    return re.sub(r"\s*\n//\s*", " ", "\n" + comment).strip()


def unnamed(doc: str, files: list[str]) -> list[str]:
    """Files that a package comment does not name. A build tag's second file (x_off.go) and a header (x.h) go with x."""
    globs = [prefix for prefix in re.findall(r"\b(\w+_)\*\.go", doc)]
    stems = {re.sub(r"(_off)?\.\w+$", "", os.path.basename(name)): name for name in files}
    return [
        name
        for stem, name in sorted(stems.items())
        if stem not in ("doc", "main") and not stem.startswith(tuple(globs)) and not re.search(rf"\b{stem}\.(go|c|h)\b", doc)
    ]


def unexplained(doc: str, files: list[str]) -> bool:
    """Whether a package is large and its comment does not say why."""
    lines = sum(repository.text(name).count("\n") for name in files)
    return (len(files) > MOST_FILES or lines > MOST_LINES) and not REASON.search(doc)


def test_a_package_of_several_files_has_a_doc_go():
    packages = sources()
    assert len(packages) > 50, "could not find the Go packages"
    mute = [path for path, files in packages.items() if len(files) > 1 and not doc_of(path)]
    assert not mute, f"{mute} have several files and no doc.go, which says what the package promises and how its files follow each other"


def test_a_doc_go_names_the_files_of_its_package():
    missing = [name for path, files in sources().items() if (doc := doc_of(path)) for name in unnamed(doc, files)]
    assert not missing, f"{missing}: the doc.go beside does not say what the file has"


def test_a_doc_go_says_what_may_not_be_done():
    # Programs of tests and benchmarks may do anything.
    docs = {path: doc_of(path) for path in sources() if not path.startswith(("tests/", "benchmarks/"))}
    mute = [path for path, doc in docs.items() if doc and not FORBIDS.search(doc)]
    assert not mute, f"the doc.go of {mute} does not say what may not be done in the package (Do not …)"


def test_a_doc_go_that_forbids_nothing_is_detected():
    assert FORBIDS.search("It is pure. Do not read a clock here.") and FORBIDS.search("A part must not import another.")
    assert not FORBIDS.search("It may be read. It does not wait, and holds nothing.") and not FORBIDS.search("It never waits.")


def test_a_large_package_gives_the_reason():
    large = [path for path, files in sources().items() if unexplained(doc_of(path), files)]
    assert not large, (
        f"{large} have more than {MOST_FILES} files or {MOST_LINES} lines: divide them by subject, "
        "or give the reason in doc.go (it has more files than others because …)"
    )


def test_a_broken_rule_of_packages_is_detected():
    files = [f"native/client/{name}" for name in ("doc.go", "main.go", "rpc_a.go", "job.go", "guard_off.go")]
    assert unnamed("Files: rpc_*.go (calls), jobs and guard.go.", files) == ["native/client/job.go"]
    core = sources()["service/dispatcher/core"]
    assert unexplained("Package core has many files.", core)
    assert not unexplained("It has more files than others because of its state.", core)


def test_the_table_of_packages_fits_the_code():
    table = runpy.run_path(str(repository.ROOT / "docs/site/packages.py"))
    in_code = table["rows"]()
    assert len(in_code) > 60, "could not read the packages"
    row = re.compile(r"^\| `([\w/-]+)` \| (.+) \| (\d+) \| ([\d,]+) \|$", re.MULTILINE)
    found = row.findall(repository.text("docs/packages.md"))
    in_page = {package: (words, int(files), int(lines.replace(",", ""))) for package, words, files, lines in found}
    stale = sorted(package for package in in_code | in_page if differs(in_code.get(package), in_page.get(package)))
    assert not stale, f"docs/packages.md is out of date for {stale}: run make packages and commit the result"


def differs(code: tuple[str, int, int] | None, page: tuple[str, int, int] | None) -> bool:
    """Whether a row differs in its words, or in its figures by more than a tenth (and 2 files, or 100 lines)."""
    if code is None or page is None or code[0] != page[0]:
        return True
    return any(abs(a - b) > max(least, a / 10) for a, b, least in zip(code[1:], page[1:], (2, 100)))


def test_a_stale_row_of_the_table_is_detected():
    row = ("holds a graph", 15, 2500)
    assert not differs(row, ("holds a graph", 16, 2700))
    assert differs(row, None)
    assert differs(row, ("holds graphs", 15, 2500))
    assert differs(row, ("holds a graph", 18, 2500))
    assert differs(row, ("holds a graph", 15, 2200))


def interfaces(source: str) -> dict[str, tuple[int, list[str]]]:
    """Interface of a Go file → its own methods, and the interfaces that it embeds."""
    found = re.findall(r"^type (\w+)(?:\[[^\]]*\])? interface \{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL)
    return {
        name: (len(re.findall(r"^\t\w+\(", body, re.MULTILINE)), re.findall(r"^\t([\w.]+)(?:\[.*\])?$", body, re.MULTILINE))
        for name, body in found
    }


def wide_interfaces(sources: dict[str, str]) -> list[str]:
    """Interfaces of Go files with too many methods, those of embedded interfaces of this module included."""
    declared: dict[str, tuple[int, list[str]]] = {}
    for file, source in sources.items():
        package = os.path.dirname(file)
        imported = {os.path.basename(path): path for path in re.findall(rf'"{repository.MODULE}/([\w/]+)"', source)}
        for name, (own, embedded) in interfaces(source).items():
            places = [other.rpartition(".") for other in embedded]
            declared[f"{package}.{name}"] = own, [f"{imported.get(of, of) if of else package}.{other}" for of, _, other in places]

    def methods(name: str) -> int:
        own, embedded = declared.get(name, (0, []))
        return own + sum(map(methods, embedded))

    return sorted(name for name in declared if methods(name) > MOST_METHODS)


def test_interfaces_are_narrow():
    sources = {name: repository.text(name) for name in repository.hand_written_go() if not name.endswith("_test.go")}
    wide = wide_interfaces(sources)
    assert set(WIDE) <= set(wide), f"remove {sorted(set(WIDE) - set(wide))} from WIDE: they are narrow"
    wide = [name for name in wide if name not in WIDE]
    assert not wide, f"{wide}: an interface has at most {MOST_METHODS} methods; divide it by what its callers need"


def test_a_wide_interface_is_detected():
    methods = "".join(f"\t// M{i} is a method.\n\tM{i}() error\n" for i in range(MOST_METHODS))
    narrow = f"type Narrow interface {{\n\tio.Closer\n{methods}}}\n"
    assert not wide_interfaces({"a/b.go": narrow})
    assert wide_interfaces({"a/b.go": f"type Wide interface {{\n{methods}\tLast(int)\n}}\n"}) == ["a.Wide"]
    embeds = "type Sum interface {\n\tNarrow\n\tLast(int)\n}\n"
    assert wide_interfaces({"a/b.go": narrow, "a/c.go": embeds}) == ["a.Sum"]
    elsewhere = f'import "{repository.MODULE}/a"\n' + embeds.replace("Narrow", "a.Narrow")
    assert wide_interfaces({"a/b.go": narrow, "c/d.go": elsewhere}) == ["c.Sum"]
