"""Collect the licences of all code that is compiled into the object and the programs.

    python wheels/licences.py OUTPUT FILE...

The list of modules comes from the binaries, where Go's linker writes it. It therefore has exactly the compiled modules.
Each distinct text appears once, below the names of its modules. setup.py calls this when it builds a wheel.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The path of the licences in a wheel, relative to the package.
INSIDE = "_licenses/THIRD-PARTY.txt"
NAMES = re.compile(r"(?i)^(licen[sc]e|copying|notice|patents)([._-].*)?$")
HEAD = """Pecan's object and programs contain the Go modules below and Go's own runtime and library. Pecan itself is
under the Apache License 2.0, as is TensorFlow, whose graph messages and C API it is compiled with.
"""


def modules(binaries: list[pathlib.Path]) -> dict[str, str]:
    """Return path and version of every Go module in the binaries, except Pecan itself.

    If go.mod replaces a module with another one, the result has the replacement.

    Raises:
        SystemExit: If a directory replaces a module. A directory has no version.
    """
    command = ["go", "version", "-m", *(binary.resolve() for binary in binaries)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    found: dict[str, str] = {}
    replaced = ""
    for kind, path, version in re.findall(r"^\t(dep|=>)\t(\S+)\t(\S*)", out, re.MULTILINE):
        if kind == "dep":
            replaced = path
        elif path.startswith(("/", "./", "../")):
            raise SystemExit(
                f"wheels/licences.py: {replaced} is replaced by the directory {path}, which has no version and no "
                "known licence: replace it with a version of a module in go.mod"
            )
        else:
            del found[replaced]
        found[path] = version
    return found


def directories(inside: dict[str, str]) -> dict[str, pathlib.Path]:
    """Return the source directory of each module, by "path version". Download the missing ones.

    Raises:
        SystemExit: If modules cannot be downloaded. The message has Go's error for each of them.
    """
    wanted = [f"{path}@{version}" for path, version in sorted(inside.items())]
    # The command fails if one module cannot be downloaded. The output of that module has the error.
    done = subprocess.run(["go", "mod", "download", "-json", *wanted], capture_output=True, text=True, cwd=ROOT)
    decoder, at, found, wrong = json.JSONDecoder(), 0, {}, []
    answer = done.stdout.rstrip()
    while at < len(answer):
        module, at = decoder.raw_decode(answer, at)
        at += 1
        if "Error" in module:
            wrong.append(module["Error"])
        else:
            found[f"{module['Path']} {module['Version']}"] = pathlib.Path(module["Dir"])
    if done.returncode and not wrong:
        wrong.append(done.stderr.strip())
    if wrong:
        raise SystemExit("\n".join(("wheels/licences.py: compiled modules cannot be downloaded:", *wrong)))
    return found


def texts(directory: pathlib.Path) -> list[str]:
    """Return the licences and notices of one module, including those of third-party code in subdirectories."""
    files = (f for f in sorted(directory.rglob("*")) if NAMES.match(f.name) and f.is_file())
    return [f.read_text(errors="replace").strip() for f in files if not f.name.endswith((".go", ".py"))]


def gather(binaries: list[pathlib.Path]) -> str:
    """Return all licences as one text.

    Raises:
        SystemExit: If no licence of a module is found. A wheel without it must not be distributed.
    """
    go = json.loads(subprocess.run(["go", "env", "-json"], check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    covered: dict[str, list[str]] = collections.defaultdict(list)
    covered[(pathlib.Path(go["GOROOT"]) / "LICENSE").read_text().strip()].append(f"Go {go['GOVERSION']}")
    for name, directory in directories(modules(binaries)).items():
        found = texts(directory)
        if not found:
            raise SystemExit(f"wheels/licences.py: {name} has no licence in {directory}")
        for text in dict.fromkeys(found):
            covered[text].append(name)
    parts = [HEAD]
    for text, names in covered.items():
        parts.append("\n".join(("=" * 100, *names, "-" * 100, text, "")))
    return "\n".join(parts)


def write(target: pathlib.Path, binaries: list[pathlib.Path]) -> None:
    """Write the text for these binaries to a file, for setup.py."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(gather(binaries))


def main() -> None:
    """Write the file on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("binaries", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    write(arguments.output, arguments.binaries)
    sys.stderr.write(f"{arguments.output}\n")


if __name__ == "__main__":
    main()
