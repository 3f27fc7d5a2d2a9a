"""The three Go programs that the wheel brings: where they are, and what they need to run."""

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
_QUESTIONS = ("--help", "-h", "--version")


def path(name: str) -> pathlib.Path:
    """The program's file."""
    file = pathlib.Path(__file__).resolve().parents[2] / "_bin" / name
    if not file.exists():
        raise FileNotFoundError(
            f"the program {name} is not at {file}: install a wheel of pecan, or, in a source tree, run "
            "`python bindings/build.py`"
        )
    return file


def tensorflow_directory() -> pathlib.Path:
    """Where TensorFlow's libraries are, found without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{WORKER} needs TensorFlow's libraries, and {sys.executable} has no tensorflow: pip install tensorflow-cpu"
        )
    return pathlib.Path(spec.submodule_search_locations[0])


def environment(name: str) -> dict[str, str]:
    """The environment that the program runs in: workers find TensorFlow, and leave accelerators to the trainer."""
    variables = dict(os.environ)
    if name != WORKER:
        return variables
    known = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(tensorflow_directory()), known)))
    variables["CUDA_VISIBLE_DEVICES"] = ""
    variables["TPU_VISIBLE_DEVICES"] = ""
    # TensorFlow looks at it when it is loaded. What matters of its notices comes with the errors that Pecan reports.
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return variables


def _become(name: str) -> NoReturn:
    """Replaces this process by the program."""
    try:
        file, variables = path(name), environment(name)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        sys.exit(f"{name}: {error}")
    arguments = sys.argv[1:]
    if name == WORKER and len(arguments) == 1 and arguments[0] in _QUESTIONS:
        _answer(file, arguments, variables)
    os.execve(file, [name, *arguments], variables)


def _answer(file: pathlib.Path, arguments: list[str], variables: dict[str, str]) -> NoReturn:
    """Runs the program for its answer alone: TensorFlow's library writes to standard error as soon as it is loaded."""
    done = subprocess.run([file, *arguments], env=variables, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.stderr.buffer.write(done.stderr)
    sys.exit(done.returncode)


def dispatcher() -> NoReturn:
    """The console command `pecan-dispatcher`."""
    _become(DISPATCHER)


def worker() -> NoReturn:
    """The console command `pecan-worker`."""
    _become(WORKER)


def pecan() -> NoReturn:
    """The console command `pecan`: what of `pecanctl` is for those who write pipelines."""
    usage = "pecan explain JOB [--dispatcher HOST:PORT] [--json]"
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(f"Usage: {usage}\n\nShows why the steps of a job run in the order in which they do.\n")
        sys.exit(0)
    if arguments[:1] != ["explain"]:
        sys.exit(f"pecan: want {usage}, got {' '.join(arguments) or 'nothing'} (pecanctl has more)")
    _become(CONTROL)


def control() -> NoReturn:
    """The console command `pecanctl`."""
    _become(CONTROL)
