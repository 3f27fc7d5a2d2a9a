"""Runs Pecan where Go and C meet under AddressSanitizer, with real TensorFlow: `make asan`.

First the Go tests of the packages with C in them, then end-to-end tests in a Python whose shared object and whose
workers are built for the sanitizer (bindings/build.py --asan). A report anywhere, in the trainer or in a worker, fails
the run; a trainer's tests may pass beside a worker that died of one, so the reports are looked for as files.

TensorFlow itself is not built for the sanitizer. Its allocations are still watched, since the sanitizer takes the place
of malloc in the whole process: what is checked is every access that our C and our Go make. Leaks are looked for
elsewhere (tests/e2e/test_leaks.py), because TensorFlow's singletons would be reported as such. The memory that elements
arrive in comes from mmap, which the sanitizer does not see; there, such a build makes the pool a checked one, so that a
late access faults and is reported too.

    python bindings/asan.py                      # everything
    python bindings/asan.py -k ragged            # arguments of pytest: these instead of the usual end-to-end tests
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import build

GO_TESTS = ("./native/tf", "./native/op", "./native/buffer", "./service/worker/...")
# All kinds of elements on both transports, iterators that are deleted while they read, failing elements, killed
# workers.
E2E_TESTS = (
    "tests/e2e/test_elements.py",
    "tests/e2e/test_trainer.py",
)
REPORTS = build.ROOT / "build" / "asan" / "reports"
# libstdc++ is loaded with the sanitizer, which looks for __cxa_throw when it starts; Python itself is not C++.
PRELOADED = ("libasan.so", "libstdc++.so.6")


def library(name: str) -> str:
    """Return the path of a library of the compiler."""
    path = subprocess.run(
        [os.environ.get("CC", "gcc"), f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not os.path.isabs(path):
        raise SystemExit(f"bindings/asan.py: the C compiler has no {name}: install its AddressSanitizer")
    return os.path.realpath(path)


def variables() -> dict[str, str]:
    """Return the environment of all programs under the sanitizer."""
    options = {
        "detect_leaks": "0",
        # TensorFlow's libraries have names that occur twice, and pass containers of C++ between annotated and other
        # code.
        "detect_odr_violation": "0",
        "detect_container_overflow": "0",
        "log_path": str(REPORTS / "report"),
        "exitcode": "99",
    }
    return {
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in options.items()),
        "LD_LIBRARY_PATH": str(build.tensorflow_directory()),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def reports() -> list[pathlib.Path]:
    """Return the sanitizer's reports, one file per process."""
    return sorted(REPORTS.glob("report.*"))


def main() -> int:
    """Build, run the tests, and print the reports."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    package = build.build_asan()
    chosen = sys.argv[1:]
    failed = False
    if not chosen:
        command = ["go", "test", "-asan", "-p", "2", "-timeout", "10m", *GO_TESTS]
        env = build.environment(CGO_CFLAGS=build.ASAN_CFLAGS, **variables())
        failed = subprocess.run(command, cwd=build.ROOT, env=env).returncode != 0
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["-o", f"pythonpath={package} tests/e2e"]
    command += chosen or list(E2E_TESTS)
    env = dict(os.environ, **variables(), LD_PRELOAD=" ".join(map(library, PRELOADED)))
    env["PYTHONPATH"] = str(package)
    failed = subprocess.run(command, cwd=build.ROOT, env=env).returncode != 0 or failed
    for report in reports():
        sys.stderr.write(f"\n{report.name}\n{report.read_text(errors='replace')}\n")
    return 1 if failed or reports() else 0


if __name__ == "__main__":
    sys.exit(main())
