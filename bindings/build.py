"""Build the parts that are not Python: the shared object and the three programs.

The shared object is at once the extension that gopy generates from this directory's Go package, and TensorFlow's
operation library (native/op). Two Go runtimes in one process are unsupported. gopy generates the Go and the C source;
this script compiles them itself, since gopy's own last step links libpython and writes run paths of the machine it runs
on.

    python bindings/build.py             # into python/pecan/_native and python/pecan/_bin, so PYTHONPATH=python works
    python bindings/build.py --only object
    python bindings/build.py --only links    # what `go test` needs: TensorFlow's headers and stubs of its libraries
    python bindings/build.py --asan     # a second package under build/asan, whose Go and C run under AddressSanitizer

It needs Go, a C compiler, and, in the Python that runs it, pybindgen and any tensorflow package (for its headers and
libraries; the object is bound to no version of it).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "native"
PACKAGE = ROOT / "python" / "pecan"
# A copy of the package for `make asan`, separate from what is built for users.
ASAN_PACKAGE = ROOT / "build" / "asan" / "python" / "pecan"
MODULE = "pecan_native"
GO_PACKAGE = "github.com/pecan-ml/pecan/bindings"
PROGRAMS = {"pecan-dispatcher": False, "pecanctl": False, "pecan-worker": True}  # name → needs cgo
# Where TensorFlow's libraries are, relative to the object and the programs, once both packages are installed.
RUN_PATH = "$ORIGIN/../../tensorflow"
# Frames and lines in the reports, at a speed that is sufficient for real tests.
ASAN_CFLAGS = "-O1 -g -fno-omit-frame-pointer"


def tensorflow_directory() -> pathlib.Path:
    """Return the directory of the installed TensorFlow without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("bindings/build.py: no tensorflow in this Python: pip install tensorflow-cpu")
    directory = pathlib.Path(spec.submodule_search_locations[0]).resolve()
    if not (directory / "include" / "tensorflow" / "c" / "kernels.h").exists():
        raise SystemExit(f"bindings/build.py: {directory} has no C headers under include/tensorflow/c")
    return directory


def write_stub(library: pathlib.Path, target: pathlib.Path) -> None:
    """Write a library that has the name and the C functions of TensorFlow's, and no code.

    From the real libraries, the linker reads 500,000 symbols for each of some fifty programs, at 5 s of CPU each.
    """
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\w+ T (TFE?_\w+)(?:@@(\w+))?$", listed, re.MULTILINE)
    versions = {version for _, version in found if version}
    with tempfile.TemporaryDirectory(dir=target) as work:
        source, script, fresh = (pathlib.Path(work) / name for name in ("stub.s", "versions", "stub.so"))
        labels = "".join(f".globl {name}\n.type {name}, @function\n{name}:\n" for name, _ in found)
        source.write_text(f'.text\n{labels}.section .note.GNU-stack,"",@progbits\n')
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions))
        options = [f"-Wl,-soname,{library.name}", *([f"-Wl,--version-script,{script}"] if versions else [])]
        run(os.environ.get("CC", "gcc"), "-shared", "-nostdlib", *options, "-o", fresh, source)
        os.replace(fresh, target / library.name)


def link_tensorflow() -> pathlib.Path:
    """Write the headers and libraries that the #cgo lines of native/tf and native/op name, and return their directory.

    The lines name it relative to their files, so a checkout's path is in the key of what Go's cache has compiled for
    it. Flags of pkg-config are not in that key: another checkout on the same machine would link with this one's paths.
    """
    directory = tensorflow_directory()
    target = WORK / "tensorflow"
    target.mkdir(parents=True, exist_ok=True)
    libraries = [directory / name for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")]
    described = "".join(f"{library} {library.stat().st_size} {library.stat().st_mtime_ns}\n" for library in libraries)
    stamp = target / "stamp"
    if not stamp.exists() or stamp.read_text() != described:
        include = target / "include"
        include.unlink(missing_ok=True)
        include.symlink_to(directory / "include")
        for library in libraries:
            write_stub(library, target)
        stamp.write_text(described)
    return target


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of the Go tool, and make sure that cgo finds TensorFlow."""
    link_tensorflow()
    return dict(os.environ, **extra)


def run(*command: str | os.PathLike[str], cwd: pathlib.Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command, and exit with its output if it fails."""
    result = subprocess.run([os.fspath(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True)
    if result.returncode != 0:
        shown = " ".join(os.fspath(c) for c in command)
        raise SystemExit(f"bindings/build.py: {shown} failed in {cwd}\n{result.stdout}{result.stderr}")


def go(*arguments: str | os.PathLike[str], cwd: pathlib.Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run the Go tool."""
    program = shutil.which("go")
    if program is None:
        raise SystemExit("bindings/build.py: no `go` on the PATH; Pecan needs the Go version that go.mod names")
    run(program, *arguments, cwd=cwd, env=env if env is not None else environment())


def sources_digest() -> str:
    """Return a hash of all inputs of the generated sources."""
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted((*(ROOT / "bindings").glob("*.go"), ROOT / "go.mod", pathlib.Path(__file__))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def generate() -> pathlib.Path:
    """Generate the extension's Go source (gopy) and C source (pybindgen), and return their directory."""
    out, stamp = WORK / "gopy", WORK / "gopy.stamp"
    digest = sources_digest()
    if stamp.exists() and stamp.read_text() == digest:
        return out
    shutil.rmtree(out, ignore_errors=True)
    tools = WORK / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    go("build", "-o", f"{tools}{os.sep}", "github.com/go-python/gopy", "golang.org/x/tools/cmd/goimports")
    run(
        tools / "gopy", "gen", "-vm", sys.executable, "-name", MODULE, "-output", out.relative_to(ROOT),
        "-dynamic-link", "-no-make", GO_PACKAGE, env=environment(),
    )  # fmt: skip
    run(tools / "goimports", "-w", f"{MODULE}.go", cwd=out, env=environment())
    # The object does not use the flags of the Python that generated it (run paths, libpython).
    source = out / f"{MODULE}.go"
    source.write_text(re.sub(r"(?m)^#cgo (CFLAGS|LDFLAGS):.*\n", "", source.read_text()))
    # The C source includes the header of the exported Go functions, which cgo writes without a full build.
    go(
        "tool", "cgo", "-objdir", "cgo", "-exportheader", f"{MODULE}_go.h", "--",
        f"-I{sysconfig.get_path('include')}", f"{MODULE}.go", cwd=out, env=environment(),
    )  # fmt: skip
    shutil.rmtree(out / "cgo")
    run(sys.executable, "build.py", cwd=out)
    for wrapper in ("__init__.py", "go.py", "bindings.py", "build.py"):
        (out / wrapper).unlink(missing_ok=True)  # pecan._src.client.native calls the extension
    stamp.write_text(digest)
    return out


def build_object(target: pathlib.Path = PACKAGE / "_native", asan: bool = False) -> pathlib.Path:
    """Build the shared object into target, optionally for AddressSanitizer, and return its path."""
    out = generate()
    target.mkdir(parents=True, exist_ok=True)
    name = f"_{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    built = out / (f"{name}.asan" if asan else name)
    optimise, strip = (ASAN_CFLAGS, "") if asan else ("-O2", "-s -w ")
    go(
        "build", *(["-asan"] if asan else []), "-buildmode=c-shared", "-trimpath",
        "-ldflags", f"{strip}-r {RUN_PATH}", "-o", built, ".",
        cwd=out,
        env=environment(CGO_CFLAGS=f"{optimise} -fPIC -I{sysconfig.get_path('include')}", CGO_LDFLAGS="-shared"),
    )  # fmt: skip
    # The object is a new file and never overwrites the old one, because a process may have the old one mapped.
    fresh = target / f".{name}.{os.getpid()}"
    shutil.copy2(built, fresh)
    os.replace(fresh, target / name)
    return target / name


def build_programs(target: pathlib.Path = PACKAGE / "_bin", asan: bool = False) -> list[pathlib.Path]:
    """Build the three programs into target, optionally those with C code for AddressSanitizer."""
    target.mkdir(parents=True, exist_ok=True)
    built = []
    for name, cgo in PROGRAMS.items():
        checked = asan and cgo
        flags = ("" if checked else "-s -w ") + (f"-r {RUN_PATH}" if cgo else "")
        fresh = target / f".{name}.{os.getpid()}"
        env = environment(CGO_ENABLED="1" if cgo else "0", **({"CGO_CFLAGS": ASAN_CFLAGS} if checked else {}))
        options = ["-asan"] if checked else []
        go("build", *options, "-trimpath", "-ldflags", flags, "-o", fresh, f"./service/cmd/{name}", env=env)
        os.replace(fresh, target / name)
        built.append(target / name)
    return built


def build_asan() -> pathlib.Path:
    """Build a copy of the package whose object and worker run under AddressSanitizer, and return its directory."""
    shutil.rmtree(ASAN_PACKAGE, ignore_errors=True)
    shutil.copytree(PACKAGE, ASAN_PACKAGE, ignore=shutil.ignore_patterns("_native", "_bin", "__pycache__"))
    build_object(ASAN_PACKAGE / "_native", asan=True)
    build_programs(ASAN_PACKAGE / "_bin", asan=True)
    return ASAN_PACKAGE.parent


def main() -> None:
    """Build in place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("links", "object", "programs"), help="build only this")
    parser.add_argument("--asan", action="store_true", help="build for AddressSanitizer, into a separate package")
    arguments = parser.parse_args()
    if arguments.asan:
        sys.stderr.write(f"{build_asan()}\n")
        return
    if arguments.only == "links":
        link_tensorflow()
        return
    if arguments.only != "programs":
        sys.stderr.write(f"{build_object()}\n")
    if arguments.only != "object":
        for path in build_programs():
            sys.stderr.write(f"{path}\n")


if __name__ == "__main__":
    main()
