"""The arrows between the rooms (docs/architecture.md): who may import whom, and why not when one breaks."""

from __future__ import annotations

import ast
import re

import pytest
import repository

# An entry with "=" at its end stands for that package alone, without the packages below it.
GRAPH = "service/graph="
# Room → rooms it may import beside itself, and the reason that is shown when it imports another. The longest
# matching prefix is a package's room.
ARROWS: dict[str, tuple[tuple[str, ...], str]] = {
    "proto": ((), "proto is the ground that every room stands on: what it imported, all would import"),
    "policies": (
        (),
        "policies are pure functions from plain measurements to decisions: they must run in a simulator",
    ),
    "service/graph/nodedef": (("proto",), "nodedef reads single nodes: every package that looks at graphs imports it"),
    "service/graph/ops": (("proto",), "ops knows TensorFlow's ops: a dataset is not its subject"),
    "service/graph/analysis": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops"),
        "analysis says what steps do: what follows from that is decided by the packages that import it",
    ),
    "service/graph/dataflow": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops"),
        "dataflow follows values through functions: it needs no plan and no order",
    ),
    "service/graph/split": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops", "service/graph/analysis"),
        "a plan depends on the graph and the options alone: neither on the graphs of its streams nor on an order",
    ),
    "service/graph/rewrite": (
        (
            "proto",
            GRAPH,
            "service/graph/nodedef",
            "service/graph/ops",
            "service/graph/analysis",
            "service/graph/split",
        ),
        "rewrite writes what the plan says: it neither plans nor reorders",
    ),
    "service/graph/order": (
        (
            "proto",
            GRAPH,
            "service/graph/nodedef",
            "service/graph/ops",
            "service/graph/analysis",
            "service/graph/dataflow",
        ),
        "order moves steps of the registered graph: it knows nothing of streams",
    ),
    "service/graph/graphtest": (("proto", "service/graph"), "graphtest plans and writes streams for the tests"),
    "service/graph": (
        ("proto", "service/graph/nodedef", "service/graph/ops"),
        "the graph rules run in trainers, dispatchers and workers alike: they know messages and nothing else",
    ),
    "service/store": ((), "the store keeps bytes: what they mean is the dispatcher's"),
    "service/cache": (
        ("service/internal",),
        "the cache keeps segments: what they mean is the worker's and the dispatcher's",
    ),
    "service/internal": (("proto",), "what all services share cannot depend on one of them"),
    "service/dispatcher/core/jobmetrics": (("proto",), "sums of metrics know messages and nothing else"),
    "service/dispatcher/core/crashguard": (("proto",), "the crash guard decides from stored messages alone"),
    "service/dispatcher/core/durable": (
        ("proto", "service/dispatcher/core/crashguard", "service/dispatcher/core/jobmetrics"),
        "the durable state follows from records alone: a replay has no configuration, sessions or graphs",
    ),
    "service/dispatcher/core/schedule": (
        ("proto", "service/graph", "service/dispatcher/core/durable"),
        "the schedule divides workers by stored jobs and plain facts: it knows neither sessions nor records",
    ),
    "service/dispatcher/core/rollout": (
        ("proto", "service/dispatcher/core/durable", "service/dispatcher/core/jobmetrics"),
        "a rollout sees the core as its Host: it knows no workers, sessions or graphs",
    ),
    "service/dispatcher/ordering": (
        ("policies", "proto", "service/graph"),
        "a proposal follows from the graph and metrics: it is pure",
    ),
    "service/dispatcher/validate": (("proto",), "a check of a request's form follows from the request alone"),
    "service/dispatcher/metrics": (
        ("proto", "service/store"),
        "metrics read the dispatcher through their Source: they know neither the core nor gRPC",
    ),
    "service/dispatcher/core": (
        ("policies", "proto", "service/graph"),
        "the core decides; clock, network and disk are the dispatcher's",
    ),
    "service/dispatcher": (
        ("policies", "proto", "service/graph", "service/store", "service/internal"),
        "the dispatcher is pure Go and static: it reaches neither workers' code nor TensorFlow",
    ),
    "service/worker/identity": ((), "who a worker is depends on nothing"),
    "service/worker/payload": (("proto", "native/tf"), "payloads are tensors and bytes: they know no streams or readers"),
    "service/worker/window": (
        ("proto", "service/worker/payload"),
        "a window keeps ready elements: it knows neither who produces them nor how they are sent",
    ),
    "service/worker/dataset": (
        ("proto", "service/graph", "native/tf"),
        "graphs are given to runs and trials alike: the package knows neither",
    ),
    "service/worker/profile": (
        ("proto", "service/graph", "native/tf", "service/worker/dataset"),
        "a profile reads iterators and sums: it knows a run only by its interface",
    ),
    "service/worker/checkpoint": (
        ("proto", "service/internal"),
        "checkpoints are files: what is saved and when is decided by the run",
    ),
    "service/worker/cachefill": (
        (
            "proto",
            "service/cache",
            "service/graph",
            "service/internal",
            "native/tf",
            "service/worker/dataset",
            "service/worker/payload",
        ),
        "a cached step gets the graph below it as a function: it knows no runs",
    ),
    "service/worker/trial": (
        (
            "proto",
            "service/graph",
            "service/internal",
            "native/tf",
            "service/worker/dataset",
            "service/worker/identity",
            "service/worker/payload",
        ),
        "a trial runs beside the streams and shares no state with them",
    ),
    "service/worker/serve": (
        ("proto", "service/worker/identity", "service/worker/payload", "service/worker/window"),
        "the data plane takes ready elements from windows: it knows neither runs nor TensorFlow",
    ),
    "service/worker/run": (
        (
            "proto",
            "service/graph",
            "service/internal",
            "native/tf",
            "service/worker/cachefill",
            "service/worker/checkpoint",
            "service/worker/dataset",
            "service/worker/identity",
            "service/worker/payload",
            "service/worker/profile",
            "service/worker/window",
        ),
        "a run fills windows: it knows neither connections nor the session",
    ),
    "service/worker": (
        ("proto", "service/graph", "service/cache", "service/internal", "native/tf"),
        "a worker runs streams: it knows the dispatcher only by its messages",
    ),
    "service/cmd": (
        ("proto", "policies", "service", "native"),
        "commands wire everything, and nothing else is wired to them",
    ),
    "native/client/wait": ((), "waiting knows nothing of what is waited for"),
    "native/client/element": (
        ("proto", "native/buffer"),
        "the memory of elements knows frames, not where they came from or who reads them",
    ),
    "native/client/transport": (
        ("proto", "native/buffer", "native/client/element", "native/client/wait"),
        "connections hand chunks to a Receiver: what is accepted is the epoch's decision",
    ),
    "native/client/control": (
        ("proto", "native/client/wait"),
        "the link to the dispatcher makes calls: jobs and epochs use it, not the other way round",
    ),
    "native/client/epoch": (
        (
            "proto",
            "native/buffer",
            "native/client/control",
            "native/client/element",
            "native/client/transport",
            "native/client/wait",
        ),
        "an epoch knows its job only by the interface epoch.Job",
    ),
    "native/client/resume": (
        ("proto", "native/client/element", "native/client/epoch"),
        "positions add up what epochs delivered: jobs save and load them",
    ),
    "native/client": (("proto", "native/buffer"), "the client is pure Go: TensorFlow is native/tf's and native/op's"),
    "native": (("proto", "service/graph"), "native lives inside trainers: it knows services only by their messages"),
    "bindings": (
        ("native", "proto", "service/graph"),
        "bindings hand calls of native and of the graph check to Python, and decide nothing",
    ),
    "tests": (("proto", "policies", "service", "native", "bindings"), ""),
    "benchmarks": (("proto", "policies", "service", "native", "bindings"), ""),
}
# What the core may not touch: it has no clock, network, disk, or randomness of its own.
IMPURE = {"os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "syscall", "google.golang.org/grpc"}
IMPURE_CALL = re.compile(r"\btime\.(Now|Since|Until|Sleep|After|NewTimer|NewTicker|Tick)\(")


def room_of(path: str) -> str | None:
    """The room a package belongs to."""
    return max((room for room in ARROWS if inside(path, room)), key=len, default=None)


def inside(path: str, room: str) -> bool:
    """Whether a package lies in a room."""
    if room.endswith("="):
        return path == room[:-1]
    return path == room or path.startswith(room + "/")


def broken_arrows(path: str, imports: list[str]) -> list[str]:
    """A sentence for every import that breaks an arrow."""
    room = room_of(path)
    if room is None:
        return [f"{path} lies in no room of the house: {', '.join(sorted(ARROWS))}"]
    allowed, why = ARROWS[room]
    sentences = []
    for imported in imports:
        if inside(imported, "service/cmd") and not inside(path, "service/cmd"):
            sentences.append(f"{path} imports {imported}, but nobody imports a command")
        elif not any(inside(imported, target) for target in (GRAPH if room == "service/graph" else room, *allowed)):
            may = ", ".join(allowed) or "nothing of ours"
            sentences.append(f"{path} imports {imported}, but {room} may import {may}: {why}")
    return sentences


def test_go_packages_import_only_what_their_room_may():
    packages = repository.go_packages()
    imports = {package.path: package.ours for package in packages}
    assert "native/tf" in imports["service/worker"], "could not read the imports of the packages"
    broken = []
    for package in packages:
        outside = set()
        if inside(package.path, "service/graph"):
            # External tests there plan and write whole streams, with graphtest.
            outside = {name for name in package.ours_in_external_tests if inside(name, "service/graph")}
        broken += broken_arrows(package.path, [name for name in package.ours if name not in outside])
    helpers = "service/graph/graphtest"
    users = [p.path for p in packages if helpers in p.ours and helpers not in p.ours_in_external_tests]
    broken += [f"{path} imports {helpers}, which is for tests alone" for path in users]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("path", "imported"),
    [
        ("policies/autoorder", "proto/pecan/v1"),
        ("service/graph", "native/tf"),
        ("service/graph", "service/graph/analysis"),
        ("service/graph/ops", "service/graph"),
        ("service/graph/split", "service/graph/rewrite"),
        ("service/graph/split", "service/graph/order"),
        ("service/graph/rewrite", "service/graph/dataflow"),
        ("service/graph/order", "service/graph/split"),
        ("service/store", "proto/pecan/v1"),
        ("service/dispatcher", "service/worker"),
        ("service/dispatcher/core", "service/store"),
        ("service/dispatcher/core/durable", "service/dispatcher/core"),
        ("service/dispatcher/core/schedule", "service/dispatcher/core/rollout"),
        ("service/dispatcher/core/rollout", "service/graph"),
        ("service/dispatcher/ordering", "service/dispatcher/core"),
        ("service/worker", "service/dispatcher"),
        ("service/worker/serve", "native/tf"),
        ("service/worker/run", "service/worker/serve"),
        ("service/worker/run", "service/worker"),
        ("native/client", "service/worker"),
        ("native/client", "native/tf"),
        ("native/client/transport", "native/client/epoch"),
        ("native/client/transport", "native/client/control"),
        ("native/client/epoch", "native/client"),
        ("native/client/epoch", "native/client/resume"),
        ("native/client/control", "native/client/transport"),
        ("native/client/element", "native/client/transport"),
        ("native/client/wait", "proto/reason"),
        ("native/client", "service/cmd/pecanctl"),
        ("bindings", "service/dispatcher"),
        ("proto/frame", "service/graph"),
        ("elsewhere", "proto/frame"),
    ],
)
def test_a_broken_arrow_is_seen(path, imported):
    assert broken_arrows(path, [imported])


def test_the_core_of_the_dispatcher_is_pure():
    pure = ("service/dispatcher/core", "service/dispatcher/ordering")
    cores = [p for p in repository.go_packages() if any(inside(p.path, package) for package in pure)]
    names = {p.path.removeprefix("service/dispatcher/") for p in cores}
    assert names >= {
        "core",
        "core/crashguard",
        "core/durable",
        "core/jobmetrics",
        "core/rollout",
        "core/schedule",
        "ordering",
    }
    for package in cores:
        tests_left_out = [name for name in package.files if not name.endswith("_test.go")]
        for name in tests_left_out:
            source = repository.text(name)
            imported = set(re.findall(r'^\s*(?:import\s+)?(?:[\w.]+\s+)?"([^"]+)"$', source, re.MULTILINE))
            assert not imported & IMPURE, f"{name} imports {imported & IMPURE}: the core decides from what it is told"
            found = IMPURE_CALL.search(source)
            assert found is None, f"{name} calls {found[0]}…): time is told to the core"


def test_what_must_not_need_cgo_does_not():
    # The worker's main says where the libraries of the executor lie, seen from the installed program.
    allowed = ("native", "bindings", "service/cmd/pecan-worker")
    for package in repository.go_packages():
        if package.cgo:
            assert any(inside(package.path, room) for room in allowed), f"{package.path} uses cgo"
            assert not inside(package.path, "native/client"), (
                "native/client is pure Go, so that it is tested without cgo"
            )


@pytest.mark.parametrize("command", ["pecan-dispatcher", "pecanctl"])
def test_static_commands_reach_neither_native_nor_cgo(command):
    path = f"service/cmd/{command}"
    assert any(p.path == path for p in repository.go_packages()), f"{path} is missing"
    words = ("go", "list", "-e", "-deps", "-f", "{{if .CgoFiles}}cgo {{end}}{{.ImportPath}}", f"./{path}")
    for line in repository.run(*words, CGO_ENABLED="0").split("\n"):
        assert not line.startswith("cgo "), f"{command} is static, but depends on {line}"
        assert f"{repository.MODULE}/native" not in line, f"{command} runs without TensorFlow, but depends on {line}"


# Sub-package of python/pecan/_src → sub-packages that it may import. All may import the modules beside them.
PYTHON_LAYERS = {
    "client": (),
    "servers": ("client",),
    "dataset": ("client", "servers"),
    "explain": ("client", "servers", "dataset"),
}


def python_imports(name: str) -> list[str]:
    """Modules that a Python file imports, at any depth; relative ones start with a dot."""
    found = []
    for node in ast.walk(ast.parse(repository.text(name), name)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return found


def broken_python_arrows(name: str, imports: list[str]) -> list[str]:
    """A sentence for every import of a Python file that breaks an arrow."""
    package = name.startswith("python/pecan/")
    tests = (name.startswith("python/") and not package) or name.startswith("tests/")
    private = name.startswith("python/pecan/_src/")
    sentences = []
    for imported in imports:
        if package and imported.startswith("."):
            sentences.append(f"{name} imports {imported}: imports inside the package are absolute")
        to_private = imported == "pecan._src" or imported.startswith("pecan._src.")
        if to_private and not (package or tests):
            sentences.append(f"{name} imports {imported}: _src is nobody's but the package's, so that it may change")
        if private and imported.split(".")[0] == "pecan" and not to_private:
            sentences.append(f"{name} imports {imported}: the public surface stands on _src, not the other way round")
        layer, target = (re.sub(r"^(python/)?pecan[/.]_src[/.]?", "", path).split(sep)[0] for path, sep in ((name, "/"), (imported, ".")))
        if private and to_private and target in PYTHON_LAYERS and target not in (layer, *PYTHON_LAYERS.get(layer, ())):
            sentences.append(f"{name} imports {imported}: {layer} may import {PYTHON_LAYERS.get(layer, ())} of _src")
    return sentences


def test_python_modules_import_only_what_they_may():
    broken = [s for name in repository.with_suffix(".py") for s in broken_python_arrows(name, python_imports(name))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("examples/photographs/demo.py", "pecan._src.client"),
        ("python/pecan/_src/client.py", "pecan.distribute"),
        ("python/pecan/options.py", "._src"),
        ("python/pecan/_src/client/session.py", "pecan._src.servers.server"),
        ("python/pecan/_src/options.py", "pecan._src.client"),
    ],
)
def test_a_broken_python_arrow_is_seen(name, imported):
    assert broken_python_arrows(name, [imported])
