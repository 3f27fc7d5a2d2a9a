"""Explanations of the order of a job's steps, from real dispatchers."""

from __future__ import annotations

import json
import sys
import types

import pecan
import pytest
import tensorflow as tf
from pecan._src.servers import programs
from test_commands import run_command

D = tf.data.Dataset


def next_one(x: tf.Tensor) -> tf.Tensor:
    return x + 1


def steps(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(next_one).map(pecan.keep_position(lambda x: x * 2)).filter(lambda x: x > 3).batch(4)


def test_the_explanation_of_order_off(cluster):
    dataset = steps(D.range(40)).apply(pecan.distribute(cluster.target, job_name="explained-off", order="off"))
    found = pecan.explain(dataset)
    assert (found.order, found.tolerance, found.state, found.moved) == ("off", "", "off", ())
    assert found.why
    assert "state  off" in str(found)
    # The job can be named by its name, by its id, and by a dataset with further steps.
    for other in (
        pecan.explain("explained-off", cluster.target),
        pecan.explain(found.job_id, cluster.target),
        pecan.explain(dataset.map(lambda x: x).prefetch(1)),
    ):
        assert other == found


def test_a_job_that_may_be_ordered_explains_its_steps(cluster):
    dataset = steps(D.range(40)).apply(pecan.distribute(cluster.target, order="auto", order_tolerance="exact"))
    found = pecan.explain(dataset)
    assert (found.order, found.tolerance, found.state) == ("auto", "exact", "measuring")
    assert [step.operation for step in found.steps] == ["MapDataset", "MapDataset", "FilterDataset", "BatchDatasetV2"]
    assert all(step.reason for step in found.steps)
    assert [step.label for step in found.steps] == ["next_one", *(step.name for step in found.steps[1:])]
    assert "its author fixed its position with pecan.keep_position" in found.steps[1].reason
    # Nothing has run, so no costs are known and no step moves.
    assert found.moved == () and found.measured_gain is None


class Steps:
    def twice(self, x: tf.Tensor) -> tf.Tensor:
        return x * 2


def _private(x: tf.Tensor) -> tf.Tensor:
    return x + 1


def test_explanations_use_the_authors_names_of_steps(cluster):
    dataset = D.range(40).map(_private).map(Steps().twice).flat_map(D.from_tensors).map(lambda x: x, name="same").map(lambda x: x)
    found = pecan.explain(dataset.apply(pecan.distribute(cluster.target, order="auto")))
    *labels, last = [step.label for step in found.steps if step.operation == "MapDataset"]
    assert labels == ["_private", "Steps.twice", "same"]
    assert last == found.steps[-1].name


def test_pecanctl_and_pecan_show_the_same(cluster, tmp_path):
    dataset = steps(D.range(40)).apply(pecan.distribute(cluster.target, job_name="explained", order="paper"))
    address = cluster.target.removeprefix("pecan://")
    shown = run_command("pecanctl", "explain", "explained", "--dispatcher", address)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == pecan.explain(dataset).text(120) + "\n"
    as_json = run_command("pecanctl", "explain", "explained", "--dispatcher", address, "--json")
    assert json.loads(as_json.stdout)["order"] == "ORDER_PAPER"
    assert "explained, order: " in run_command("pecanctl", "jobs", "--dispatcher", address).stdout


def test_candidates_are_explained(cluster):
    drawn = D.range(40).map(next_one).apply(pecan.cache_candidate("next")).map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64))
    dataset = drawn.apply(pecan.cache_candidate("drawn"))
    job = dataset.batch(4).apply(pecan.distribute(cluster.target, job_name="cached-candidates", cache="auto"))
    found = pecan.explain(job).cache
    assert found.cache == "auto"
    assert [(one.name, one.origin, one.reason) for one in found.candidates] == [
        ("next", "marked", ""),
        ("drawn", "marked", "random"),
        ("", "found", "random"),
    ]
    assert "freeze_randomness=True" in found.candidates[1].why
    shown = run_command("pecanctl", "explain", "cached-candidates", "--dispatcher", cluster.target.removeprefix("pecan://"))
    assert shown.stdout == pecan.explain(job).text(120) + "\n"
    assert "not cacheable" in shown.stdout
    with pytest.raises(pecan.JobMismatchError, match="cache auto instead of candidates"):
        dataset.batch(4).apply(pecan.distribute(cluster.target, job_name="cached-candidates"))


def test_all_marks_are_listed(cluster):
    dataset = D.range(40)
    for number in range(14):
        dataset = dataset.map(lambda x, number=number: x * 3 + number).apply(pecan.cache_candidate(f"place_{number}"))
    job = dataset.apply(pecan.distribute(cluster.target, job_name="many-candidates"))
    listed = pecan.explain(job).cache.candidates
    assert [one.name for one in listed] == [f"place_{number}" for number in range(14)]
    refused = [one for one in listed if not one.legal]
    assert [one.reason for one in refused] == ["too_many"] * 2
    assert "at most 12" in refused[0].why and "Remove" in refused[0].why
    shown = run_command("pecanctl", "explain", "many-candidates", "--dispatcher", cluster.target.removeprefix("pecan://"))
    assert shown.stdout.count("not cacheable") == 2 and refused[1].name in shown.stdout


def test_an_unknown_job_is_an_error(cluster):
    address = cluster.target.removeprefix("pecan://")
    with pytest.raises(LookupError, match=r"nobodys.*JOB_UNKNOWN") as caught:
        pecan.explain("nobodys", cluster.target)
    assert isinstance(caught.value, pecan.NotFoundError)
    done = run_command("pecanctl", "explain", "nobodys", "--dispatcher", address)
    assert done.returncode == 1
    assert "pecanctl jobs lists" in done.stderr


def test_only_a_distributed_dataset_can_be_explained(cluster):
    with pytest.raises(ValueError, match="explain"):
        pecan.explain(D.range(3))
    dataset = D.range(3).apply(pecan.distribute(cluster.target))
    with pytest.raises(ValueError, match="leave `service`"):
        pecan.explain(dataset, cluster.target)


def test_explain_uses_the_private_cluster_by_default():
    dataset = D.range(3).apply(pecan.distribute(job_name="at-home"))
    assert pecan.explain("at-home").job_id == pecan.explain(dataset).job_id


def test_the_command_pecan_has_explain_and_points_to_pecanctl(monkeypatch, capsys):
    called = types.SimpleNamespace(arguments=None)

    def execve(file, arguments, variables):
        called.arguments = [file.name, *arguments[1:]]
        raise SystemExit(0)

    monkeypatch.setattr(programs.os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["pecan", "explain", "train", "--json"])
    with pytest.raises(SystemExit):
        programs.pecan()
    assert called.arguments == ["pecanctl", "explain", "train", "--json"]
    monkeypatch.setattr(sys, "argv", ["pecan", "--help"])
    with pytest.raises(SystemExit) as ended:
        programs.pecan()
    assert ended.value.code == 0
    assert "Usage: pecan explain JOB" in capsys.readouterr().out
    for wrong in ([], ["jobs"], ["--colour"]):
        monkeypatch.setattr(sys, "argv", ["pecan", *wrong])
        with pytest.raises(SystemExit, match="pecan explain JOB"):
            programs.pecan()
