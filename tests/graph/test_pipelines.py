"""The streams of each typical pipeline together give the elements of a local run."""

from __future__ import annotations

import itertools
import pathlib

import graph_oracle as oracle
import graph_pipelines as pipelines
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def cuts(
    cutgraph: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[tf.data.Dataset, oracle.Cut]]:
    """The streams of all pipelines, written with one call."""
    work = tmp_path_factory.mktemp("pipelines")
    for name in pipelines.CASES:
        (work / "data" / name).mkdir(parents=True)
    datasets = {name: case.build(work / "data" / name) for name, case in pipelines.CASES.items()}
    requests = {name: (ds, {"mode": pipelines.CASES[name].mode}) for name, ds in datasets.items()}
    found = oracle.cut_all(cutgraph, work / "graphs", requests)
    return {name: (datasets[name], found[name]) for name in datasets}


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
        assert [oracle.key(e) for e in oracle.round_robin(epochs[0])] == [oracle.key(e) for e in local]
