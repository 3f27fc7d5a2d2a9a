"""The streams over the extents of large record files together give the elements of a local run, also from an index on."""

from __future__ import annotations

import os
import pathlib
import re

import graph_oracle as oracle
import numpy as np
import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset
# An extent has two records of the large file, or four of the small one.
RECORDS, BYTES = 189, 540_000
STARTS = (3,)


def records(path: pathlib.Path, first: int, count: int) -> str:
    """Writes a file whose records carry numbers, and returns its name."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(first, first + count):
            writer.write(i.to_bytes(8, "little") + bytes(BYTES))
    return str(path)


def number(record: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_raw(tf.strings.substr(record, 0, 8), tf.int64)[0]


def read(name: str | list[str]) -> D:
    return tf.data.TFRecordDataset(name).map(number)


def interleave(names: list[str], parallel: int | None = None) -> D:
    return D.from_tensor_slices(names).interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=parallel).map(number)


def marked(names: list[str]) -> D:
    listed = D.from_tensor_slices(names).apply(pecan.cache_candidate("names"))
    return listed.interleave(tf.data.TFRecordDataset, cycle_length=4).map(number).apply(pecan.cache_candidate("read"))


# The dataset over the files, the kind of the cut, the largest block of an edge, and the batch strategy.
CASES = {
    "map": (lambda one, two: read(one), "FILES", 1, "EXACT"),
    "map, batch of one extent": (lambda one, two: read(one).batch(2), "FILES", 1, "EXACT"),
    "map, batch of several extents": (lambda one, two: read(one).batch(3), "FILES", 3, "EXACT"),
    "shuffle, batch": (lambda one, two: read(one).shuffle(5, seed=1).batch(4), "FILES", 2, "EXACT"),
    "two files": (lambda one, two: read([two, one]), "FILES", 1, "EXACT"),
    "two files, batch of one extent": (lambda one, two: read([two, one]).batch(2), "FILES", 1, "EXACT"),
    "two files, batch of several extents": (lambda one, two: read([two, one, two]).batch(6), "FILES", 3, "EXACT"),
    "two files, shuffle, batch": (lambda one, two: read([two, one]).shuffle(5, seed=1).batch(4), "FILES", 2, "EXACT"),
    "two files, filter": (lambda one, two: read([two, one]).filter(lambda x: x % 3 > 0).batch(4), "FILES", 1, "REMAINDER"),
    "two files, take": (lambda one, two: read([two, one]).take(101).batch(3), "FILES", 3, "EXACT"),
    "two files, take of the first": (lambda one, two: read([one, two]).take(140).batch(3), "FILES", 3, "EXACT"),
    "two files, skip": (lambda one, two: read([two, one, two]).skip(9).enumerate(), "BLOCKS", 2, "EXACT"),
    "two files, skip into the first": (lambda one, two: read([two, one]).skip(3).take(150).batch(2), "FILES", 1, "EXACT"),
    "two files, enumerate": (lambda one, two: read([two, one, two]).enumerate().batch(3), "BLOCKS", 6, "EXACT"),
    "two files, zip": (lambda one, two: D.zip((read([two, one]), read([one, two]))), "FILES", 1, "EXACT"),
    "batch, take": (lambda one, two: read([two, one]).batch(3).take(40), "FILES", 3, "EXACT"),
    "batch, skip, take": (lambda one, two: read(one).batch(2).prefetch(1).skip(5).batch(2).take(30), "FILES", 2, "EXACT"),
    "interleave of one file": (lambda one, two: interleave([one]).batch(2), "FILES", 1, "EXACT"),
    "interleave of one file, take": (lambda one, two: interleave([one], tf.data.AUTOTUNE).take(100).enumerate(), "BLOCKS", 2, "EXACT"),
    "listed file": (lambda one, two: D.list_files(one).interleave(tf.data.TFRecordDataset).map(number).batch(2), "FILES", 1, "EXACT"),
    "parallel reads of one file": (lambda one, two: tf.data.TFRecordDataset(one, num_parallel_reads=4).map(number).batch(2), "FILES", 1, "EXACT"),
    "parallel reads of two files": (lambda one, two: tf.data.TFRecordDataset([two, one], num_parallel_reads=4).map(number), "FILES", 1, "EXACT"),
    "flat_map of a function": (lambda one, two: D.from_tensor_slices([one, two]).flat_map(tf.data.TFRecordDataset).map(number).enumerate(), "BLOCKS", 2, "EXACT"),
    "interleave of two files": (lambda one, two: interleave([one, two], tf.data.AUTOTUNE).batch(4), "FILES", 1, "REMAINDER"),
    "listed files": (lambda one, two: D.list_files([one, two], seed=3).interleave(tf.data.TFRecordDataset, cycle_length=2).map(number), "FILES", 1, "EXACT"),
    "take": (lambda one, two: read(one).take(101).batch(3), "FILES", 3, "EXACT"),
    "skip": (lambda one, two: read(one).skip(21).batch(3), "FILES", 3, "EXACT"),
    "skip, take, skip": (lambda one, two: read(one).skip(7).take(130).skip(11).enumerate(), "BLOCKS", 2, "EXACT"),
    "take at the end of the file": (lambda one, two: read(one).map(lambda x: x + 1).skip(100).take(1000).prefetch(2), "FILES", 1, "EXACT"),
    "enumerate": (lambda one, two: read(one).enumerate(), "BLOCKS", 2, "EXACT"),
    "enumerate, batch": (lambda one, two: read(one).enumerate().batch(3), "BLOCKS", 6, "EXACT"),
    "zip of batches and numbers": (lambda one, two: D.zip((read(one).batch(3), D.range(50))), "BLOCKS", 3, "EXACT"),
    "zip of two files": (lambda one, two: D.zip((read(one), read(two))), "FILES", 2, "EXACT"),
    "zip in a zip": (lambda one, two: D.zip((D.range(99), D.zip((D.range(200), read(two).batch(2))))), "BLOCKS", 2, "EXACT"),
    "candidates": (lambda one, two: marked([one, two]).batch(4), "FILES", 2, "REMAINDER"),
    "a candidate, take": (lambda one, two: read(one).apply(pecan.cache_candidate("read")).take(101).batch(3), "FILES", 3, "EXACT"),
}


# The modes divide files in the same way, so each pipeline runs in one of them, and in both under `make soak`.
MODES = ("EXACTLY_ONCE", "DETERMINISTIC")
RUNS = [(name, mode) for n, name in enumerate(CASES) for m, mode in enumerate(MODES) if os.environ.get("PECAN_SOAK") or n % 2 == m]


@pytest.fixture(scope="module")
def cuts(cutgraph: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[D, oracle.Cut]]:
    """The pipelines in their modes."""
    work = tmp_path_factory.mktemp("extents")
    one, two = records(work / "one", 0, RECORDS), records(work / "two", 1000, 7)
    found = {}
    for mode in MODES:
        options = {"mode": mode, "extents": True, "file_bytes": RECORDS * BYTES, "starts": STARTS, "epochs": 1, "streams": 7}
        datasets = {name: CASES[name][0](one, two) for name, of in RUNS if of == mode}
        cut = oracle.cut_all(cutgraph, work / mode, {name: (d, options) for name, d in datasets.items()})
        found |= {(name, mode): (datasets[name], cut[name]) for name in datasets}
    return found


@pytest.mark.parametrize(("name", "mode"), RUNS)
def test_streams_over_extents_give_the_local_elements(cuts, name: str, mode: str) -> None:
    dataset, cut = cuts[name, mode]
    assert cut.error is None, cut.error
    _, kind, block, strategy = CASES[name]
    assert (cut.kind, int(cut.plan["cut"]["block"]), cut.strategy) == (kind, block, strategy), cut.plan
    assert cut.streams > 1, cut.plan
    local = list(oracle.elements(dataset))
    streams = oracle.run_streams(cut, dataset)
    how = "rows" if strategy != "EXACT" or "shuffle" in name else "elements"
    oracle.compare(how, [e for s in streams for e in s], local)
    ordered = not any(mixed in name for mixed in ("shuffle", "listed files", "reads of two files"))
    if ordered and name.endswith("batch of one extent"):
        # Each extent gives one element, so the groups in turn give the local order.
        assert list(map(oracle.key, oracle.in_groups(cut, streams))) == list(map(oracle.key, local))
    if ordered and strategy == "EXACT":
        assert cut.cardinality == len(local), cut.plan
    for (start, stream), (graph, second) in cut.starts.items():
        assert second is None
        if strategy != "EXACT":
            continue
        rest = [tuple(np.asarray(t.numpy()) for t in e) for e in oracle.load(graph, dataset)]
        assert list(map(oracle.key, rest)) == list(map(oracle.key, streams[stream][start:])) or "shuffle" in name


def test_few_records_of_a_large_file_are_not_divided(cutgraph: pathlib.Path, tmp_path: pathlib.Path) -> None:
    one, two = records(tmp_path / "one", 0, 20), records(tmp_path / "two", 100, 20)
    datasets = {
        "few": read(one).take(1),
        "none": read(one).skip(20),
        "none of two files": read([one, two]).skip(40),
        "an order that decides which": interleave([one, two]).take(30),
        "shuffled files": D.list_files([one, two]).flat_map(tf.data.TFRecordDataset).take(30),
        "an order that decides pairs": interleave([one, two]).enumerate(),
    }
    for cut in oracle.cut_all(cutgraph, tmp_path / "cuts", {name: (d, {"extents": True}) for name, d in datasets.items()}).values():
        assert cut.error is not None and "not divided into extents" in cut.error["message"]


def test_a_plan_says_why_positions_keep_it_in_one_stream(cutgraph: pathlib.Path, tmp_path: pathlib.Path) -> None:
    one = records(tmp_path / "one", 0, 20)
    compressed = str(tmp_path / "gzip")
    with tf.io.TFRecordWriter(compressed, "GZIP") as writer:
        writer.write(bytes(8))
    raw = tf.data.TFRecordDataset(one)
    uncounted = r"counts elements, and how many FilterDataset/\S+ gives is not known"
    for name, (dataset, streams, why) in {
        "filter": (raw.filter(lambda x: x != "").take(5), 1, r"TakeDataset/\S+ " + uncounted),
        "filter, much work": (raw.filter(lambda x: x != "").take(5).map(number), 4, r"kept small: TakeDataset/\S+ " + uncounted),
        "shuffle": (raw.shuffle(5, seed=3).skip(5), 1, r"SkipDataset/\S+ counts elements, and their order depends on ShuffleDatasetV3/\S+, which"),
        "compressed": (
            tf.data.TFRecordDataset(compressed, "GZIP").take(5),
            1,
            r"TakeDataset/\S+ counts elements, and the records that FlatMapDataset/\S+ reads are not counted. Compressed",
        ),
        "zip": (D.zip((raw, D.range(9).filter(lambda x: x > 1))), 1, r"a zip counts elements, and the records that FlatMapDataset/\S+ reads"),
    }.items():
        (cut,) = oracle.cut_all(cutgraph, tmp_path / name, {name: (dataset, {})}).values()
        assert cut.streams == streams and re.search(why, " ".join(cut.plan["reasons"])), cut.plan["reasons"]
        assert any(cut.plan["streams_why"] in said for said in cut.plan["reasons"])
