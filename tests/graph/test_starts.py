"""A stream that starts at an index gives the same elements as the whole stream after this index."""

from __future__ import annotations

import pathlib

import graph_oracle as oracle
import graph_pipelines as pipelines
import numpy as np
import pytest
import tensorflow as tf

STARTS = (1, 3, 1000)
LIMIT = 40
# Mode deterministic refuses the other cases.
CASES = {name: case for name, case in pipelines.CASES.items() if case.mode == "EXACTLY_ONCE"}


@pytest.fixture(scope="module")
def cuts(
    cutgraph: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[tf.data.Dataset, oracle.Cut]]:
    """All pipelines with the graphs of streams that start at an index, in mode deterministic."""
    work = tmp_path_factory.mktemp("starts")
    for name in CASES:
        (work / "data" / name).mkdir(parents=True)
    datasets = {name: case.build(work / "data" / name) for name, case in CASES.items()}
    options = {"mode": "DETERMINISTIC", "starts": STARTS, "epochs": 1}
    found = oracle.cut_all(cutgraph, work / "graphs", {name: (ds, options) for name, ds in datasets.items()})
    return {name: (datasets[name], found[name]) for name in datasets}


def run(graph: bytes, cut: oracle.Cut, like: tf.data.Dataset) -> list[tuple]:
    """The first elements of a stream's first graph, with a partial last batch."""
    types = [s.dtype for s in tf.nest.flatten(oracle.flatten(like).element_spec)]
    if cut.strategy == "CLOSING":
        types = oracle.batch_dtypes(graph)
    return [oracle.key(tuple(np.asarray(t.numpy()) for t in element)) for element in oracle.load_types(graph, types).take(LIMIT)]


@pytest.mark.parametrize("name", CASES)
def test_a_stream_starts_at_an_index(cuts, name: str) -> None:
    dataset, cut = cuts[name]
    if cut.plan["resume"]["strategy"] == "RECOMPUTE":
        assert not cut.starts
        return
    for stream in {0, cut.streams - 1}:
        whole = run(cut.graphs[0, stream][0], cut, dataset)
        for start in STARTS:
            got = run(cut.starts[start, stream][0], cut, dataset)
            want = whole[start:]
            assert got[: len(want)] == want, (stream, start)
            assert len(got) == len(want) or len(whole) == LIMIT, (stream, start)


def test_every_resume_strategy_is_covered(cuts) -> None:
    strategies = {name: cut.plan["resume"]["strategy"] for name, (_, cut) in cuts.items()}
    assert {"SEEK", "PARTIAL", "RECOMPUTE"} <= set(strategies.values())
