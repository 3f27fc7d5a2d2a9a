"""Runs the streams that service/graph writes for a dataset in this process, and compares them with a local run.

TensorFlow runs the streams (``DatasetFromGraph``). This module does the worker's part between the graphs of a stream.
It keeps back a partial last batch, and replaces the source op of the closing stream by a dataset of those batches.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.data.ops import dataset_ops

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

Element = tuple[np.ndarray, ...]


def build_command(target: pathlib.Path, name: str = "cutgraph") -> pathlib.Path:
    """Builds one of the commands in this directory, and returns its path."""
    binary = target / name
    subprocess.run(
        ["go", "build", "-trimpath", "-p", "2", "-o", str(binary), f"./tests/graph/{name}"], cwd=REPOSITORY, check=True, timeout=600
    )
    return binary


def is_plain(spec: Any) -> bool:
    """Whether every component is a plain tensor."""
    return all(isinstance(s, tf.TensorSpec) for s in tf.nest.flatten(spec))


def flatten(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Splits composite components into tensors, as a trainer does before it registers a dataset."""
    if is_plain(dataset.element_spec):
        return dataset
    return dataset.map(lambda *parts: tuple(tf.nest.flatten(parts, expand_composites=True)))


def serialize(dataset: tf.data.Dataset) -> bytes:
    """The GraphDef that a trainer registers."""
    return bytes(flatten(dataset)._as_serialized_graph().numpy())


def elements(dataset: tf.data.Dataset) -> Iterable[Element]:
    """Iterates a dataset as flat tuples of arrays."""
    for element in flatten(dataset):
        yield tuple(np.asarray(t.numpy()) for t in tf.nest.flatten(element))


def load(graph: bytes, like: tf.data.Dataset) -> tf.data.Dataset:
    """Creates a dataset from a stream's graph."""
    types = [s.dtype for s in tf.nest.flatten(flatten(like).element_spec)]
    return load_types(graph, types)


def load_types(graph: bytes, types: list[tf.DType]) -> tf.data.Dataset:
    """Creates a dataset from a graph whose component types are known."""
    spec = tuple(tf.TensorSpec(None, t) for t in types)
    return dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)


def with_feed(graph: bytes, batches: list[Element], types: list[tf.DType]) -> bytes:
    """Replaces the worker's source op by a dataset of the given batches."""
    main = graph_pb2.GraphDef.FromString(graph)
    source = next(n for n in main.node if n.name == "pecan_pull")
    shapes = [tf.TensorShape(s) for s in source.attr["output_shapes"].list.shape]
    if batches:
        feed = tf.data.Dataset.from_tensors(batches[0])
        for batch in batches[1:]:
            feed = feed.concatenate(tf.data.Dataset.from_tensors(batch))
    else:
        zeros = [
            tf.zeros([0] + [d or 0 for d in (s.as_list() if s.rank is not None else [0])], t)
            if t != tf.string
            else tf.constant([], tf.string, [0] + [d or 0 for d in (s.as_list() if s.rank is not None else [0])])
            for s, t in zip(shapes, types)
        ]
        feed = tf.data.Dataset.from_tensor_slices(tuple(zeros))
    part = graph_pb2.GraphDef.FromString(bytes(feed._as_serialized_graph().numpy()))
    result = ""
    for node in part.node:
        if node.op == "_Retval":
            result = "feed/" + node.input[0]
            continue
        copy = main.node.add()
        copy.CopyFrom(node)
        copy.name = "feed/" + node.name
        copy.input[:] = ["feed/" + name for name in node.input]
    for node in main.node:
        node.input[:] = [result if name == "pecan_pull" else name for name in node.input]
    kept = [n for n in main.node if not n.name.startswith("pecan_pull") or n.name == "pecan_pull/rows"]
    del main.node[:]
    main.node.extend(kept)
    functions = [f for f in main.library.function if f.signature.name != "pecan_pull_function"]
    del main.library.function[:]
    main.library.function.extend(functions)
    return main.SerializeToString()


@dataclasses.dataclass
class Cut:
    """The output of cutgraph for one dataset."""

    plan: dict[str, Any]
    graphs: dict[tuple[int, int], tuple[bytes, bytes | None]]
    # The graphs of streams of epoch 0 that start at an index, by (index, stream).
    starts: dict[tuple[int, int], tuple[bytes, bytes | None]] = dataclasses.field(default_factory=dict)
    error: dict[str, str] | None = None

    @property
    def streams(self) -> int:
        return int(self.plan["num_streams"])

    @property
    def epochs(self) -> int:
        """Number of epochs that were written."""
        return 1 + max(epoch for epoch, _ in self.graphs)

    @property
    def group(self) -> int:
        return int(self.plan["group"])

    @property
    def strategy(self) -> str:
        return self.plan["batch_strategy"].removeprefix("BATCH_STRATEGY_")

    @property
    def kind(self) -> str:
        return self.plan["cut"]["kind"]

    @property
    def repeat(self) -> int:
        return int(self.plan["repeat"])

    @property
    def cardinality(self) -> int:
        return int(self.plan["cardinality"])


def cut_all(
    binary: pathlib.Path, work: pathlib.Path, datasets: dict[str, tuple[tf.data.Dataset, dict]]
) -> dict[str, Cut]:
    """Plans many datasets and writes their streams with one call of the command."""
    work.mkdir(parents=True, exist_ok=True)
    for name, (dataset, options) in datasets.items():
        (work / f"{name}.pb").write_bytes(serialize(dataset))
        (work / f"{name}.json").write_text(json.dumps({"mode": "EXACTLY_ONCE", "seed": 7, "epochs": 2} | options))
    subprocess.run([str(binary), str(work)], check=True, timeout=300)
    return {name: read_cut(work, name) for name in datasets}


def read_cut(work: pathlib.Path, name: str) -> Cut:
    """Reads the output of the command for one dataset."""
    failed = work / f"{name}.error.json"
    if failed.exists():
        return Cut({}, {}, error=json.loads(failed.read_text()))
    found: dict[str, dict] = {"e": {}, "i": {}}
    for kind, graphs in found.items():
        for path in work.glob(f"{name}.{kind}*.s*.A.pb"):
            first, stream = (int(part[1:]) for part in path.name.removeprefix(name + ".").split(".")[:2])
            second = path.with_name(path.name.replace(".A.pb", ".B.pb"))
            graphs[first, stream] = (path.read_bytes(), second.read_bytes() if second.exists() else None)
    return Cut(json.loads((work / f"{name}.plan.json").read_text()), found["e"], found["i"])


def run_streams(cut: Cut, like: tf.data.Dataset, *, epoch: int = 0, limit: int | None = None) -> list[list[Element]]:
    """Runs all streams of an epoch, and returns the elements of each. Closing streams come last."""
    rows = int(cut.plan["batch_rows"])
    out: list[list[Element]] = []
    # What the streams keep back, by the closing stream that joins it.
    remainders: dict[int, list[Element]] = collections.defaultdict(list)
    batch_types: list[tf.DType] = []
    final = [s.dtype for s in tf.nest.flatten(flatten(like).element_spec)]
    streams = max(cut.streams, 1)
    group = cut.group or streams
    groups = -(-streams // group)
    last = streams + (groups if groups > 1 else 0)
    for stream in range(last):
        first, second = cut.graphs.get((epoch, stream), (b"", None))
        if stream >= streams:
            if cut.strategy == "EXACT":
                break
            first = with_feed(first, remainders[stream], batch_types)
        batch_types = batch_types or (batch_dtypes(first) if cut.strategy == "CLOSING" else final)
        dataset = load_types(first, batch_types if cut.strategy == "CLOSING" else final)
        if limit is not None:
            dataset = dataset.take(limit)
        got = [tuple(np.asarray(t.numpy()) for t in element) for element in dataset]
        if cut.strategy != "EXACT":
            full = [e for e in got if len(e[0]) == rows]
            assert all(len(e[0]) == rows for e in got[:-1]), "only the last batch may be partial"
            closing = last if stream >= streams or groups == 1 else streams + stream // group
            remainders[closing] += got[len(full) :]
            got = full
        if cut.strategy == "CLOSING":
            got = [tuple(np.asarray(t.numpy()) for t in e) for e in load_types(with_feed(second, got, batch_types), final)]
        out.append(got)
    if cut.strategy != "EXACT":
        graph, second = cut.graphs[epoch, last]
        assert second is None
        dataset = load_types(with_feed(graph, remainders[last], batch_types), final)
        out.append([tuple(np.asarray(t.numpy()) for t in e) for e in dataset])
    return out


def batch_dtypes(graph: bytes) -> list[tf.DType]:
    """Reads the component types of a graph's result from its last dataset node."""
    parsed = graph_pb2.GraphDef.FromString(graph)
    last = next(n for n in parsed.node if n.name == "pecan_options")
    return [tf.dtypes.as_dtype(t) for t in last.attr["output_types"].list.type]


def key(element: Element) -> tuple:
    """A comparable and hashable form of an element, with shapes and types."""
    return tuple(
        (a.dtype.str, a.shape, tuple(a.ravel().tolist()) if a.dtype == object else a.tobytes()) for a in element
    )


def multiset(found: Iterable[Element]) -> collections.Counter:
    """Counts elements."""
    return collections.Counter(key(e) for e in found)


def rows_of(found: Iterable[Element]) -> collections.Counter:
    """Counts the rows of batches."""
    counts: collections.Counter = collections.Counter()
    for element in found:
        for i in range(len(element[0])):
            counts[key(tuple(np.asarray(a[i]) for a in element))] += 1
    return counts


def sizes_of(found: Iterable[Element]) -> collections.Counter:
    """Counts the sizes of batches."""
    return collections.Counter(len(e[0]) for e in found)


def round_robin(streams: list[list[Element]]) -> list[Element]:
    """Reads one element of each stream in turn, and leaves out streams that have ended."""
    out = []
    for i in range(max((len(s) for s in streams), default=0)):
        out += [s[i] for s in streams if i < len(s)]
    return out


def in_groups(cut: Cut, streams: list[list[Element]]) -> list[Element]:
    """Reads the streams of one group in turn to their end, then those of the next group. Closing streams are left out."""
    group = cut.group or cut.streams
    return [e for at in range(0, cut.streams, group) for e in round_robin(streams[at : min(at + group, cut.streams)])]


def compare(how: str, got: list[Element], want: list[Element]) -> None:
    """Checks the elements of streams against the elements of a local run."""
    if how == "elements":
        assert multiset(got) == multiset(want)
        return
    if how == "rows":
        assert sizes_of(got) == sizes_of(want)
        assert rows_of(got) == rows_of(want)
        return
    assert how == "count", how
    assert len(got) == len(want)


Builder = Callable[[pathlib.Path], tf.data.Dataset]
