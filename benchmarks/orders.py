"""What AutoOrder saves and costs: CPU per element in each order of steps, planning, trials, and the demo."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable

import demo_records
import meter
import pecan
import pipelines
import tensorflow as tf
from cluster import Cluster
from row import ROOT, Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most, percent_of
from tensorflow.python.data.ops import dataset_ops
from trial import service

HEAD = """# What AutoOrder gains

`make bench-orders` writes this page from `orders.json`, and `make bench ROW=<name>` measures one row again.
One run samples all contestants in turns. Figures are medians, with the smallest and largest sample in brackets.

*Pipelines* (`benchmarks/pipelines.py`, with the demo's photographs): two workers run each pipeline with `order="auto"`
until a worker has tried the planned order. Then `pecan.explain()` returns the orders of the other tolerances and of
the published policy. Their costs are measured, not predicted: this process runs the graphs of the streams as workers
instantiate them for a trial, without prefetching, and measures its own CPU. In a turn every order runs the same
elements of the same stream. An element of these datasets is a batch.

*Demo*: the demo's input pipeline with its steps in a bad order, in the best known order by hand, and in the bad order
with `order="auto"` after adoption. Each sample is the first batches of a pass; two workers run it, and the trainer only
reads. A pass contains the photographs three times, so that its first part pays for a trial: all trials cost at most 2 %
of the work of a job.
"""

WRITTEN = "as written"
REFERENCE = (WRITTEN, "CPU ms/element")
# Name of each policy, and its options of distribute().
POLICIES = {
    "approximate": {"order": "auto", "order_tolerance": "approximate"},
    "exact": {"order": "auto", "order_tolerance": "exact"},
    "any": {"order": "auto", "order_tolerance": "any"},
    "paper": {"order": "paper"},
}
# The step that the published policy moves, and the step that then precedes it (table 1 of the paper).
PUBLISHED = {"resnet50": ("resize", "crop"), "simclr": ("grey", "crop")}
# States before a decision.
UNDECIDED = ("measuring", "proposed")
# Seconds to wait for the decision on the first policy, and for the plan of each other one.
DECISION_S, PLAN_S = 60.0, 10.0
# Seconds of CPU of one sample in the order as written.
SAMPLE_S = 1.0


@functools.cache
def _command() -> str:
    """Builds the command that writes the graphs of streams, once. Returns its path."""
    binary = ROOT / "build" / "ordergraph"
    subprocess.run(["go", "build", "-o", str(binary), "./tests/graph/ordergraph"], cwd=ROOT, check=True, timeout=600)
    return str(binary)


def _until(
    distributed: tf.data.Dataset, done: Callable[[pecan.Explanation], bool], within_s: float
) -> pecan.Explanation:
    """Reads a dataset repeatedly until its explanation fulfils a condition, or the time is over. Returns it."""
    end, next_check = time.monotonic() + within_s, 0.0
    while True:
        for _ in distributed:
            if time.monotonic() < next_check:
                continue
            found = pecan.explain(distributed)
            if done(found) or time.monotonic() > end:
                return found
            next_check = time.monotonic() + 0.5


class Streams:
    """The graphs of a dataset's streams for one order of its steps."""

    def __init__(self, directory: pathlib.Path, dataset: tf.data.Dataset, order: tuple[int, ...]) -> None:
        source, out = directory / "dataset.pb", directory / ("order-" + "-".join(map(str, order)))
        source.write_bytes(dataset._as_serialized_graph().numpy())
        out_text = subprocess.run([_command(), "steps", source], check=True, capture_output=True, timeout=60).stdout
        names = json.loads(out_text)
        assert len(names) == len(order), "the service and this process have different steps"
        subprocess.run([_command(), "streams", source, out, *(names[step] for step in order)], check=True, timeout=60)
        self._graphs = sorted(directory.glob(f"{out.name}.s*.pb"), key=lambda path: int(path.suffixes[-2][2:]))
        # The last batch of a stream may be smaller.
        self._spec = tf.nest.map_structure(
            lambda of: tf.TensorSpec([None, *of.shape[1:]], of.dtype), dataset.element_spec
        )
        self.turn = 0

    def sample(self, elements: int | None) -> tuple[int, float]:
        """Runs `elements` elements, or SAMPLE_S seconds if None. Returns their number and the seconds of CPU."""
        stream, self.turn = self.turn, self.turn + 1
        count, spent = 0, 0.0
        while spent < SAMPLE_S if elements is None else count < elements:
            graph = self._graphs[stream % len(self._graphs)].read_bytes()
            dataset = dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), self._spec)
            iterator = iter(dataset)
            # The first element fills buffers and traces functions, so it is not measured.
            next(iterator, None)
            began = meter.own_cpu_seconds()
            while spent + meter.own_cpu_seconds() - began < SAMPLE_S if elements is None else count < elements:
                if next(iterator, None) is None:
                    break
                count += 1
            spent += meter.own_cpu_seconds() - began
            stream += 1
        return count, spent


@dataclasses.dataclass
class Pipeline:
    """One pipeline in its written order and in the planned orders."""

    name: str
    explained: dict[str, pecan.Explanation] = dataclasses.field(default_factory=dict)
    # The distinct orders, as positions of written steps, and the name of the contestant for each.
    orders: dict[tuple[int, ...], str] = dataclasses.field(default_factory=dict)

    def prepare(self, stack: contextlib.ExitStack, settings: Settings) -> Contestants:
        """Lets the service plan the orders. Returns a contestant for each distinct order."""
        dataset = self._dataset(settings)
        with service(2) as cluster:
            self._explain(cluster, dataset)
        steps = tuple(range(len(next(iter(self.explained.values())).steps)))
        called: dict[tuple[int, ...], list[str]] = {steps: []}
        for policy, found in self.explained.items():
            called.setdefault(tuple(step.registered_position for step in found.planned), []).append(policy)
        self.orders = {order: ", ".join(names) for order, names in called.items()}
        self.orders[steps] = WRITTEN
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
        streams = {name: Streams(directory, dataset, order) for order, name in self.orders.items()}
        elements, _ = streams[WRITTEN].sample(None)
        streams[WRITTEN].turn = 0

        def sample(of: Streams) -> Sample:
            count, spent = of.sample(elements)
            return {"CPU ms/element": 1e3 * spent / count}

        return {name: functools.partial(sample, of) for name, of in streams.items()}

    def _dataset(self, settings: Settings) -> tf.data.Dataset:
        if self.name in pipelines.OVER_PHOTOGRAPHS:
            return pipelines.OVER_PHOTOGRAPHS[self.name](demo_records.files(settings))
        make, count = pipelines.OVER_NUMBERS[self.name]
        return make(count)

    def _explain(self, cluster: Cluster, dataset: tf.data.Dataset) -> None:
        for policy, words in POLICIES.items():
            distributed = dataset.apply(pecan.distribute(cluster.target, **words))
            if not self.explained:
                self.explained[policy] = _until(distributed, lambda e: e.state not in UNDECIDED, DECISION_S)
            else:
                self.explained[policy] = _until(distributed, lambda e: e.state != "measuring", PLAN_S)

    def _contestant_of(self, policy: str) -> str:
        """Returns the name of the contestant that runs the order of a policy."""
        return next((name for name in self.orders.values() if policy in name.split(", ")), WRITTEN)

    def judge(self, medians: Medians) -> list[Mark]:
        """Compares the default with the written order, and tolerance "any" with the published policy."""
        share = {policy: medians[self._contestant_of(policy)][percent_of(REFERENCE)] for policy in POLICIES}
        best = min(share["paper"], 100.0)
        marks = [
            at_most("order of the default tolerance: ≤ 102 % of the CPU as written", share["approximate"], 102, " %"),
            at_most("tolerance any: ≤ 102 % of the published policy", 100 * share["any"] / best, 102, " %"),
        ]
        if self.name in PUBLISHED:
            step, predecessor = PUBLISHED[self.name]
            places = {each.label: each.planned_position for each in self.explained["paper"].steps}
            claim = f"the published policy moves {step} directly after {predecessor}, as published"
            marks.append(at_most(claim, abs(places[step] - places[predecessor] - 1), 0, " positions off"))
        if self.name == "tabular":
            bounded = (self.explained[policy] for policy in ("approximate", "exact"))
            moved = sum(each.planned_position != number for found in bounded for number, each in enumerate(found.steps))
            marks.append(at_most("no step moves, because no valid order is cheaper", moved, 0, " steps"))
        return marks

    def about(self) -> str:
        """Returns the planned position of each step with its reason, and the result of the trial."""
        lines = [f"- *{policy}*: {found.state}. {found.why}" for policy, found in self.explained.items()]
        found = self.explained["approximate"]
        trial = found.response.get("trial", {})
        if found.measured_interval:
            low, high = found.measured_interval
            lines.append(
                f"- The trial of *approximate*, with {trial['elements']} elements: {1e3 * trial['original_s']:.3g} ms "
                f"of CPU per element as written, {1e3 * trial['ordered_s']:.3g} ms as planned, {low:.0%} to {high:.0%} "
                f"less. The trial took {trial['cpu_s']:.3g} s."
            )
        head = ["step", *POLICIES, "why (approximate)", "why (exact), if different"]
        lines += ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        for number, step in enumerate(found.steps):
            by_policy = [each.steps[number] for each in self.explained.values()]
            exact = self.explained["exact"].steps[number].reason
            reasons = [step.reason, "" if exact == step.reason else exact]
            positions = [str(each.planned_position) for each in by_policy]
            cells = [f"{number}: {step.label or step.name}", *positions, *reasons]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join([*lines, ""])


PLANNER = "./service/dispatcher/ordering"


def _planning(_: contextlib.ExitStack, __: Settings) -> Contestants:
    return {"200 nodes": lambda: {"ms": meter.go_benchmark(PLANNER, "BenchmarkPropose", "5x") / 1e6}}


def _judge_planning(medians: Medians) -> list[Mark]:
    return [at_most("the plan for a graph of 200 nodes takes ≤ 100 ms", medians["200 nodes"]["ms"], 100, " ms")]


BADLY, BY_HAND, AUTO = "written badly", "best by hand", 'written badly, order="auto"'
BY_HAND_RATE = (BY_HAND, "images/s")
DEMO_TIMES, DEMO_BATCHES, MOST_PASSES = 3, 200, 10


def _demo(settings: Settings, *, best: bool) -> tf.data.Dataset:
    """Returns the demo's input pipeline with its steps in a bad order, or in the best known order."""
    files, demo = DEMO_TIMES * demo_records.files(settings), demo_records.pipeline()

    def to_float(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(image, tf.float32), label

    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed=7)
    dataset = dataset.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.shuffle(512, seed=8)
    order = (
        (demo.random_crop, to_float, demo.resize, demo.random_flip, demo.normalise)
        if best
        else (to_float, demo.normalise, demo.random_flip, demo.random_crop, demo.resize)
    )
    for step in (demo.parse, demo.decode, *order, demo.cast):
        dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(demo.BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


@dataclasses.dataclass
class Demo:
    """The demo's pipeline after adoption, compared with the best order by hand."""

    explained: pecan.Explanation | None = None
    # Kept alive: the dispatcher removes its decision together with the last job of the dataset.
    first_job: tf.data.Dataset | None = None
    passes: int = 0
    first_cpu_s: float = 0.0

    def prepare(self, stack: contextlib.ExitStack, settings: Settings) -> Contestants:
        """Runs a first job until its order is decided. Returns the three contestants."""
        cluster = stack.enter_context(service(2))
        badly, best = _demo(settings, best=False), _demo(settings, best=True)
        self._adopt(cluster, badly)
        return {
            BADLY: lambda: self._pass(cluster, badly, "off"),
            BY_HAND: lambda: self._pass(cluster, best, "off"),
            AUTO: lambda: self._pass(cluster, badly, "auto"),
        }

    def _adopt(self, cluster: Cluster, dataset: tf.data.Dataset) -> None:
        """Runs one job until the order of its dataset is decided. Later jobs start with that order."""
        self.first_job = distributed = dataset.apply(pecan.distribute(cluster.target, order="auto"))
        while self.explained is None or self.explained.state in (*UNDECIDED, "piloted"):
            assert self.passes < MOST_PASSES, f"no decision in {self.passes} passes: {self.explained}"
            used = _service_cpu(cluster)
            for _ in distributed:
                pass
            self.passes += 1
            self.first_cpu_s = self.first_cpu_s or _service_cpu(cluster) - used
            self.explained = pecan.explain(distributed)

    def _pass(self, cluster: Cluster, dataset: tf.data.Dataset, order: str) -> Sample:
        """Measures the first batches of a pass of a new job, except the first one."""
        distributed = dataset.apply(pecan.distribute(cluster.target, order=order))
        iterator = iter(distributed)
        next(iterator)
        if order == "auto" and self.explained.state == "adopted":
            found = pecan.explain(distributed)
            (job,) = [job for job in cluster.status()["jobs"] if job["job_id"] == found.job_id]
            # The dispatcher no longer reports the order of an epoch that has ended.
            ordered = [epoch.get("ordered", False) for epoch in job["epochs"] if int(epoch.get("epoch", 0)) == 0]
            assert all(ordered), f"the order is adopted but not used: {job}"
        used, began, images = _service_cpu(cluster), time.perf_counter(), 0
        for _, labels in itertools.islice(iterator, DEMO_BATCHES):
            images += int(labels.shape[0])
        spent, cpu = time.perf_counter() - began, _service_cpu(cluster) - used
        return {"images/s": images / spent, "CPU ms/image": 1e3 * cpu / images}

    def judge(self, medians: Medians) -> list[Mark]:
        """Compares the adopted order with the best one, and the cost of the trial with its limit."""
        trial = self.explained.response.get("trial", {})
        share_of = percent_of(BY_HAND_RATE)
        share = 100 * float(trial.get("cpu_s", 0.0)) / self.first_cpu_s
        return [
            at_least(f"{AUTO}, after adoption: ≥ 90 % of the best by hand", medians[AUTO][share_of], 90, " %"),
            at_most("the trial: ≤ 2 % of the first epoch's CPU", share, 2, " %"),
        ]

    def about(self) -> str:
        """Returns the decision and its cost."""
        trial = self.explained.response.get("trial", {})
        steps = ", ".join(step.label or step.name for step in self.explained.planned)
        return (
            f"After {self.passes} passes: {self.explained.state}. {self.explained.why} Steps as planned: {steps}. The "
            f"first pass took {self.first_cpu_s:.3g} s of CPU of dispatcher and workers, the trial of "
            f"{trial.get('elements', 0)} elements {trial.get('cpu_s', 0.0):.3g} s.\n"
        )


def _service_cpu(cluster: Cluster) -> float:
    return meter.cpu_seconds(each.pid for each in (cluster.dispatcher, *cluster.workers))


def _row(name: str) -> Row:
    of = Pipeline(name)
    return Row(f"{name}, in the order of each policy", of.prepare, of.judge, references=(REFERENCE,), about=of.about)


def _demo_row() -> Row:
    demo = Demo()
    title = "the demo's steps in a bad order"
    return Row(title, demo.prepare, demo.judge, repetitions=3, references=(BY_HAND_RATE,), about=demo.about)


ROWS: dict[str, Row] = {
    "planning": Row("planning the order of a graph of 200 nodes", _planning, _judge_planning),
    **{f"order-{name}": _row(name) for name in (*pipelines.OVER_PHOTOGRAPHS, *pipelines.OVER_NUMBERS)},
    "order-demo": _demo_row(),
}
