"""Writes docs/packages.md, the table of packages: `python docs/site/packages.py` (`make packages`).

The words of a row are the first sentence of the package's comment. The figures are of the sources without tests and
generated files. `tests/repo/test_packages.py` compares the page with the code.
"""

from __future__ import annotations

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/packages.md"
SOURCES = (".go", ".c", ".h", ".proto", ".py")
# Part of the repository → heading of its table. The longest matching prefix is a package's part.
PARTS = {
    "proto": "Messages",
    "policies": "Policies",
    "service/graph": "Graphs",
    "service/dispatcher": "Dispatcher",
    "service/worker": "Worker",
    "service": "Other parts of the service",
    "service/cmd": "Programs",
    "native": "Trainer and TensorFlow",
    "bindings": "Python",
    "python": "Python",
    "benchmarks": "Benchmarks",
}
HEAD = """# Packages

All packages but those of generated files, and what each one is. [Architecture](architecture.md#packages) says which package may import which, and
[where things are](architecture.md#where-things-are). Each Go package explains its files in its `doc.go`.

`make packages` writes this page from the first sentences of the packages' comments. The files and lines are those of
sources in Go, C, Python and Protocol Buffers, without tests and generated files. A package has at most about 15 files
and 3,000 lines, or its `doc.go` gives the reason ([design note 0011](design/0011-package-layout.md)).
"""


def rows() -> dict[str, tuple[str, int, int]]:
    """For each package: what it is, its number of files, and its number of lines."""
    listed = subprocess.run(["git", "ls-files", "-z", *PARTS], cwd=ROOT, capture_output=True, text=True, check=True)
    sources: dict[str, list[str]] = {}
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        path = ROOT / name
        if name.endswith(SOURCES) and not name.endswith("_test.go") and "/tests/" not in name and path.is_file():
            text = path.read_text(encoding="utf-8")
            if "Code generated" not in text[:400]:
                sources.setdefault(str(path.parent.relative_to(ROOT)), []).append(text)
    words = {package: sentence(package, texts) for package, texts in sources.items()}
    return {
        package: (words[package], len(texts), sum(text.count("\n") for text in texts))
        for package, texts in sources.items()
        if words[package]
    }


def sentence(package: str, texts: list[str]) -> str:
    """The first sentence of the package's comment without its name; empty for a directory without a package."""
    if package.startswith("python/"):
        init = ROOT / package / "__init__.py"
        comments = [f"Package {package} {init.read_text(encoding='utf-8')[3:]}"] if init.is_file() else []
    else:
        found = [re.search(r"^((?://.*\n)+)package \w+$", text, re.MULTILINE) for text in texts]
        comments = [re.sub(r"^//\s?", "", match[1], flags=re.MULTILINE) for match in found if match]
    for comment in comments:
        if comment.startswith(("Package ", "Command ")):
            first = re.split(r"\.(?:\s|$|\"\"\")", comment, maxsplit=1)[0]
            return re.sub(r"\s*\(docs/[^)]*\)", "", " ".join(first.split()).split(" ", 2)[2])
    return ""


def page(found: dict[str, tuple[str, int, int]]) -> str:
    """The text of the page."""
    parts: dict[str, list[str]] = {heading: [] for heading in PARTS.values()}
    for package, (words, files, lines) in sorted(found.items()):
        part = max((part for part in PARTS if f"{package}/".startswith(f"{part}/")), key=len)
        parts[PARTS[part]].append(f"| `{package}` | {words} | {files} | {lines:,} |\n")
    tables = [
        f"\n## {heading}\n\n| package | what it is | files | lines |\n| --- | --- | ---: | ---: |\n{''.join(lines)}"
        for heading, lines in parts.items()
        if lines
    ]
    return HEAD + "".join(tables)


if __name__ == "__main__":
    PAGE.write_text(page(rows()), encoding="utf-8")
