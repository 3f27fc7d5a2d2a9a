"""A single large record file is divided into extents: each record comes once, in the batches of a local run.

The index of the file decides the graph that is registered. A state that names the graph without extents stays valid.
"""

from __future__ import annotations

import collections
import logging
import os
import pathlib
import re
import signal

import oracle
import pecan
import pytest
import tensorflow as tf
from pecan._src.dataset import graph

RECORDS, BYTES = 94, 525_000
# An extent has two records, so a block of batches has three extents, and the file 16 blocks.
BATCH = 3
MODES = ("exactly_once", "deterministic")
# Two workers have two slots each.
SLOTS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file of 49 MB whose records carry the ids 0, 1, 2 and so on."""
    path = str(tmp_path_factory.mktemp("record") / "all.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(RECORDS):
            writer.write(i.to_bytes(8, "little") + os.urandom(BYTES))
    return path


@pytest.fixture
def mortal():
    """Two workers. A test that kills one replaces it."""
    with pecan.LocalCluster(workers=2) as cluster:
        yield cluster


def _parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    number = tf.io.decode_raw(tf.strings.substr(record, 0, 8), tf.int64)[0]
    return number, tf.strings.to_hash_bucket_fast(record, 1 << 62)


def _local(path: str) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path).map(_parse, num_parallel_calls=4).batch(BATCH)


def _shuffled(path: str) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path).shuffle(8).map(_parse, num_parallel_calls=4).batch(BATCH)


def _distributed(dataset: tf.data.Dataset, cluster: pecan.LocalCluster, mode: str = "exactly_once") -> tf.data.Dataset:
    # A small window keeps most batches on the workers, so that a killed worker leaves work.
    return dataset.apply(pecan.distribute(cluster.target, processing_mode=mode, seed=7, max_outstanding_bytes=1))


def _streams(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The number of streams of each job that was logged."""
    return [int(n) for r in caplog.records for n in re.findall(r"created: .*?(\d+) streams", r.getMessage())]


def _read(dataset: tf.data.Dataset, cluster: pecan.LocalCluster | None = None) -> list:
    """Reads an epoch. With a cluster it kills one of the workers after the second element, and adds one later."""
    elements = []
    for element in dataset:
        elements.append(oracle.fingerprint(element))
        if cluster is not None and len(elements) == 2:
            os.kill(cluster.workers.pop(0).process.pid, signal.SIGKILL)
        elif cluster is not None and len(elements) == 6:
            cluster.add_workers(1)
    return elements


@pytest.mark.parametrize("mode", MODES)
def test_every_record_comes_once_in_the_batches_of_a_local_run(mortal, path, mode, caplog):
    caplog.set_level(logging.INFO, "pecan")
    local = [oracle.fingerprint(element) for element in _local(path)]
    distributed = _distributed(_local(path), mortal, mode)
    for victim in (None, mortal):
        assert collections.Counter(_read(distributed, victim)) == collections.Counter(local)
    assert _streams(caplog)[0] > SLOTS, caplog.text


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 3.7 MB, whose records carry the ids from 1,000 on."""
    path = str(tmp_path_factory.mktemp("record") / "short.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(1000, 1007):
            writer.write(i.to_bytes(8, "little") + os.urandom(BYTES))
    return path


DATASETS = {
    "interleave of one file": lambda one, short: (
        tf.data.Dataset.list_files(one).interleave(tf.data.TFRecordDataset, num_parallel_calls=2).map(_parse).batch(BATCH)
    ),
    "interleave of two files": lambda one, short: (
        tf.data.Dataset.list_files([one, short], seed=1).interleave(tf.data.TFRecordDataset, cycle_length=2).map(_parse)
    ),
    "take over two files": lambda one, short: tf.data.TFRecordDataset([short, one]).map(_parse).batch(BATCH).skip(1).take(30),
    "enumerate over two files": lambda one, short: tf.data.TFRecordDataset([short, one]).map(_parse).enumerate().batch(BATCH),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DATASETS)
def test_steps_that_count_or_mix_records_are_divided(mortal, path, short, name, mode, caplog):
    caplog.set_level(logging.INFO, "pecan")
    local = [oracle.fingerprint(element) for element in DATASETS[name](path, short)]
    distributed = _distributed(DATASETS[name](path, short), mortal, mode)
    assert collections.Counter(_read(distributed, mortal)) == collections.Counter(local)
    assert _streams(caplog)[0] > SLOTS, caplog.text


def test_a_registered_dataset_is_read_by_file(mortal, path, short, caplog):
    caplog.set_level(logging.INFO, "pecan")
    dataset = tf.data.TFRecordDataset([short, path]).map(_parse)
    registered = pecan.register_dataset(mortal.target, dataset)
    read = pecan.from_dataset_id(pecan.ShardingPolicy.FILE, mortal.target, registered, dataset.element_spec)
    assert sorted(int(i) for i, _ in read) == [*range(RECORDS), *range(1000, 1007)]
    assert _streams(caplog) == [2], caplog.text


def test_a_deterministic_order_depends_on_no_worker(mortal, path):
    order = _read(_distributed(_shuffled(path), mortal, "deterministic"))
    assert sorted(i for numbers, _ in map(_values, _shuffled(path)) for i in numbers) == list(range(RECORDS))
    assert _read(_distributed(_shuffled(path), mortal, "deterministic"), mortal) == order


def _values(element):
    return tuple(part.numpy().tolist() for part in element)


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_trainer_reads_the_rest(mortal, path, mode):
    first = pecan.Iterator(_distributed(_local(path), mortal, mode))
    read = [oracle.fingerprint(next(first)) for _ in range(11)]
    state = first.state_dict()
    del first
    second = pecan.Iterator(_distributed(_local(path), mortal, mode))
    second.load_state_dict(state)
    read += [oracle.fingerprint(element) for element in second]
    assert collections.Counter(read) == collections.Counter(oracle.fingerprint(e) for e in _local(path))


def _iterator(path: str, mortal, tmp_path_factory, monkeypatch, caplog, late: bool) -> pecan.Iterator:
    """An iterator of a job whose index was read in time, or not.

    No index is kept before. If the reading ends at the same time as a very short limit, the job may have the index, so another
    job is made.
    """
    for _ in range(20):
        monkeypatch.setenv("PECAN_HOME", str(tmp_path_factory.mktemp("home")))
        monkeypatch.setattr(graph, "_EXTENTS_TIMEOUT_S", 1e-9 if late else 1000)
        caplog.clear()
        iterator = pecan.Iterator(_distributed(_local(path), mortal))
        if ("reading the indexes" in caplog.text) == late:
            assert (_streams(caplog)[0] > SLOTS) != late, caplog.text
            return iterator
    raise AssertionError(f"no job was late: {late}. The last one: {caplog.text}")


@pytest.mark.parametrize("saved", ["without extents", "with extents"])
def test_a_state_is_valid_whether_or_not_the_index_was_read_in_time(mortal, path, saved, tmp_path_factory, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pecan")
    lates = (True, False) if saved == "without extents" else (False, True)
    iterators = [_iterator(path, mortal, tmp_path_factory, monkeypatch, caplog, late) for late in lates]
    first, second = iterators
    read = [oracle.fingerprint(next(first)) for _ in range(11)]
    state = first.state_dict()
    second.load_state_dict(state)
    read += [oracle.fingerprint(next(second)) for _ in range(2)]
    again = second.state_dict()
    second.load_state_dict(again)
    read += [oracle.fingerprint(element) for element in second]
    assert collections.Counter(read) == collections.Counter(oracle.fingerprint(e) for e in _local(path))


def test_an_error_names_the_file_that_has_become_shorter(mortal, tmp_path):
    name = str(tmp_path / "all.tfrecord")
    with tf.io.TFRecordWriter(name) as writer:
        for i in range(20):
            writer.write(i.to_bytes(8, "little") + bytes(BYTES))
    distributed = _distributed(tf.data.TFRecordDataset(name).map(_parse), mortal)
    os.truncate(name, 17 * (BYTES + 24))
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"expected to contain 2 elements.*{name}"):
        list(distributed)


def test_the_index_is_kept_in_the_users_directory(mortal, tmp_path):
    name = str(tmp_path / "all.tfrecord")
    with tf.io.TFRecordWriter(name) as writer:
        for i in range(20):
            writer.write(i.to_bytes(8, "little") + bytes(BYTES))
    os.utime(name, (1e9, 1e9))
    directory = pathlib.Path(os.environ["PECAN_HOME"]) / "extents"
    before = set(directory.glob("*"))
    assert len(list(_distributed(tf.data.TFRecordDataset(name), mortal))) == 20
    assert len(set(directory.glob("*")) - before) == 1
    assert pathlib.Path.home() not in directory.parents


@pytest.mark.parametrize(
    ("options", "divided"),
    [({"deterministic": True}, True), ({"job_name": "shared"}, True), ({"sharding": pecan.ShardingPolicy.FILE}, False)],
    ids=["deterministic", "job_name", "sharding FILE"],
)
def test_a_job_that_others_must_match_waits_for_the_index(mortal, path, options, divided, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pecan")
    monkeypatch.setattr(graph, "_EXTENTS_TIMEOUT_S", 1e-9)
    dataset = tf.data.TFRecordDataset(path).map(_parse).apply(pecan.distribute(mortal.target, **options))
    assert "reading the indexes" not in caplog.text
    assert (_streams(caplog)[0] > SLOTS) == divided, caplog.text
    if "job_name" not in options:
        assert sorted(int(number) for number, _ in dataset) == list(range(RECORDS))
