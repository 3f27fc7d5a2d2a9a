"""The rules on what packages use besides each other: a pure core, cgo in few packages, and static commands."""

from __future__ import annotations

import re

import pytest
import repository
from test_imports import ONLY_FOR_TESTS, inside

# Packages that the core may not import, because it uses no clock, network, disk or randomness.
IMPURE = {"os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "syscall", "google.golang.org/grpc"}
IMPURE_CALL = re.compile(r"\btime\.(Now|Since|Until|Sleep|After|NewTimer|NewTicker|Tick)\(")

# Functions of math/rand/v2 that draw from the process's own generator.
UNSEEDED = re.compile(r"\brand\.(?!New\b|NewPCG\b|Rand\b)\w+\(")


def test_the_core_of_the_dispatcher_and_policies_are_pure():
    pure = (
        "service/dispatcher/caching",
        "service/dispatcher/core",
        "service/dispatcher/ordering",
        "service/dispatcher/placing",
        "policies",
    )
    cores = [p for p in repository.go_packages() if p.path not in ONLY_FOR_TESTS and any(inside(p.path, package) for package in pure)]
    names = {p.path.removeprefix("service/dispatcher/") for p in cores}
    assert names >= {
        "caching",
        "core",
        "core/crashguard",
        "core/durable",
        "core/jobmetrics",
        "core/journaltest",
        "core/measure",
        "core/placement",
        "core/rollout",
        "core/schedule",
        "ordering",
        "placing",
        "policies/autocache",
        "policies/autoorder",
        "policies/autoplacement",
        "policies/autoscale",
        "policies/sim",
        "policies/sim/caching",
    }
    for package in cores:
        # Simulations draw random numbers, but from a seed only.
        impure = IMPURE - {"math/rand/v2"} if inside(package.path, "policies/sim") else IMPURE
        tests_left_out = [name for name in package.files if not name.endswith("_test.go")]
        for name in tests_left_out:
            source = repository.text(name)
            imported = set(re.findall(r'^\s*(?:import\s+)?(?:[\w.]+\s+)?"([^"]+)"$', source, re.MULTILINE))
            assert not imported & impure, f"{name} imports {imported & impure}: the core decides only from its arguments"
            found = IMPURE_CALL.search(source)
            assert found is None, f"{name} calls {found[0]}…): the core gets the time as an argument"
            found = UNSEEDED.search(source)
            assert found is None, f"{name} calls {found[0]}…): a simulation with equal seeds is the same"


def test_only_allowed_packages_use_cgo():
    # The worker's main sets the path of the executor's libraries relative to the installed program.
    allowed = ("native", "bindings", "service/cmd/pecan-worker")
    for package in repository.go_packages():
        if package.cgo:
            assert any(inside(package.path, layer) for layer in allowed), f"{package.path} uses cgo"
            assert not inside(package.path, "native/client"), (
                "native/client is pure Go, so that it is tested without cgo"
            )


@pytest.mark.parametrize("command", ["pecan-dispatcher", "pecanctl"])
def test_static_commands_use_neither_native_nor_cgo(command):
    path = f"service/cmd/{command}"
    assert any(p.path == path for p in repository.go_packages()), f"{path} is missing"
    words = ("go", "list", "-e", "-deps", "-f", "{{if .CgoFiles}}cgo {{end}}{{.ImportPath}}", f"./{path}")
    for line in repository.run(*words, CGO_ENABLED="0").split("\n"):
        assert not line.startswith("cgo "), f"{command} is static, but depends on {line}"
        assert f"{repository.MODULE}/native" not in line, f"{command} runs without TensorFlow, but depends on {line}"
