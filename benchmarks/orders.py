"""What AutoOrder gains and costs: CPU per element in each order of pipelines' steps, planning, trials, and the demo."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import meter
import pecan
import pipelines
import tensorflow as tf
from cluster import Cluster
from row import ROOT, Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most, percent_of
from tensorflow.python.data.ops import dataset_ops
from trial import service

HEAD = """# What AutoOrder gains

Written by `make bench-orders`, from `orders.json` beside it; `make bench ROW=<name>` measures one row
again. Contestants run in turns. Values are medians, with the smallest and largest sample in brackets.

*Pipelines* (`benchmarks/pipelines.py`; photographs are the demo's): two workers run each pipeline with
`order="auto"` until a worker has tried the planned order. Then `pecan.explain()` gives the orders of other
tolerances and of the published policy. Their cost is measured, not predicted. The benchmark runs the streams'
graphs as workers instantiate them for a trial, without elements that are computed ahead, and reads its own CPU.
In a turn, every order runs the same elements of the same stream. An element is one of the dataset's: a batch.

*Demo*: the demo's input pipeline with its steps in a bad order, by hand in the best known order, and in the bad
order with `order="auto"` after adoption. Each runs the first batches of a pass, with two workers and a trainer
that only reads. A pass has the photographs three times, so that a trial of 2 % of a pass fits into one.
"""

WRITTEN = "as written"
AGAINST = (WRITTEN, "CPU ms/element")
# What is asked for: the order, and how far elements may differ.
ASKED = {
    "approximate": {"order": "auto", "order_tolerance": "approximate"},
    "exact": {"order": "auto", "order_tolerance": "exact"},
    "any": {"order": "auto", "order_tolerance": "any"},
    "paper": {"order": "paper"},
}
# What the paper's policy moves, and what it then stands behind (table 1 there).
PUBLISHED = {"resnet50": ("resize", "crop"), "simclr": ("grey", "crop")}
# States in which nothing is decided yet.
UNDER_WAY = ("measuring", "proposed")
PATIENCE_S, PLANNED_S = 60.0, 10.0
# Seconds of CPU of a sample in the order as written.
SAMPLE_S = 1.0


@functools.cache
def _command() -> str:
    """The command that writes streams' graphs, built once."""
    binary = ROOT / "build" / "ordergraph"
    subprocess.run(["go", "build", "-o", str(binary), "./tests/graph/ordergraph"], cwd=ROOT, check=True, timeout=600)
    return str(binary)


def _photographs(settings: Settings) -> list[str]:
    sys.path.insert(0, str(ROOT / "examples" / "photographs"))
    import build

    return build.records("medium", settings.demo_data).training


def _until(
    cluster: Cluster, distributed: tf.data.Dataset, done: Callable[[pecan.OrderExplanation], bool], within_s: float
) -> pecan.OrderExplanation:
    """Reads a dataset, again and again, until its order is explained as is wanted, or for so long."""
    end, look = time.monotonic() + within_s, 0.0
    while True:
        for _ in distributed:
            if time.monotonic() < look:
                continue
            found = pecan.explain(distributed)
            if done(found) or time.monotonic() > end:
                return found
            look = time.monotonic() + 0.5


class Streams:
    """The streams of a dataset in one order of its steps."""

    def __init__(self, directory: pathlib.Path, dataset: tf.data.Dataset, order: tuple[int, ...]) -> None:
        source, out = directory / "dataset.pb", directory / ("order-" + "-".join(map(str, order)))
        source.write_bytes(dataset._as_serialized_graph().numpy())
        said = subprocess.run([_command(), "steps", source], check=True, capture_output=True, timeout=60).stdout
        names = json.loads(said)
        assert len(names) == len(order), "the service knows other steps than this process"
        subprocess.run([_command(), "streams", source, out, *(names[step] for step in order)], check=True, timeout=60)
        self._graphs = sorted(directory.glob(f"{out.name}.s*.pb"), key=lambda path: int(path.suffixes[-2][2:]))
        # The rows that are left at the end of a stream are fewer than a batch.
        self._spec = tf.nest.map_structure(
            lambda of: tf.TensorSpec([None, *of.shape[1:]], of.dtype), dataset.element_spec
        )
        self.turn = 0

    def sample(self, elements: int | None) -> tuple[int, float]:
        """Runs so many elements, or as many as take a sample's CPU: their number, and the CPU in seconds."""
        stream, self.turn = self.turn, self.turn + 1
        count, spent = 0, 0.0
        while spent < SAMPLE_S if elements is None else count < elements:
            graph = self._graphs[stream % len(self._graphs)].read_bytes()
            dataset = dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), self._spec)
            iterator = iter(dataset)
            # The first one traces, and fills what has to be filled.
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
    """One pipeline, in the order in which it is written and in those that are planned."""

    name: str
    explained: dict[str, pecan.OrderExplanation] = dataclasses.field(default_factory=dict)
    # The order of steps of each that was asked for, and what contestants are called by it.
    orders: dict[tuple[int, ...], str] = dataclasses.field(default_factory=dict)

    def prepare(self, stack: contextlib.ExitStack, settings: Settings) -> Contestants:
        """Has the orders planned, and gives a contestant for each."""
        dataset = self._dataset(settings)
        with service(2) as cluster:
            self._explain(cluster, dataset)
        steps = tuple(range(len(next(iter(self.explained.values())).steps)))
        called: dict[tuple[int, ...], list[str]] = {steps: []}
        for asked, found in self.explained.items():
            places = {step.place: step.registered for step in found.planned}
            called.setdefault(tuple(places[place] for place in steps), []).append(asked)
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
            return pipelines.OVER_PHOTOGRAPHS[self.name](_photographs(settings))
        make, count = pipelines.OVER_NUMBERS[self.name]
        return make(count)

    def _explain(self, cluster: Cluster, dataset: tf.data.Dataset) -> None:
        for asked, words in ASKED.items():
            distributed = dataset.apply(pecan.distribute(cluster.target, **words))
            if not self.explained:
                self.explained[asked] = _until(cluster, distributed, lambda e: e.state not in UNDER_WAY, PATIENCE_S)
            else:
                self.explained[asked] = _until(cluster, distributed, lambda e: e.state != "measuring", PLANNED_S)

    def _name_of(self, asked: str) -> str:
        """What the contestant is called that runs the order which was given for that."""
        return next((name for name in self.orders.values() if asked in name.split(", ")), WRITTEN)

    def judge(self, medians: Medians) -> list[Mark]:
        """What is taken where nothing else is said costs no more, and what may differ no more than as published."""
        share = {asked: medians[self._name_of(asked)][percent_of(AGAINST)] for asked in ASKED}
        best = min(share["paper"], 100.0)
        marks = [
            at_most("order of the default tolerance: ≤ 102 % of the CPU as written", share["approximate"], 102, " %"),
            at_most("tolerance any: ≤ 102 % of the published policy", 100 * share["any"] / best, 102, " %"),
        ]
        if self.name in PUBLISHED:
            step, behind = PUBLISHED[self.name]
            places = {each.label: each.place for each in self.explained["paper"].steps}
            claim = f"the published policy moves {step} to right behind {behind}, as published"
            marks.append(at_most(claim, abs(places[step] - places[behind] - 1), 0, " places off"))
        if self.name == "tabular":
            legal = (self.explained[asked] for asked in ("approximate", "exact"))
            moved = sum(each.place != number for found in legal for number, each in enumerate(found.steps))
            marks.append(at_most("nothing moves, since nothing legal helps", moved, 0, " steps"))
        return marks

    def tell(self) -> str:
        """What moved, what did not, and why; and what the trial found."""
        tell = [f"- *{asked}*: {found.state}. {found.why}" for asked, found in self.explained.items()]
        found = self.explained["approximate"]
        trial = found.response.get("trial", {})
        if found.measured_interval:
            low, high = found.measured_interval
            tell.append(
                f"- The trial of *approximate*, with {trial['elements']} elements: {1e3 * trial['original_s']:.3g} ms "
                f"of CPU for one as written, {1e3 * trial['ordered_s']:.3g} ms as planned, {low:.0%} to {high:.0%} "
                f"less; it took {trial['cpu_s']:.3g} s."
            )
        head = ["step", *ASKED, "why (approximate)", "why (exact), where it is another"]
        tell += ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        for number, step in enumerate(found.steps):
            all_of_it = [each.steps[number] for each in self.explained.values()]
            exact = self.explained["exact"].steps[number].reason
            reasons = [step.reason, "" if exact == step.reason else exact]
            cells = [f"{number}: {step.label or step.name}", *(str(each.place) for each in all_of_it), *reasons]
            tell.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join([*tell, ""])


PLANNER = "./service/dispatcher/ordering"


def _planning(_: contextlib.ExitStack, __: Settings) -> Contestants:
    def sample() -> Sample:
        words = ["go", "test", "-run", "^$", "-bench", "^BenchmarkPropose$", "-benchtime", "5x", PLANNER]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        found = re.search(r"BenchmarkPropose\S*\s+\d+\s+([\d.]+) ns/op", done.stdout)
        if found is None:
            raise RuntimeError(f"{' '.join(words)} gave no figure:\n{done.stdout}{done.stderr}")
        return {"ms": float(found[1]) / 1e6}

    return {"200 nodes": sample}


def _judge_planning(medians: Medians) -> list[Mark]:
    return [at_most("a graph of 200 nodes is planned in ≤ 100 ms", medians["200 nodes"]["ms"], 100, " ms")]


BADLY, BY_HAND, AUTO = "written badly", "best by hand", 'written badly, order="auto"'
BY_HAND_RATE = (BY_HAND, "images/s")
DEMO_TIMES, DEMO_BATCHES, MOST_PASSES = 3, 200, 10


def _demo(settings: Settings, *, best: bool) -> tf.data.Dataset:
    """The demo's input pipeline, with its steps in a bad order or in the best one that is known."""
    files = DEMO_TIMES * _photographs(settings)
    import pipeline as demo

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
    """The demo's pipeline after adoption, beside the best that a person writes."""

    explained: pecan.OrderExplanation | None = None
    # With the last job of a dataset the dispatcher forgets what it decided.
    first_job: tf.data.Dataset | None = None
    passes: int = 0
    first_cpu_s: float = 0.0

    def prepare(self, stack: contextlib.ExitStack, settings: Settings) -> Contestants:
        """Has the bad order mended by a first job, and gives a contestant for each way of writing it."""
        cluster = stack.enter_context(service(2))
        badly, best = _demo(settings, best=False), _demo(settings, best=True)
        self._adopt(cluster, badly)
        return {
            BADLY: lambda: self._pass(cluster, badly, "off"),
            BY_HAND: lambda: self._pass(cluster, best, "off"),
            AUTO: lambda: self._pass(cluster, badly, "auto"),
        }

    def _adopt(self, cluster: Cluster, dataset: tf.data.Dataset) -> None:
        """Has one job run until its dataset's order is decided; another one begins with that."""
        self.first_job = distributed = dataset.apply(pecan.distribute(cluster.target, order="auto"))
        while self.explained is None or self.explained.state in (*UNDER_WAY, "piloted"):
            assert self.passes < MOST_PASSES, f"nothing was decided in {self.passes} passes: {self.explained}"
            used = _service_cpu(cluster)
            for _ in distributed:
                pass
            self.passes += 1
            self.first_cpu_s = self.first_cpu_s or _service_cpu(cluster) - used
            self.explained = pecan.explain(distributed)

    def _pass(self, cluster: Cluster, dataset: tf.data.Dataset, order: str) -> Sample:
        """The first batches of a pass of a job of its own, without the very first."""
        distributed = dataset.apply(pecan.distribute(cluster.target, order=order))
        iterator = iter(distributed)
        next(iterator)
        if order == "auto" and self.explained.state == "adopted":
            found = pecan.explain(distributed)
            (job,) = [job for job in cluster.status()["jobs"] if job["job_id"] == found.job_id]
            # Of an epoch that is over that is no longer known.
            ordered = [epoch.get("ordered", False) for epoch in job["epochs"] if int(epoch.get("epoch", 0)) == 0]
            assert all(ordered), f"the order is adopted, and not used: {job}"
        used, began, images = _service_cpu(cluster), time.perf_counter(), 0
        for _, labels in itertools.islice(iterator, DEMO_BATCHES):
            images += int(labels.shape[0])
        spent, cpu = time.perf_counter() - began, _service_cpu(cluster) - used
        return {"images/s": images / spent, "CPU ms/image": 1e3 * cpu / images}

    def judge(self, medians: Medians) -> list[Mark]:
        """As good as by hand, and found out for what may be spent."""
        trial = self.explained.response.get("trial", {})
        share_of = percent_of(BY_HAND_RATE)
        share = 100 * float(trial.get("cpu_s", 0.0)) / self.first_cpu_s
        return [
            at_least(f"{AUTO}, after adoption: ≥ 90 % of the best by hand", medians[AUTO][share_of], 90, " %"),
            at_most("the trial: ≤ 2 % of the first epoch's CPU", share, 2, " %"),
        ]

    def tell(self) -> str:
        """What was decided, and when."""
        trial = self.explained.response.get("trial", {})
        steps = ", ".join(step.label or step.name for step in self.explained.planned)
        return (
            f"After {self.passes} passes: {self.explained.state}. {self.explained.why} Steps as planned: {steps}. The "
            f"first pass took {self.first_cpu_s:.3g} s of CPU of dispatcher and workers, the trial of "
            f"{trial.get('elements', 0)} elements {trial.get('cpu_s', 0.0):.3g} s of that or beside it.\n"
        )


def _service_cpu(cluster: Cluster) -> float:
    return meter.cpu_seconds(each.pid for each in (cluster.dispatcher, *cluster.workers))


def _row(name: str) -> Row:
    of = Pipeline(name)
    return Row(f"{name}, in the order of each policy", of.prepare, of.judge, against=AGAINST, about=of.tell)


def _demo_row() -> Row:
    demo = Demo()
    title = "the demo's steps in a bad order"
    return Row(title, demo.prepare, demo.judge, repetitions=3, against=BY_HAND_RATE, about=demo.tell)


ROWS: dict[str, Row] = {
    "planning": Row("planning the order of a graph of 200 nodes", _planning, _judge_planning),
    **{f"order-{name}": _row(name) for name in (*pipelines.OVER_PHOTOGRAPHS, *pipelines.OVER_NUMBERS)},
    "order-demo": _demo_row(),
}
