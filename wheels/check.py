"""Check a wheel of Pecan: its contents, its requirements, and that it can be installed anywhere.

    python wheels/check.py dist/pecan-*.whl            # check
    python wheels/check.py --tag dist/pecan-*.whl      # check, and name the oldest system that it runs on

The usual repair tools copy foreign libraries into a wheel. Pecan's only foreign libraries are TensorFlow's, which must
come from the installed TensorFlow, so this program checks the wheel instead. The object and the programs need only the
C library and TensorFlow, and find TensorFlow next to the package. They contain no path of the building machine. The
wheel has the licences of all compiled modules. `pip wheel` tags the wheel linux_x86_64, which guarantees nothing about
other machines. --tag replaces that tag after the checks.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import licences

PROGRAMS = ("pecan-dispatcher", "pecan-worker", "pecanctl")
SYSTEM = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libresolv.so.2", "libm.so.6", "ld-linux-x86-64.so.2"}
TENSORFLOW = {"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"}
RUN_PATH = "$ORIGIN/../../tensorflow"
GO_MARK = b"\xff Go buildinf:"


def _readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


def needed(file: pathlib.Path) -> set[str]:
    """Return the libraries that a file is linked to."""
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf("-d", str(file))))


def run_paths(file: pathlib.Path) -> list[str]:
    """Return the directories where the loader looks for libraries."""
    return re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", _readelf("-d", str(file)))


def glibc(file: pathlib.Path) -> tuple[int, int]:
    """Return the newest C library version that a file requires."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", _readelf("-V", str(file)))
    return max(((int(major), int(minor)) for major, minor in versions), default=(2, 5))


def exports(file: pathlib.Path) -> set[str]:
    """Return the symbols that a shared object exports."""
    return set(re.findall(r"(\S+)$", _readelf("--dyn-syms", str(file)), re.MULTILINE))


def problems(package: pathlib.Path) -> list[str]:
    """Return the problems of an unpacked `pecan` directory."""
    found = []
    objects = sorted(package.rglob("*.so"))
    if len(objects) != 1:
        found.append(f"there must be one shared object, there are {[o.name for o in objects]}")
    for file in objects:
        if GO_MARK not in file.read_bytes():
            found.append(f"{file.name} has no Go runtime")
        if f"PyInit_{file.name.split('.')[0]}" not in exports(file):
            found.append(f"{file.name} is not a Python extension")
        if not needed(file) <= SYSTEM | TENSORFLOW:
            found.append(f"{file.name} needs {sorted(needed(file) - SYSTEM - TENSORFLOW)}")
        if run_paths(file) != [RUN_PATH]:
            found.append(f"{file.name} looks for libraries in {run_paths(file)} instead of {RUN_PATH}")
    for name in PROGRAMS:
        file = package / "_bin" / name
        if not file.exists():
            found.append(f"the program {name} is missing")
            continue
        if name == "pecan-worker":
            if not needed(file) <= SYSTEM | TENSORFLOW or run_paths(file) != [RUN_PATH]:
                found.append(f"{name} needs {sorted(needed(file))} and looks for them in {run_paths(file)}")
        elif needed(file):
            found.append(f"{name} is not static: it needs {sorted(needed(file))}")
    return found


def machine_paths(package: pathlib.Path) -> list[str]:
    """Return where an unpacked `pecan` directory contains paths of the machine that built it."""
    found = []
    home = str(pathlib.Path.home()).encode()
    root = str(pathlib.Path(__file__).resolve().parent.parent).encode()
    for file in (*package.rglob("*.so"), *(package / "_bin").iterdir()):
        content = file.read_bytes()
        found += [f"{file.name} names {path.decode()}" for path in (home + b"/", root + b"/") if path in content]
    return found


def unnamed_modules(package: pathlib.Path) -> list[str]:
    """Return the Go modules in an unpacked `pecan` directory whose licences the wheel lacks."""
    text = (package / licences.INSIDE).read_text() if (package / licences.INSIDE).exists() else ""
    included = set(text.splitlines())
    inside = licences.modules([*package.rglob("*.so"), *(package / "_bin").iterdir()])
    return [
        f"it lacks the licence of {path} {version}, which it contains"
        for path, version in inside.items()
        if f"{path} {version}" not in included
    ]


def main() -> int:
    """Check the wheels on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    parser.add_argument("--tag", action="store_true", help="rename the wheel for the oldest C library that it runs on")
    arguments = parser.parse_args()
    failed = False
    for wheel in arguments.wheels:
        with tempfile.TemporaryDirectory() as directory:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(directory)
            package = pathlib.Path(directory) / "pecan"
            found = problems(package) + machine_paths(package) + unnamed_modules(package)
            binaries = [*package.rglob("*.so"), package / "_bin" / "pecan-worker"]
            oldest = max(glibc(file) for file in binaries)
        for problem in found:
            sys.stderr.write(f"{wheel.name}: {problem}\n")
        failed = failed or bool(found)
        sys.stdout.write(f"{wheel.name}: needs glibc {oldest[0]}.{oldest[1]}\n")
        if arguments.tag and not found:
            tag = f"manylinux_{oldest[0]}_{oldest[1]}_x86_64"
            command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(wheel)]
            subprocess.run(command, check=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
