"""With `deterministic=True` a seed gives one sequence of bytes, for any number of workers and after any death of a worker."""

from __future__ import annotations

import os
import signal

import oracle
import pecan
import pytest
import tensorflow as tf
from soak import cases

D = tf.data.Dataset
AUTO = tf.data.AUTOTUNE
EPOCHS = 2
# The faults come after this many elements of an epoch. Each pipeline has more elements.
KILL_AT, ADD_AT = 3, 6


def _image(record: tf.Tensor) -> tf.Tensor:
    numbers = tf.strings.to_hash_bucket_fast(tf.fill([48], record) + tf.as_string(tf.range(48)), 256)
    return tf.cast(tf.reshape(numbers, [4, 4, 3]), tf.float32)


def _augment(image: tf.Tensor) -> tf.Tensor:
    return tf.image.random_crop(tf.image.random_flip_left_right(image), [3, 3, 3])


def _training(files):
    names = D.from_tensor_slices(files.records).shuffle(6)
    records = names.interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTO, deterministic=False)
    images = records.shuffle(16).map(_image, num_parallel_calls=AUTO).map(_augment, num_parallel_calls=AUTO)
    return images.batch(3).prefetch(AUTO)


def _noise(i):
    return i, tf.random.normal([2])


PIPELINES = {
    "training": _training,
    "a random filter": lambda files: D.range(120).filter(lambda i: tf.random.uniform([]) > 0.4),
    "a filter by random values": lambda files: (
        D.range(120).map(_noise, num_parallel_calls=4).filter(lambda i, x: x[0] > -0.5).batch(3)
    ),
    "two random steps": lambda files: (
        D.range(60).map(_noise, num_parallel_calls=4)
        .map(lambda i, x: (i, x, tf.random.uniform([], 0, 1000, tf.int32)), num_parallel_calls=4)
    ),
    "random values that cannot be keyed": lambda files: (
        D.range(60).map(lambda i: (i, tf.random.gamma([], 2.0)), num_parallel_calls=4)
    ),
    "files": lambda files: D.from_tensor_slices(files.records).flat_map(tf.data.TFRecordDataset).shuffle(20),
    "zip": lambda files: D.zip((D.range(60).shuffle(60), D.range(60).map(_noise, num_parallel_calls=4))).batch(4),
    "repeat": lambda files: D.range(20).shuffle(20).map(_noise, num_parallel_calls=4).repeat(3).batch(4),
    "batches with a closing stream": lambda files: D.range(120).shuffle(20).filter(lambda i: i % 3 > 0).batch(7).map(lambda i: i + 1),
    "repeated": lambda files: D.range(60).map(_noise, num_parallel_calls=4).repeat(2),
    "many streams": lambda files: D.range(210).shuffle(60).map(_noise, num_parallel_calls=4).batch(2),
    "many closing streams": lambda files: D.range(150).shuffle(40).filter(lambda i: i % 3 > 0).batch(7).map(lambda i: i + 1),
}  # fmt: skip
# The other pipelines have as many streams as the plan chooses, which are at most 16. Workers have two slots each.
STREAMS = {"many streams": 100, "many closing streams": 50}


def _read(name, files, target, *, seed: int = 7, at=None) -> list[list]:
    """Reads two epochs, and returns the elements of each in order. `at` is called after each element."""
    options = dict(deterministic=True, seed=seed, streams=STREAMS.get(name, "auto"))
    dataset = PIPELINES[name](files).apply(pecan.distribute(target, **options))
    result = []
    for epoch in range(EPOCHS):
        elements = []
        for element in dataset:
            elements.append(oracle.fingerprint(element))
            if at is not None:
                at(epoch, len(elements))
        result.append(elements)
    return result


@pytest.fixture(scope="module")
def expected(cluster, files) -> dict[str, list[list]]:
    """Each pipeline's elements with two workers and no faults."""
    return {name: _read(name, files, cluster.target) for name in PIPELINES}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_second_run_is_the_same_and_other_seeds_and_epochs_are_not(cluster, files, expected, name):
    assert all(len(epoch) > ADD_AT for epoch in expected[name])
    assert expected[name][0] != expected[name][1]
    assert _read(name, files, cluster.target) == expected[name]
    assert _read(name, files, cluster.target, seed=8) != expected[name]


# The expected elements come from two workers, and the scenarios of tests/faults compare three workers with one.
@pytest.mark.parametrize("workers", cases([1, 3, 7], soak=[1, 3]))
def test_the_number_of_workers_changes_nothing(files, expected, workers):
    with pecan.LocalCluster(workers=workers) as cluster:
        for name in PIPELINES:
            assert _read(name, files, cluster.target) == expected[name], name


class _Faults:
    """Kills and adds workers while a dataset is read."""

    def __init__(self, cluster: pecan.LocalCluster) -> None:
        self.cluster = cluster
        self.killed = self.added = 0

    def __call__(self, epoch: int, elements: int) -> None:
        if elements == KILL_AT:
            os.kill(self.cluster.workers.pop(0).process.pid, signal.SIGKILL)
            self.killed += 1
        elif elements == ADD_AT:
            self.cluster.add_workers(1)
            self.added += 1


@pytest.fixture(scope="module")
def mortal():
    """Two workers. Each one that a test kills is replaced before the test ends."""
    with pecan.LocalCluster(workers=2) as cluster:
        yield cluster


@pytest.mark.parametrize("name", PIPELINES)
def test_workers_that_are_killed_and_added_change_nothing(mortal, files, expected, name):
    faults = _Faults(mortal)
    assert _read(name, files, mortal.target, at=faults) == expected[name]
    assert (faults.killed, faults.added) == (EPOCHS, EPOCHS)


def test_random_steps_after_a_cached_step_draw_by_index_although_the_cache_has_none(files, tmp_path):
    records = D.from_tensor_slices(files.records).interleave(tf.data.TFRecordDataset).map(_image)
    noisy = records.apply(pecan.cache()).map(lambda x: (x, tf.random.normal([2])), num_parallel_calls=4).batch(4)
    with pecan.DispatchServer() as dispatcher:
        config = pecan.WorkerConfig(dispatcher.target, cache_dir=tmp_path)
        with pecan.WorkerServer(config), pecan.WorkerServer(config):
            first, second = (
                noisy.apply(pecan.distribute(dispatcher.target, deterministic=True, seed=7)) for _ in range(2)
            )
            runs = [[[oracle.fingerprint(e) for e in dataset] for _ in range(EPOCHS)] for dataset in (first, second)]
    assert list(tmp_path.rglob("*.seg"))
    # The second run reads what the first one left in the cache.
    assert runs[0] == runs[1] and runs[0][0] != runs[0][1]
