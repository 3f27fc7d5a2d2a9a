"""The tracked files and the Go packages that the rules check."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = "github.com/pecan-ml/pecan"
GENERATED_MARK = "Code generated"
FIELDS = "ImportPath,Name,Doc,Imports,TestImports,XTestImports,GoFiles,CgoFiles"


def run(*words: str, **environment: str) -> str:
    """The output of a command that runs at the root of the repository. If the command fails, the test fails."""
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def tracked() -> tuple[str, ...]:
    """Paths of the files that git tracks and that exist."""
    names = run("git", "ls-files", "-z").split("\0")
    return tuple(name for name in names if name and (ROOT / name).is_file())


def with_suffix(*suffixes: str) -> list[str]:
    """Tracked files whose names end with one of the suffixes."""
    return [name for name in tracked() if name.endswith(suffixes)]


@functools.cache
def text(name: str) -> str:
    """The text of a tracked file, or an empty string for a binary file."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def generated(name: str) -> bool:
    """Whether a tool wrote the file."""
    return GENERATED_MARK in text(name)[:400]


def hand_written_go() -> list[str]:
    """Go files that no tool generated."""
    return [name for name in with_suffix(".go") if not generated(name)]


@dataclasses.dataclass(frozen=True)
class GoPackage:
    """A Go package of this module: its path, its doc comment, and its imports."""

    path: str
    name: str
    doc: str
    imports: tuple[str, ...]
    cgo: bool
    files: tuple[str, ...]
    # Imports of only its external tests (package x_test), and of only its tests.
    external: tuple[str, ...] = ()
    only_tests: tuple[str, ...] = ()

    @property
    def ours(self) -> list[str]:
        """Imported packages of this module, as paths in it."""
        return sorted(p.removeprefix(MODULE + "/") for p in self.imports if p.startswith(MODULE + "/"))

    @property
    def ours_in_tests(self) -> list[str]:
        """Packages of this module that only its tests import, as paths in it."""
        return sorted(p.removeprefix(MODULE + "/") for p in self.only_tests if p.startswith(MODULE + "/"))

    @property
    def ours_in_external_tests(self) -> list[str]:
        """Packages of this module that only its external tests import, as paths in it."""
        return sorted(p.removeprefix(MODULE + "/") for p in self.external if p.startswith(MODULE + "/"))


@functools.cache
def go_packages() -> tuple[GoPackage, ...]:
    """Every Go package that has tracked files, test imports included."""
    decoder, position, found = json.JSONDecoder(), 0, []
    listing = run("go", "list", "-e", f"-json={FIELDS}", "./...").strip()
    directories = {os.path.dirname(name) for name in with_suffix(".go")}
    while position < len(listing):
        package, position = decoder.raw_decode(listing, position)
        while position < len(listing) and listing[position].isspace():
            position += 1
        path = package["ImportPath"].removeprefix(MODULE + "/")
        if path not in directories:
            continue
        inner = {*package.get("Imports", []), *package.get("TestImports", [])}
        imports = {*inner, *package.get("XTestImports", [])}
        files = [f"{path}/{name}" for key in ("GoFiles", "CgoFiles") for name in package.get(key, [])]
        found.append(
            GoPackage(
                path,
                package.get("Name", ""),
                package.get("Doc", ""),
                tuple(sorted(imports)),
                bool(package.get("CgoFiles")),
                tuple(files),
                tuple(sorted(set(package.get("XTestImports", [])) - inner)),
                tuple(sorted(imports - set(package.get("Imports", [])))),
            )
        )
    return tuple(found)
