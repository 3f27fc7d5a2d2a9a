"""The import rules between packages (docs/architecture.md). A broken rule says why it exists."""

from __future__ import annotations

import pytest
import repository

# An entry that ends with "=" means that package only, without the packages below it.
GRAPH = "service/graph="
# Layer → layers that it may import besides itself, and the reason for the rule. The longest matching prefix is a
# package's layer.
IMPORT_RULES: dict[str, tuple[tuple[str, ...], str]] = {
    "proto": ((), "every layer imports proto, so every layer would depend on what proto imports"),
    "policies": (
        (),
        "policies are pure functions from measurements to decisions, so that they run in a simulator",
    ),
    "policies/autoscale": ((), "every policy for workers imports autoscale, which knows none of them"),
    "policies/autoplacement": (
        ("policies/autoscale",),
        "the place of workers is decided from their measurements, without orders or caches",
    ),
    "policies/scripttest": ((), "scripttest reads scripts for tests, and knows no policy"),
    "policies/autocache": (
        ("policies/autoscale", "policies/scripttest"),
        "a cache is worth what it saves in the currency of the policies for workers, and it knows none of them",
    ),
    "policies/sim/caching": (
        ("policies/autoscale", "policies/autocache", "policies/sim"),
        "the simulation of caches runs policies only, and shares the statistics of the simulation of workers",
    ),
    "policies/sim": (
        ("policies/autoscale", "policies/autoplacement"),
        "the simulation of workers runs policies only, and no policy knows that it is simulated",
    ),
    "service/graph/nodedef": (("proto",), "nodedef reads single nodes, and every package that reads graphs imports it"),
    "service/graph/ops": (("proto",), "ops describes TensorFlow's ops and knows no datasets"),
    "service/graph/analysis": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops"),
        "analysis describes what steps do, and the packages that import it decide",
    ),
    "service/graph/dataflow": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops"),
        "dataflow analyses values in functions and needs no plan or order",
    ),
    "service/graph/cacheable": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops", "service/graph/analysis"),
        "whether a step may be cached follows from the graph and the place of the cut, and whether it pays is decided elsewhere",
    ),
    "service/graph/split": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops", "service/graph/analysis", "service/graph/cacheable"),
        "a plan depends only on the graph and the options, not on the graphs of its streams or on an order",
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
        "rewrite writes graphs by a plan, and does not plan or reorder",
    ),
    "service/graph/pooled": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops"),
        "a pooled graph follows from the written graph of one stream, without its plan or dataset",
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
        "order moves steps of the registered graph and knows no streams",
    ),
    "service/graph/extents": (
        ("proto", GRAPH, "service/graph/nodedef", "service/graph/ops", "service/graph/analysis"),
        "extents reads files in the trainer, before there is a plan",
    ),
    "service/graph/graphtest": (("proto", "service/graph"), "graphtest plans and writes streams for tests"),
    "service/graph": (
        ("proto", "service/graph/nodedef", "service/graph/ops"),
        "the graph code runs in trainers, dispatchers and workers, so it depends only on messages",
    ),
    "service/store": ((), "the store keeps bytes, and only the dispatcher knows their meaning"),
    "service/prices": (("policies/autoscale",), "prices are numbers from a table, and policies decide what follows from them"),
    "service/tenants": (
        ("service/dispatcher/core/schedule", "service/dispatcher/validate"),
        "the table gives weights and quotas, and the scheduler decides what follows from them",
    ),
    "service/provision": (("proto",), "a provider gets numbers and addresses, and knows no jobs, sessions or decisions"),
    "service/cache": (
        ("service/internal",),
        "the cache keeps segments, and only worker and dispatcher know their meaning",
    ),
    "service/learned": (
        ("proto", "service/internal"),
        "files keep messages of any dispatcher, and only the dispatcher decides what follows from them",
    ),
    "service/internal": ((), "code that all services share must not depend on one of them"),
    "service/dispatcher/core/jobmetrics": (("proto",), "sums of metrics depend only on messages"),
    "service/dispatcher/core/measure": (("proto",), "measurements depend only on reports, and others decide what follows"),
    "service/dispatcher/core/fleet": (("proto",), "a fleet is numbers and addresses, and its owner knows jobs, sessions and time"),
    "service/dispatcher/core/crashguard": (("proto",), "the crash guard decides only from stored messages"),
    "service/dispatcher/core/journaltest": (("proto",), "journaltest reads records for tests and knows nothing of their meaning"),
    "service/dispatcher/core/durable": (
        ("proto", "service/dispatcher/core/crashguard", "service/dispatcher/core/jobmetrics"),
        "the durable state follows only from records, because a replay has no configuration, sessions or graphs",
    ),
    "service/dispatcher/core/schedule": (
        ("proto", "service/dispatcher/core/durable"),
        "the schedule assigns workers from stored jobs and plain values, without sessions or records",
    ),
    "service/dispatcher/core/placement": (
        (
            "proto",
            "service/dispatcher/core/durable",
            "service/dispatcher/core/fleet",
            "service/dispatcher/core/measure",
            "service/dispatcher/core/schedule",
        ),
        "a placement sees the core only as its Host, and knows no sessions, prices or caches",
    ),
    "service/dispatcher/core/rollout": (
        ("proto", "service/dispatcher/core/durable", "service/dispatcher/core/jobmetrics"),
        "a rollout sees the core only as its Host, and knows no workers, sessions or graphs",
    ),
    "service/dispatcher/ordering": (
        ("policies", "proto", "service/graph"),
        "a proposal is a pure function of the graph and metrics",
    ),
    "service/dispatcher/placing": (
        ("policies", "proto", "service/dispatcher/core/measure"),
        "a placement is a pure function of measurements and earlier decisions",
    ),
    "service/dispatcher/caching": (
        ("policies", "proto", "service/dispatcher/core/measure", "service/dispatcher/placing"),
        "a decision on a cache is a pure function of measurements, and has the goal that the job's placement has",
    ),
    "service/dispatcher/validate": (("proto",), "a check of a request's form depends only on the request"),
    "service/dispatcher/metrics": (
        ("proto", "service/store"),
        "metrics read the dispatcher only through their Source, without the core or gRPC",
    ),
    "service/dispatcher/core": (
        ("policies", "proto", "service/graph"),
        "the core decides, and only the dispatcher uses clock, network and disk",
    ),
    "service/dispatcher": (
        ("policies", "proto", "service/graph", "service/store", "service/learned", "service/provision", "service/internal"),
        "the dispatcher is a static program in pure Go, without the workers' code or TensorFlow",
    ),
    "service/worker/identity": ((), "the identity of a worker depends on nothing"),
    "service/worker/payload": (("proto", "native/tf"), "payloads are tensors and bytes, and know no streams or readers"),
    "service/worker/window": (
        ("proto", "service/worker/payload"),
        "a window keeps ready elements, and knows neither their producer nor their transport",
    ),
    "service/worker/objects": ((), "objects asks stores for versions, and knows nothing of datasets"),
    "service/worker/dataset": (
        ("proto", "service/graph", "native/tf", "service/worker/objects"),
        "runs and trials both use datasets, so the package knows neither",
    ),
    "service/worker/profile": (
        ("proto", "service/graph", "native/tf", "service/worker/dataset"),
        "a profile reads iterators, and knows a run only by its interface",
    ),
    "service/worker/checkpoint": (
        ("proto", "service/internal"),
        "checkpoints are files, and the run decides what it saves and when",
    ),
    "service/worker/cachefill": (
        (
            "proto",
            "service/cache",
            "service/graph",
            "service/internal",
            "native/buffer",
            "native/tf",
            "service/worker/dataset",
            "service/worker/payload",
        ),
        "a cached step gets its upstream graph as a function, and knows no runs",
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
        "a trial runs in parallel with streams and shares no state with them",
    ),
    "service/worker/serve": (
        ("proto", "service/worker/identity", "service/worker/payload", "service/worker/window"),
        "the data plane sends ready elements from windows, and knows neither runs nor TensorFlow",
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
        "a run fills windows, and knows neither connections nor the session",
    ),
    "service/worker": (
        ("proto", "service/graph", "service/internal", "native/tf"),
        "a worker runs streams, and knows the dispatcher only by its messages",
    ),
    "service/cmd": (
        ("proto", "policies", "service", "native"),
        "commands connect all parts, and no package imports a command",
    ),
    "native/client/pace": (("proto",), "a pace follows from the times at which elements were taken, and knows no epochs"),
    "native/client/wait": ((), "the code that waits does not know what it waits for"),
    "native/client/element": (
        ("proto", "native/buffer"),
        "the memory of elements knows frames, but not their connection or their reader",
    ),
    "native/client/transport": (
        ("proto", "native/buffer", "native/client/element", "native/client/wait"),
        "connections pass entries to a Receiver, and the epoch decides what it accepts",
    ),
    "native/client/control": (
        ("proto", "native/client/wait"),
        "the link to the dispatcher makes calls for jobs and epochs, and does not use them",
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
        "positions sum what epochs delivered, and jobs save and load them",
    ),
    "native/client": (("proto", "native/buffer"), "the client is pure Go, and only native/tf and native/op use TensorFlow"),
    "native/buffer": ((), "memory is bytes and references, and knows no elements, frames or TensorFlow"),
    "native/tf": (("proto",), "the executor runs any serialised graph, and knows no streams, workers or trainers"),
    "native/op": (
        ("proto", "native/buffer", "native/client=", "native/client/element"),
        "the op hands elements from an iteration to TensorFlow, and knows no epochs or connections",
    ),
    "bindings": (
        ("native", "proto", "service/graph"),
        "bindings pass calls between Python and native or the graph check, and decide nothing",
    ),
    "tests": (("proto", "service", "native", "policies/autoscale"), "tests decide nothing that a policy decides, and give the dispatcher prices"),
    "benchmarks": (("proto", "policies", "service"), "benchmarks in Go measure services; those in Python measure trainers"),
}
# Layer → layers that only its tests may import as well.
IN_TESTS = {"native/tf": ("service/graph",), "service/dispatcher": ("service/prices",)}
# Packages that only tests import.
ONLY_FOR_TESTS = ("service/graph/graphtest", "policies/scripttest")


def layer_of(path: str) -> str | None:
    """The layer of a package."""
    return max((layer for layer in IMPORT_RULES if inside(path, layer)), key=len, default=None)


def inside(path: str, layer: str) -> bool:
    """Whether a package is in a layer."""
    if layer.endswith("="):
        return path == layer[:-1]
    return path == layer or path.startswith(layer + "/")


def broken_rules(path: str, imports: list[str]) -> list[str]:
    """A sentence for every import that breaks a rule."""
    layer = layer_of(path)
    if layer is None:
        return [f"{path} is in none of the layers {', '.join(sorted(IMPORT_RULES))}"]
    allowed, why = IMPORT_RULES[layer]
    sentences = []
    for imported in imports:
        if inside(imported, "service/cmd") and not inside(path, "service/cmd"):
            sentences.append(f"{path} imports {imported}, but no package may import a command")
        elif not any(inside(imported, target) for target in (GRAPH if layer == "service/graph" else layer, *allowed)):
            may = ", ".join(allowed) or "no package of this module"
            sentences.append(f"{path} imports {imported}, but {layer} may import {may}: {why}")
    return sentences


def unused_arrows(imports: dict[str, list[str]]) -> list[str]:
    """A sentence for every import that a rule allows and that no package of the layer has."""
    return [
        f"{layer} may import {target}, and does not: remove it from the rule"
        for layer, (allowed, _) in IMPORT_RULES.items()
        for target in allowed
        if not any(inside(imported, target) for path, all_of in imports.items() if layer_of(path) == layer for imported in all_of)
    ]


def test_the_rules_allow_only_imports_that_exist():
    imports = {package.path: package.ours for package in repository.go_packages()}
    assert not unused_arrows(imports), "\n".join(unused_arrows(imports))
    imports["service/graph/pooled"] = ["proto/tensorflow"]
    assert any(line.startswith("service/graph/pooled may import service/graph=") for line in unused_arrows(imports))


def test_go_packages_follow_the_import_rules():
    packages = repository.go_packages()
    imports = {package.path: package.ours for package in packages}
    assert "native/tf" in imports["service/worker"], "could not read the imports of the packages"
    broken = []
    for package in packages:
        outside = {name for name in package.ours_in_tests if any(inside(name, layer) for layer in IN_TESTS.get(package.path, ()))}
        if inside(package.path, "service/graph"):
            # External tests in this layer plan and write whole streams with graphtest.
            outside |= {name for name in package.ours_in_external_tests if inside(name, "service/graph")}
        broken += broken_rules(package.path, [name for name in package.ours if name not in outside])
    for helpers in ONLY_FOR_TESTS:
        users = [p.path for p in packages if helpers in p.ours and helpers not in p.ours_in_external_tests]
        broken += [f"{path} imports {helpers}, which is only for tests" for path in users]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("path", "imported"),
    [
        ("policies/autoorder", "proto/pecan/v1"),
        ("policies/autoscale", "policies/autoplacement"),
        ("policies/autoplacement", "policies/sim"),
        ("policies/autocache", "policies/autoplacement"),
        ("policies/autocache", "policies/sim/caching"),
        ("policies/scripttest", "policies/autoscale"),
        ("policies/sim", "policies/autoorder"),
        ("policies/sim", "policies/autocache"),
        ("service/graph", "native/tf"),
        ("service/graph", "service/graph/analysis"),
        ("service/graph/ops", "service/graph"),
        ("service/graph/split", "service/graph/rewrite"),
        ("service/graph/split", "service/graph/order"),
        ("service/graph/cacheable", "service/graph/split"),
        ("service/graph/rewrite", "service/graph/dataflow"),
        ("service/graph/order", "service/graph/split"),
        ("service/store", "proto/pecan/v1"),
        ("service/prices", "policies/autoplacement"),
        ("service/provision", "service/dispatcher"),
        ("service/learned", "service/dispatcher"),
        ("service/dispatcher", "service/worker"),
        ("service/dispatcher/core", "service/store"),
        ("service/dispatcher/core/durable", "service/dispatcher/core"),
        ("service/dispatcher/core/schedule", "service/dispatcher/core/rollout"),
        ("service/dispatcher/core/rollout", "service/graph"),
        ("service/dispatcher/core/placement", "service/dispatcher/core"),
        ("service/dispatcher/core/placement", "service/dispatcher/core/rollout"),
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
        ("native/buffer", "proto/frame"),
        ("native/tf", "native/buffer"),
        ("native/tf", "service/graph"),
        ("native/op", "native/client/epoch"),
        ("native/op", "native/tf"),
        ("bindings", "service/dispatcher"),
        ("proto/frame", "service/graph"),
        ("elsewhere", "proto/frame"),
    ],
)
def test_a_broken_import_rule_is_detected(path, imported):
    assert broken_rules(path, [imported])
