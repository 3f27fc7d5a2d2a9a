"""Runs the code where Go and C meet under AddressSanitizer, with real TensorFlow: `make asan`.

It runs the Go tests of the packages with C in them. Beside them, it runs end-to-end tests in a Python whose shared
object and workers are built with the sanitizer (bindings/build.py --asan). A report in any process fails the run. The
reports are files, because a trainer's tests may pass although a worker died of one.

TensorFlow itself is built without the sanitizer. The sanitizer replaces malloc in the whole process, so it checks each
access of our C and Go code to TensorFlow's memory too. It does not report leaks, because TensorFlow's singletons would
count as such; tests/e2e/test_leaks.py checks leaks. The memory of received elements comes from mmap, which the
sanitizer does not see. Such a build therefore protects the pool's free buffers, and a late access faults and is
reported.

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

# The packages whose tests pass memory between Go and C. Other packages under service/worker call these.
GO_TESTS = (
    "./native/tf",
    "./native/op",
    "./native/buffer",
    "./service/worker",
    "./service/worker/cachefill",
    "./service/worker/dataset",
    "./service/worker/payload",
    "./service/worker/run",
    "./service/worker/trial",
)
# All kinds of elements on both transports, deleted iterators that still read, failing elements, and killed workers.
E2E_TESTS = (
    "tests/e2e/test_elements.py",
    "tests/e2e/test_trainer.py",
)
REPORTS = build.ROOT / "build" / "asan" / "reports"
# The sanitizer looks for __cxa_throw when it starts. Python is not C++, so libstdc++ is loaded with the sanitizer.
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
        # TensorFlow's libraries define names twice, and pass C++ containers between annotated and other code.
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
    go_tests = []
    if not chosen:
        # The tests of service/worker wait half of their time, so the end-to-end tests run beside the Go tests.
        command = ["go", "test", "-asan", "-short", "-trimpath", "-vet=off", "-p", "2", "-timeout", "10m", *GO_TESTS]
        env = build.environment(CGO_CFLAGS=build.ASAN_CFLAGS, **variables())
        go_tests.append(subprocess.Popen(command, cwd=build.ROOT, env=env))
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["-o", f"pythonpath={package} tests/e2e"]
    command += chosen or list(E2E_TESTS)
    env = dict(os.environ, **variables(), LD_PRELOAD=" ".join(map(library, PRELOADED)))
    env["PYTHONPATH"] = str(package)
    failed = subprocess.run(command, cwd=build.ROOT, env=env).returncode != 0
    failed = any([run.wait() != 0 for run in go_tests]) or failed
    for report in reports():
        sys.stderr.write(f"\n{report.name}\n{report.read_text(errors='replace')}\n")
    return 1 if failed or reports() else 0


if __name__ == "__main__":
    sys.exit(main())
