"""The three Go programs of the wheel: their paths, environments and console commands."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import NoReturn

DISPATCHER = "pecan-dispatcher"
WORKER = "pecan-worker"
CONTROL = "pecanctl"
_INFO_FLAGS = ("--help", "-h", "--version")


def path(name: str) -> pathlib.Path:
    """Returns the path of a program's file. Raises FileNotFoundError if it is not installed."""
    file = pathlib.Path(__file__).resolve().parents[2] / "_bin" / name
    if not file.exists():
        raise FileNotFoundError(
            f"the program {name} is not at {file}: install a wheel of pecan, or, in a source tree, run "
            "`python bindings/build.py`"
        )
    return file


def tensorflow_directory() -> pathlib.Path:
    """Returns the directory of TensorFlow's libraries, without importing it. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{WORKER} needs TensorFlow's libraries, and {sys.executable} has no tensorflow: pip install tensorflow-cpu"
        )
    return pathlib.Path(spec.submodule_search_locations[0])


def environment(name: str) -> dict[str, str]:
    """Returns the environment variables for a program. Workers get TensorFlow's libraries and no accelerators."""
    variables = dict(os.environ)
    if name != WORKER:
        return variables
    known = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(tensorflow_directory()), known)))
    variables["CUDA_VISIBLE_DEVICES"] = ""
    variables["TPU_VISIBLE_DEVICES"] = ""
    # TensorFlow reads it at its start. Pecan reports TensorFlow's errors itself, so log lines below errors are hidden.
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return variables


def _exec(name: str) -> NoReturn:
    """Replaces this process with a program, and passes the arguments of this process on."""
    try:
        file, variables = path(name), environment(name)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        sys.exit(f"{name}: {error}")
    arguments = sys.argv[1:]
    if name == WORKER and len(arguments) == 1 and arguments[0] in _INFO_FLAGS:
        _run_without_stderr(file, arguments, variables)
    os.execve(file, [name, *arguments], variables)


def _run_without_stderr(file: pathlib.Path, arguments: list[str], variables: dict[str, str]) -> NoReturn:
    """Runs the program. Shows its standard error only if it fails, because TensorFlow writes there at every start."""
    done = subprocess.run([file, *arguments], env=variables, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.stderr.buffer.write(done.stderr)
    sys.exit(done.returncode)


def dispatcher() -> NoReturn:
    """The console command `pecan-dispatcher`."""
    _exec(DISPATCHER)


def worker() -> NoReturn:
    """The console command `pecan-worker`."""
    _exec(WORKER)


def pecan() -> NoReturn:
    """The console command `pecan`: the part of `pecanctl` for authors of pipelines."""
    usage = "pecan explain JOB [--dispatcher HOST:PORT] [--json]"
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        about = "Shows why the steps of a job run in their order, how many workers serve the job, and why."
        sys.stdout.write(f"Usage: {usage}\n\n{about}\n")
        sys.exit(0)
    if arguments[:1] != ["explain"]:
        sys.exit(f"pecan: want {usage}, got {' '.join(arguments) or 'nothing'} (pecanctl has more)")
    _exec(CONTROL)


def control() -> NoReturn:
    """The console command `pecanctl`."""
    _exec(CONTROL)
