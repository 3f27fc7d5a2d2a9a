"""Fingerprints, sharding policies and modes, for datasets that TensorFlow serialises in this process and in another one."""

from __future__ import annotations

import itertools
import json
import pathlib

import graph_oracle as oracle
import graph_pipelines as pipelines
import numpy as np
import pytest
import tensorflow as tf
from pipeline_parts import number, records
from script import Script

D = tf.data.Dataset

# Each pipeline is built twice in this process and once in another process.
PIPELINES = ["map", "filter_batch_map", "the_usual_training_chain", "zip_of_equally_seeded_shuffles", "table_lookup", "variable",
             "nested_shuffle", "bucket_by_sequence_length", "snapshot", "cache_in_memory", "sample_from_datasets", "random_values"]

CHILD = """
import pathlib, sys
sys.path.insert(0, {here!r})
import graph_oracle as oracle, graph_pipelines as pipelines
for i in range(40):
    oracle.serialize(oracle.tf.data.Dataset.range(3).map(lambda x: x + i).shuffle(2))
for name in {names!r}:
    work = pathlib.Path({data!r}) / name
    (pathlib.Path({out!r}) / ("child-" + name + ".pb")).write_bytes(oracle.serialize(pipelines.CASES[name].build(work)))
    (pathlib.Path({out!r}) / ("child-" + name + ".json")).write_text('{{"mode": "OFF"}}')
"""


def test_fingerprints_agree_within_and_across_processes(cutgraph: pathlib.Path, tmp_path: pathlib.Path) -> None:
    here, data, out = pathlib.Path(__file__).parent, tmp_path / "data", tmp_path / "graphs"
    datasets = {}
    for name in PIPELINES:
        (data / name).mkdir(parents=True)
        for copy in ("first", "second"):
            case = pipelines.CASES[name]
            datasets[f"{copy}-{name}"] = (case.build(data / name), {"mode": case.mode})
    out.mkdir()
    script = CHILD.format(here=str(here), names=PIPELINES, data=str(data), out=str(out))
    with Script(script) as child:
        code, _, err = child.rest(200)
    assert code == 0, err
    cuts = oracle.cut_all(cutgraph, out, datasets)
    seen = {}
    for name in PIPELINES:
        prints = {cuts[f"{copy}-{name}"].plan["fingerprint"] for copy in ("first", "second")}
        prints.add(json.loads((out / f"child-{name}.plan.json").read_text())["fingerprint"])
        assert len(prints) == 1, name
        assert seen.setdefault(prints.pop(), name) == name


def run(cutgraph: pathlib.Path, tmp_path: pathlib.Path, dataset: tf.data.Dataset, **options) -> oracle.Cut:
    return oracle.cut_all(cutgraph, tmp_path, {"one": (dataset, options)})["one"]


def flat(streams: list[list[oracle.Element]]) -> list[oracle.Element]:
    return list(itertools.chain.from_iterable(streams))


@pytest.mark.parametrize("sharding, workers, kind", [
    ("FILE", 3, "FILES"), ("FILE_OR_DATA", 6, "FILES"), ("FILE_OR_DATA", 7, "BLOCKS"), ("DATA", 2, "BLOCKS"), ("DYNAMIC", 2, "FILES"), ("FILE", 0, "FILES"),
])
def test_sharding_policies_keep_elements_and_batches(cutgraph, tmp_path, sharding: str, workers: int, kind: str) -> None:
    dataset = tf.data.TFRecordDataset(records(tmp_path / "data")).map(number).batch(4)
    cut = run(cutgraph, tmp_path / "graphs", dataset, sharding=sharding, static_workers=workers)
    assert cut.error is None and cut.kind == kind, cut
    if workers and sharding != "DYNAMIC":
        assert cut.streams == workers
    oracle.compare("rows", flat(oracle.run_streams(cut, dataset)), list(oracle.elements(dataset)))


def test_a_hint_divides_the_dataset_at_its_shard_step(cutgraph, tmp_path) -> None:
    hint = tf.data.experimental.SHARD_HINT
    dataset = D.range(50).shard(hint, hint).map(lambda x: x * 2)
    cut = run(cutgraph, tmp_path, dataset, sharding="HINT", static_workers=3)
    oracle.compare("elements", flat(oracle.run_streams(cut, dataset)), list(oracle.elements(D.range(50).map(lambda x: x * 2))))


def test_mode_off_gives_every_worker_the_whole_dataset(cutgraph, tmp_path) -> None:
    dataset = D.range(20).shuffle(20).cache(str(tmp_path / "cache")).batch(3)
    cut = run(cutgraph, tmp_path / "graphs", dataset, mode="OFF", off_streams=3)
    assert cut.streams == 0
    orders = []
    for stream in range(3):
        got = [tuple(t.numpy() for t in e) for e in oracle.load(cut.graphs[0, stream][0], dataset)]
        assert sorted(np.concatenate([e[0] for e in got]).tolist()) == list(range(20))
        orders.append([e[0].tolist() for e in got])
    assert orders[0] != orders[1]


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "DETERMINISTIC"])
def test_a_recomputed_stream_has_the_same_elements(cutgraph, tmp_path, mode: str) -> None:
    """After the loss of a worker another one recomputes the stream, and element i must be the same."""
    dataset = (
        D.range(400).shuffle(50).interleave(lambda x: D.range(x * 10, x * 10 + 3).shuffle(3), num_parallel_calls=2, deterministic=False)
        .map(lambda x: x + 1, num_parallel_calls=4, deterministic=False).batch(8)
    )
    cut = run(cutgraph, tmp_path, dataset, mode=mode)
    assert cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    first, second = oracle.run_streams(cut, dataset), oracle.run_streams(cut, dataset)
    assert [list(map(oracle.key, s)) for s in first] == [list(map(oracle.key, s)) for s in second]
    other = oracle.run_streams(cut, dataset, epoch=1)
    assert [list(map(oracle.key, s)) for s in first] != [list(map(oracle.key, s)) for s in other]


def test_deterministic_mode_repeats_random_values(cutgraph, tmp_path) -> None:
    dataset = D.range(200).map(lambda x: tf.random.uniform([4]), num_parallel_calls=4)
    cut = run(cutgraph, tmp_path, dataset, mode="DETERMINISTIC")
    assert cut.plan["determinism"] == "DETERMINISM_CLASS_B"
    first, second = flat(oracle.run_streams(cut, dataset)), flat(oracle.run_streams(cut, dataset))
    assert list(map(oracle.key, first)) == list(map(oracle.key, second))
    assert len(oracle.multiset(first)) == 200


@pytest.mark.parametrize("buffer", [20, 60, 1000])
def test_one_stream_with_the_users_seed_equals_the_local_run(cutgraph, tmp_path, buffer: int) -> None:
    dataset = D.range(60).shuffle(buffer, seed=4).filter(lambda x: x % 3 > 0).group_by_window(
        lambda x: x % 2, lambda _, w: w.batch(5), window_size=5)
    local = list(oracle.elements(dataset))
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams == 1
    assert list(map(oracle.key, flat(oracle.run_streams(cut, dataset)))) == list(map(oracle.key, local))


def test_two_graphs_in_one_worker_keep_their_tables_apart(cutgraph, tmp_path) -> None:
    def looked_up(factor: int) -> tf.data.Dataset:
        keys = tf.constant(range(10), tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * factor), -1)
        return D.range(10).map(table.lookup)

    datasets = {f"by-{f}": (looked_up(f), {}) for f in (2, 3)}
    cuts = oracle.cut_all(cutgraph, tmp_path, datasets)
    for factor in (2, 3, 2):
        got = flat(oracle.run_streams(cuts[f"by-{factor}"], datasets[f"by-{factor}"][0]))
        assert sorted(int(e[0]) for e in got) == [i * factor for i in range(10)]


def test_generators_draw_different_values_in_every_stream_and_epoch(cutgraph, tmp_path) -> None:
    generator = tf.random.Generator.from_seed(3)
    dataset = D.range(64).map(lambda x: generator.uniform([2]))
    cut = run(cutgraph, tmp_path, dataset)
    assert cut.streams > 1
    both = [flat(oracle.run_streams(cut, dataset, epoch=e)) for e in (0, 1)]
    assert len(oracle.multiset(both[0] + both[1])) == 128
