"""Tables that are initialized from files have the contents of the files at the job's creation, also on workers that read them before."""

from __future__ import annotations

import pathlib

import pecan
import pytest
import tensorflow as tf
from test_leaks import MIB, Resources

D = tf.data.Dataset
WORDS = [chr(97 + i % 5) for i in range(40)]


def write(path: pathlib.Path, vocabulary: str) -> None:
    """Replaces the file atomically. A reader that has the old file open keeps the old contents."""
    new = path.with_suffix(".new")
    new.write_text("".join(word + "\n" for word in vocabulary))
    new.replace(path)


def numbered(path: pathlib.Path, vocabulary: str) -> D:
    """Writes a vocabulary file, and returns a dataset of the words' numbers in it."""
    write(path, vocabulary)
    index = tf.lookup.TextFileIndex
    initializer = tf.lookup.TextFileInitializer(str(path), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    return D.from_tensor_slices(WORDS).map(tf.lookup.StaticHashTable(initializer, -1).lookup)


def numbered_inside(path: pathlib.Path, vocabulary: str, name: str) -> D:
    """Like `numbered`, but the step's function creates the table under a given name."""
    write(path, vocabulary)

    def number(word: tf.Tensor) -> tf.Tensor:
        raw = tf.raw_ops
        table = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name=name)
        fill = raw.InitializeTableFromTextFileV2(table_handle=table, filename=str(path), key_index=-2, value_index=-1)
        with tf.control_dependencies([fill]):
            return raw.LookupTableFindV2(table_handle=table, keys=word, default_value=tf.constant(-1, tf.int64))

    return D.from_tensor_slices(WORDS).map(number)


def numbers(dataset: D, target: str) -> list[int]:
    return [int(x) for x in dataset.apply(pecan.distribute(target, deterministic=True))]


@pytest.fixture(scope="module")
def cluster():
    """One worker, and those that the tests add: each test meets workers that have read tables before."""
    with pecan.LocalCluster(workers=1) as cluster:
        yield cluster


# The first two have the same size. TensorFlow takes such tables as equal.
VOCABULARIES = ("abc", "cba", "dcbae")


def test_old_and_new_workers_see_the_current_file(cluster, tmp_path):
    """The test has no local run to compare with, because TensorFlow shares tables in a process by the file's name."""
    for vocabulary in VOCABULARIES:
        dataset = numbered(tmp_path / "words.txt", vocabulary)
        assert numbers(dataset, cluster.target) == [vocabulary.find(word) for word in WORDS]
        cluster.add_workers()


def test_named_tables_of_functions_see_the_current_file(cluster, tmp_path):
    for vocabulary in VOCABULARIES:
        dataset = numbered_inside(tmp_path / "words.txt", vocabulary, "words")
        assert numbers(dataset, cluster.target) == [vocabulary.find(word) for word in WORDS]
        cluster.add_workers()


def test_tables_of_the_same_name_are_separate_in_two_datasets(cluster, tmp_path):
    """They are separate in two jobs of one worker, and in two steps of one dataset."""
    first, second = (numbered_inside(tmp_path / f"{v}.txt", v, "words") for v in VOCABULARIES[:2])
    both = D.zip(first, second).map(lambda x, y: 10 * x + y)
    want = {v: [v.find(word) for word in WORDS] for v in VOCABULARIES[:2]}
    assert numbers(first, cluster.target) == want["abc"]
    assert numbers(second, cluster.target) == want["cba"]
    assert numbers(both, cluster.target) == [10 * x + y for x, y in zip(want["abc"], want["cba"])]


def test_cached_elements_use_the_current_file(cluster, tmp_path):
    for vocabulary in VOCABULARIES:
        dataset = numbered(tmp_path / "words.txt", vocabulary).apply(pecan.cache()).map(lambda x: x + 0)
        for _ in range(2):
            assert numbers(dataset, cluster.target) == [vocabulary.find(word) for word in WORDS]


def test_a_file_that_changes_between_epochs_loses_no_elements(cluster, tmp_path):
    """A stream may see the file's old or new contents."""
    path = tmp_path / "words.txt"
    dataset = numbered(path, "abc").map(lambda x: (x, tf.fill([20_000], x)))
    read = dataset.apply(pecan.distribute(cluster.target, deterministic=True))
    for vocabulary in ("cba", "abcde"):
        elements = iter(read)
        next(elements)
        write(path, vocabulary)
        cluster.add_workers()
        assert sum(1 for _ in elements) == len(WORDS) - 1


# A worker keeps the last four sets of tables, because their jobs may come back.
LARGE = 100_000
CHANGES = 15


def test_tables_are_freed_when_no_job_uses_them(tmp_path):
    """They are not freed earlier: one job continues to read with the first table."""
    path = tmp_path / "words.txt"

    def found(vocabulary: int, count: int) -> D:
        first = vocabulary * LARGE
        new = path.with_suffix(".new")
        new.write_text("\n".join(map(str, range(first, first + LARGE))))
        new.replace(path)
        index = tf.lookup.TextFileIndex
        initializer = tf.lookup.TextFileInitializer(str(path), tf.int64, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
        table = tf.lookup.StaticHashTable(initializer, -1)
        return D.range(first, first + count).map(table.lookup)

    config = pecan.WorkerConfig("127.0.0.1:1", window_bytes=32 * MIB)
    with pecan.LocalCluster(1, worker=config) as cluster:
        worker = cluster.workers[0].process.pid
        # More elements than fit into the windows of the worker and the trainer.
        wide = found(0, 1000).map(lambda x: tf.fill([50_000], x))
        long = iter(wide.apply(pecan.distribute(cluster.target, deterministic=True, max_outstanding_bytes=32 * MIB)))
        # Elements come from all streams in turn. A stream that is opened after the first change may see the change.
        read = [int(next(long)[0]) for _ in range(64)]
        before = 0
        for number in range(1, CHANGES + 10):
            if number == 10:
                before = Resources.of(worker).memory
            assert numbers(found(number, 3), cluster.target) == [0, 1, 2]
        # Each table has 4 MB.
        assert Resources.of(worker).memory - before < 40 * MIB
        read += [int(element[0]) for element in long]
        assert sorted(read) == list(range(1000))
