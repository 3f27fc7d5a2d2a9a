"""Caches over files named by URL: a new generation of an object is a new version of a file."""

from __future__ import annotations

import time

import cache_service
import gcs_emulator
import pecan
import pytest
import tensorflow as tf
from cache_service import D, Service, nothing, number, numbers, rows, until

BUCKET = "gs://bucket/data/"
# Objects of one time, so that only their generations tell versions apart.
UPDATED = 1_700_000_000.125


@pytest.fixture
def store(tmp_path, monkeypatch):
    emulator = gcs_emulator.Emulator(tmp_path)
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    yield emulator
    assert not emulator.anonymous, "a request has no token"
    emulator.close()


@pytest.fixture
def records(tmp_path, store):
    names = []
    for path in cache_service.write_records(tmp_path / "data"):
        names.append(BUCKET + path.rpartition("/")[2])
        with open(path, "rb") as file:
            store.put(names[-1], file.read(), UPDATED)
    return names


def encode(tmp_path, values) -> bytes:
    path = tmp_path / "encoded.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in values:
            writer.write(str(i).encode())
    return path.read_bytes()


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_cache_over_objects_has_the_elements_of_a_computed_epoch(tmp_path, store, records, deterministic):
    local = rows(numbers(records, nothing))
    with Service(tmp_path) as service:
        computed = list(service.read(numbers(records), deterministic=deterministic, cache="off").as_numpy_iterator())
        dataset = service.read(numbers(records), deterministic=deterministic)
        first = list(dataset.as_numpy_iterator())
        assert service.job()["cache"]["state"] == "committed", service.job()["plan"]["reasons"]
        store.read.clear()
        again = list(dataset.as_numpy_iterator())
        assert store.read == [] and service.job()["cache"]["state"] == "used"
        for got in (computed, first, again):
            assert sorted(int(x) for batch in got for x in batch) == local
            assert not deterministic or [b.tolist() for b in got] == [b.tolist() for b in computed]


def test_a_new_generation_is_read_again_and_never_mixed(tmp_path, store, records):
    """D15: the parts of objects that did not change are read, and the others are computed again."""
    with Service(tmp_path) as service:
        dataset = service.read(numbers(records), deterministic=True)
        before = rows(dataset)
        # Size and time stay. Only the generation tells that the content is another one.
        old, new = store.objects["bucket", "data/part-3.tfrecord"], encode(tmp_path, [*range(20, 82), 200, 300])
        store.put(records[3], new, UPDATED)
        changed = store.objects["bucket", "data/part-3.tfrecord"]
        assert (len(changed.data), changed.updated) == (len(old.data), old.updated) and changed.data != old.data
        store.read.clear()
        now = rows(numbers(records, nothing))
        assert now != before
        # The first epoch finds the old segment and drops it, and the second one writes another. The other parts are read.
        for reads in ({"data/part-3.tfrecord"}, {"data/part-3.tfrecord"}, set()):
            store.read.clear()
            assert rows(dataset) == now
            assert set(store.read) == reads
        until(lambda: service.metric("segments_invalid") == 1, "no worker counts the invalid segment")


def test_an_object_that_has_just_changed_is_not_kept(tmp_path, store, records, monkeypatch):
    """TensorFlow remembers the size of the earlier object for that many seconds."""
    monkeypatch.setenv("GCS_STAT_CACHE_MAX_AGE", "3")
    with Service(tmp_path) as service:
        dataset = service.read(numbers(records))
        assert rows(dataset)
        store.put(records[3], encode(tmp_path, range(1, 50)), time.time())
        now = rows(numbers(records, nothing))
        epochs = 0

        def kept() -> bool:
            nonlocal epochs
            epochs += 1
            store.read.clear()
            assert rows(dataset) == now
            return store.read == []

        until(kept, "the new object is never kept")
        assert epochs > 3 and service.metric("parts_unversioned") > 0


def test_an_object_that_changes_while_it_is_read_is_not_kept(tmp_path, store, records):
    with Service(tmp_path) as service:
        dataset = service.read(numbers(records))

        def replace(name: str) -> None:
            if name == "data/part-3.tfrecord":
                store.after_read = lambda name: None
                store.put(records[3], encode(tmp_path, range(40, 104)), UPDATED)

        store.after_read = replace
        rows(dataset)
        until(lambda: service.metric("writes_dropped") == 1, "the part with two generations is kept")
        now = rows(numbers(records, nothing))
        for _ in range(2):
            assert rows(dataset) == now


def test_nothing_is_kept_while_versions_are_not_known(tmp_path, store, records):
    local = rows(numbers(records, nothing))
    with Service(tmp_path) as service:
        dataset = service.read(numbers(records))
        store.refuses = True
        assert rows(dataset) == local
        assert service.segments() == []
        until(lambda: service.metric("parts_unversioned") >= len(records), "no worker counts the parts that are not written")
        assert service.metric("writes_dropped") == 0
        store.refuses = False
        for _ in range(2):
            assert rows(dataset) == local
        assert service.job()["cache"]["state"] == "used"
        # A segment stays valid while nobody can say which version its file has.
        store.refuses = True
        assert rows(dataset) == local
        store.refuses = False
        store.read.clear()
        assert rows(dataset) == local and store.read == []
        assert service.metric("segments_invalid") == 0


def test_a_vocabulary_in_the_store_may_change(tmp_path, store):
    names = [f"{BUCKET}numbers-{k}.txt" for k in range(4)]
    for k, name in enumerate(names):
        store.put(name, "".join(f"{i}\n" for i in range(10 * k, 10 * k + 10)).encode(), UPDATED)

    index = tf.lookup.TextFileIndex

    def build(step):
        words = tf.lookup.TextFileInitializer(f"{BUCKET}words.txt", tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
        table = tf.lookup.StaticHashTable(words, -1)
        return D.from_tensor_slices(names).interleave(tf.data.TextLineDataset).map(lambda x: 100 * number(x) + table.lookup(x)).apply(step())

    def vocabulary(first: int) -> bytes:
        return "".join(f"{i}\n" for i in [*range(first, 40), *range(first)]).encode()

    with Service(tmp_path) as service:
        store.put(f"{BUCKET}words.txt", vocabulary(0), UPDATED)
        dataset = service.read(build(pecan.cache))
        for first in (0, 7):
            store.put(f"{BUCKET}words.txt", vocabulary(first), UPDATED)
            for _ in range(3):
                assert rows(dataset) == [100 * i + (i - first) % 40 for i in range(40)]
        assert service.job()["cache"]["state"] == "used"
