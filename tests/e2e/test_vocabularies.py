"""Tables that are filled from files hold what the files hold when the job is made, also on workers that have read them before."""

from __future__ import annotations

import pathlib

import pecan
import tensorflow as tf
from test_leaks import MIB, Held

D = tf.data.Dataset
WORDS = [chr(97 + i % 5) for i in range(40)]


def write(path: pathlib.Path, vocabulary: str) -> None:
    """Puts a whole new file there: whoever opens it in between finds the old one."""
    new = path.with_suffix(".new")
    new.write_text("".join(word + "\n" for word in vocabulary))
    new.replace(path)


def numbered(path: pathlib.Path, vocabulary: str) -> D:
    """The numbers of the words under a vocabulary, which is written first."""
    write(path, vocabulary)
    index = tf.lookup.TextFileIndex
    initializer = tf.lookup.TextFileInitializer(str(path), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    return D.from_tensor_slices(WORDS).map(tf.lookup.StaticHashTable(initializer, -1).lookup)


def numbered_inside(path: pathlib.Path, vocabulary: str, name: str) -> D:
    """The same with a table that the step's function makes for itself, by a name of its own choice."""
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


# The second is as long as the first: TensorFlow takes such tables for equal.
VOCABULARIES = ("abc", "cba", "dcbae")


def test_old_and_new_workers_see_the_file_as_it_is(tmp_path):
    """A dataset of the trainer's own process is no measure here: TensorFlow shares its tables by the name of the file."""
    with pecan.LocalCluster(workers=1) as cluster:
        for vocabulary in VOCABULARIES:
            dataset = numbered(tmp_path / "words.txt", vocabulary)
            assert numbers(dataset, cluster.target) == [vocabulary.find(word) for word in WORDS]
            cluster.add_workers()


def test_tables_that_functions_make_by_name_see_the_file_as_it_is(tmp_path):
    with pecan.LocalCluster(workers=1) as cluster:
        for vocabulary in VOCABULARIES:
            dataset = numbered_inside(tmp_path / "words.txt", vocabulary, "words")
            assert numbers(dataset, cluster.target) == [vocabulary.find(word) for word in WORDS]
            cluster.add_workers()


def test_tables_of_one_name_in_two_datasets_do_not_meet(tmp_path):
    """Neither in two jobs of a worker, nor in two steps of one dataset."""
    with pecan.LocalCluster(workers=1) as cluster:
        first, second = (numbered_inside(tmp_path / f"{v}.txt", v, "words") for v in VOCABULARIES[:2])
        both = D.zip(first, second).map(lambda x, y: 10 * x + y)
        want = {v: [v.find(word) for word in WORDS] for v in VOCABULARIES[:2]}
        assert numbers(first, cluster.target) == want["abc"]
        assert numbers(second, cluster.target) == want["cba"]
        assert numbers(both, cluster.target) == [10 * x + y for x, y in zip(want["abc"], want["cba"])]


def test_what_is_cached_is_made_with_the_file_as_it_is(tmp_path):
    with pecan.LocalCluster(workers=1) as cluster:
        for vocabulary in VOCABULARIES:
            dataset = numbered(tmp_path / "words.txt", vocabulary).apply(pecan.cache()).map(lambda x: x + 0)
            for _ in range(2):
                assert numbers(dataset, cluster.target) == [vocabulary.find(word) for word in WORDS]


def test_a_file_that_changes_between_epochs_loses_no_elements(tmp_path):
    """Which of its states a stream sees is not promised then."""
    path = tmp_path / "words.txt"
    with pecan.LocalCluster(workers=1) as cluster:
        dataset = numbered(path, "abc").map(lambda x: (x, tf.fill([20_000], x)))
        read = dataset.apply(pecan.distribute(cluster.target, deterministic=True))
        for vocabulary in ("cba", "abcde"):
            elements = iter(read)
            next(elements)
            write(path, vocabulary)
            cluster.add_workers()
            assert sum(1 for _ in elements) == len(WORDS) - 1


# A worker keeps four sets of tables for jobs that come back.
LARGE = 100_000
CHANGES = 15


def test_tables_go_when_no_job_uses_them(tmp_path):
    """And not before: one job reads on with the first of them."""
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
        # More than the worker and the trainer have room for ahead.
        wide = found(0, 1000).map(lambda x: tf.fill([50_000], x))
        long = iter(wide.apply(pecan.distribute(cluster.target, deterministic=True, max_outstanding_bytes=32 * MIB)))
        # Elements come from all streams in turn. A stream that is opened after the first change may see the change.
        read = [int(next(long)[0]) for _ in range(64)]
        before = 0
        for number in range(1, CHANGES + 10):
            if number == 10:
                before = Held.of(worker).memory
            assert numbers(found(number, 3), cluster.target) == [0, 1, 2]
        # Each of them has 4 MB.
        assert Held.of(worker).memory - before < 40 * MIB
        read += [int(element[0]) for element in long]
        assert sorted(read) == list(range(1000))
