"""The streams of each typical pipeline together give the elements of a local run, also those that start at an index."""

from __future__ import annotations

import itertools
import pathlib

import graph_oracle as oracle
import graph_pipelines as pipelines
import numpy as np
import pytest
import tensorflow as tf

STARTS = (1, 3, 1000)
# A stream that starts at an index is compared up to this many elements.
LIMIT = 40
# Mode deterministic refuses the other cases.
DETERMINISTIC = {name: case for name, case in pipelines.CASES.items() if case.mode == "EXACTLY_ONCE"}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tf.data.Dataset]:
    """All pipelines, and the files that they read."""
    work = tmp_path_factory.mktemp("data")
    for name in pipelines.CASES:
        (work / name).mkdir(parents=True)
    return {name: case.build(work / name) for name, case in pipelines.CASES.items()}


@pytest.fixture(scope="module")
def cuts(
    cutgraph: pathlib.Path, datasets: dict[str, tf.data.Dataset], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[tf.data.Dataset, oracle.Cut]]:
    """The streams of all pipelines, written with one call."""
    requests = {name: (ds, {"mode": pipelines.CASES[name].mode}) for name, ds in datasets.items()}
    found = oracle.cut_all(cutgraph, tmp_path_factory.mktemp("pipelines"), requests)
    return {name: (datasets[name], found[name]) for name in datasets}


@pytest.fixture(scope="module")
def starting(
    cutgraph: pathlib.Path, datasets: dict[str, tf.data.Dataset], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[tf.data.Dataset, oracle.Cut]]:
    """The pipelines with the graphs of streams that start at an index, in mode deterministic."""
    options = {"mode": "DETERMINISTIC", "starts": STARTS, "epochs": 1}
    found = oracle.cut_all(cutgraph, tmp_path_factory.mktemp("starts"), {name: (datasets[name], options) for name in DETERMINISTIC})
    return {name: (datasets[name], found[name]) for name in DETERMINISTIC}


@pytest.mark.parametrize("name", pipelines.CASES)
def test_the_plan_is_the_expected_one(cuts, name: str) -> None:
    case, (dataset, cut) = pipelines.CASES[name], cuts[name]
    assert cut.error is None, cut.error
    assert cut.plan["reasons"], "the plan has no reasons"
    if case.streams:
        assert cut.streams == case.streams, cut.plan
    else:
        assert cut.streams > 1, cut.plan
    assert (cut.kind, cut.strategy, cut.repeat) == (case.kind, case.strategy, case.repeat), cut.plan
    if cut.repeat == 1 and "assert" not in name:
        assert cut.cardinality in (-2, int(dataset.cardinality())), cut.plan


def test_the_plan_of_an_endless_repeat_before_a_batch_names_a_remedy(cuts) -> None:
    reasons = cuts["endless_repeat_of_files_then_batch"][1].plan["reasons"]
    assert any("Put repeat() at the end" in r and "drop_remainder" in r for r in reasons), reasons


@pytest.mark.parametrize("name", pipelines.CASES)
def test_streams_give_the_local_elements(cuts, name: str) -> None:
    case, (dataset, cut) = pipelines.CASES[name], cuts[name]
    assert cut.error is None, cut.error
    local = list(oracle.elements(dataset.take(case.take) if case.take else dataset))
    if case.take and cut.repeat == 1:
        assert cut.plan["all_open"] and cut.cardinality == -1
        got = oracle.round_robin(oracle.run_streams(cut, dataset, limit=case.take))[:case.take]
        oracle.compare(case.how, got, local)
        return
    passes = 2 if cut.repeat < 0 else cut.repeat
    epochs = [oracle.run_streams(cut, dataset, epoch=e % 2) for e in range(passes)]
    got = list(itertools.chain.from_iterable(itertools.chain.from_iterable(epochs)))
    if case.take:
        assert len(got) == case.take, "`take` must be a number of complete passes"
    oracle.compare(case.how, got, local)
    if case.ordered:
        assert [oracle.key(e) for e in oracle.in_groups(cut, epochs[0])] == [oracle.key(e) for e in local]


def first_elements(graph: bytes, cut: oracle.Cut, like: tf.data.Dataset) -> list[tuple]:
    """The first elements of a stream's first graph, with a partial last batch."""
    types = [s.dtype for s in tf.nest.flatten(oracle.flatten(like).element_spec)]
    if cut.strategy == "CLOSING":
        types = oracle.batch_dtypes(graph)
    return [oracle.key(tuple(np.asarray(t.numpy()) for t in element)) for element in oracle.load_types(graph, types).take(LIMIT)]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_stream_starts_at_an_index(starting, name: str) -> None:
    dataset, cut = starting[name]
    if cut.plan["resume"]["strategy"] == "RECOMPUTE":
        assert not cut.starts
        return
    for stream in {0, cut.streams - 1}:
        whole = first_elements(cut.graphs[0, stream][0], cut, dataset)
        for start in STARTS:
            got = first_elements(cut.starts[start, stream][0], cut, dataset)
            want = whole[start:]
            assert got[: len(want)] == want, (stream, start)
            assert len(got) == len(want) or len(whole) == LIMIT, (stream, start)


def test_every_resume_strategy_is_covered(starting) -> None:
    strategies = {name: cut.plan["resume"]["strategy"] for name, (_, cut) in starting.items()}
    assert {"SEEK", "PARTIAL", "RECOMPUTE"} <= set(strategies.values())
