"""Trainers use a distributed dataset like any tf.data.Dataset."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import re
import threading
import time

import numpy as np
import pecan
import pytest
import tensorflow as tf
from pecan._src.client import native, session

D = tf.data.Dataset


def _distributed(cluster, dataset, **options):
    return dataset.apply(pecan.distribute(cluster.target, **options))


def _link(cluster):
    return session.connect(cluster.target.removeprefix("pecan://"), 10)


def _eventually(what, timeout_s=20.0):
    """Waits until a condition holds, and fails at the deadline."""
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "the condition did not hold in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def examples():
    values = np.random.default_rng(1).random((1000, 8), dtype=np.float32)
    return values, (values.sum(1) > 4).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8,)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy")
    return model


def test_keras_fits_evaluates_and_predicts(cluster, examples, model):
    dataset = _distributed(cluster, D.from_tensor_slices(examples).shuffle(100).batch(32))
    history = model.fit(dataset, epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    assert history.history["loss"][2] < history.history["loss"][0]
    model.fit(dataset.repeat(), epochs=2, steps_per_epoch=40, verbose=0)
    assert model.evaluate(dataset, verbose=0) > 0
    assert len(model.predict(dataset.map(lambda x, y: x), verbose=0)) == 1000


def test_a_strategy_reads_every_row(cluster, examples):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    dataset = _distributed(cluster, D.from_tensor_slices(examples).batch(32))
    distributed = strategy.experimental_distribute_dataset(dataset)
    rows = sum(int(part.shape[0]) for batch in distributed for part in strategy.experimental_local_results(batch[0]))
    assert rows == 1000


def test_no_strategy_shards_it_again(cluster):
    dataset = _distributed(cluster, D.range(10))
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


def test_a_tf_function_reads_a_dataset(cluster):
    dataset = _distributed(cluster, D.range(100).map(lambda i: (i, tf.as_string(i))).batch(7))

    @tf.function
    def total():
        sum_ = tf.constant(0, tf.int64)
        for numbers, texts in dataset:
            sum_ += tf.reduce_sum(numbers) + tf.cast(tf.size(texts), tf.int64)
        return sum_

    assert [int(total()), int(total())] == [4950 + 100] * 2


def test_further_steps_before_and_after_distribute(cluster):
    dataset = (
        _distributed(cluster, D.range(30).repeat(2).map(lambda i: i + 1)).map(lambda i: i * 2).batch(7).prefetch(2)
    )
    assert sorted(np.concatenate(list(dataset.as_numpy_iterator()))) == sorted([2 * (i + 1) for i in range(30)] * 2)
    repeated = _distributed(cluster, D.range(30)).repeat(3)
    assert sorted(repeated.as_numpy_iterator()) == sorted([*range(30)] * 3)
    endless = _distributed(cluster, D.range(30).repeat())
    assert len(list(endless.take(100))) == 100


def test_two_iterators_at_once_each_see_everything(cluster):
    dataset = _distributed(cluster, D.range(100).batch(5))
    first, second = iter(dataset), iter(dataset)
    pairs = list(zip(first, second))
    assert len(pairs) == 20
    for side in (0, 1):
        assert sorted(np.concatenate([pair[side].numpy() for pair in pairs])) == list(range(100))


def test_threads_that_read_one_iterator_share_its_elements(cluster):
    """L13: each element goes to one thread, and every thread sees the end."""
    for dataset in (D.range(4000), D.range(4000).map(lambda i: (i, tf.as_string(i)))):
        iterator = iter(_distributed(cluster, dataset))
        first = threading.Barrier(8)

        def read(iterator=iterator, first=first):
            found = [next(iterator)]
            first.wait(60)
            return found + list(iterator)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            parts = [job.result(120) for job in [pool.submit(read) for _ in range(8)]]
        numbers = [int(e[0] if isinstance(e, tuple) else e) for part in parts for e in part]
        assert sorted(numbers) == list(range(4000))


@pytest.mark.parametrize("steps", [lambda d: d, lambda d: d.map(tf.as_string)], ids=["blocks", "elements"])
def test_another_thread_runs_while_next_waits(steps):
    """L13: next() waits for a worker that another Python thread starts after some time."""
    ticks = 0
    with pecan.LocalCluster(workers=0) as cluster:
        iterator = iter(_distributed(cluster, steps(D.range(10)), deterministic=True))

        def tick():
            nonlocal ticks
            while ticks < 100:
                time.sleep(0.01)
                ticks += 1
            cluster.add_workers()

        thread = threading.Thread(target=tick)
        thread.start()
        assert next(iterator).numpy() in (0, b"0")
        assert ticks == 100
        assert len(list(iterator)) == 9
        thread.join()


def test_a_dataset_zipped_with_itself(cluster):
    dataset = _distributed(cluster, D.range(50), deterministic=True)
    assert [(int(a), int(b)) for a, b in D.zip(dataset, dataset)] == [(i, i) for i in range(50)]


def test_no_autotune_thread_runs_for_steps_after_distribute(cluster):
    """Deleting an iterator waits for that thread, which TensorFlow may fail to wake for a minute."""
    tuned = tf.data.Options()
    tuned.autotune.enabled = True

    def threads(dataset):
        before = len(os.listdir("/proc/self/task"))
        iterators = [iter(dataset) for _ in range(3)]
        assert [int(next(iterator)) for iterator in iterators]
        return len(os.listdir("/proc/self/task")) - before

    dataset = _distributed(cluster, D.range(10), deterministic=True)
    assert list(dataset.as_numpy_iterator()) == list(range(10))
    # With autotuning each iterator has at least one more thread.
    assert threads(dataset.with_options(tuned)) - threads(dataset) >= 3


@pytest.mark.parametrize("dataset", [D.range(10), D.range(10).map(tf.strings.as_string)], ids=["blocks", "elements"])
def test_tensorflow_skips_function_preparation_at_every_iter(cluster, dataset):
    """With this attribute TensorFlow skips the placement of devices and all optimizations. Pecan's functions need neither."""
    graph = tf.compat.v1.GraphDef.FromString(_distributed(cluster, dataset)._as_serialized_graph().numpy())
    functions = {function.signature.name: function for function in graph.library.function}
    # The functions that run at every iter() or for every element.
    opened = {node.attr["f"].func.name for node in graph.node if node.op == "FlatMapDataset"}
    called = {
        node.attr[name].func.name
        for function in opened
        for node in functions[function].node_def
        for name in ("f", "predicate")
        if name in node.attr
    }
    ours = [functions[name] for name in opened | called]
    operations = {node.op for function in ours for node in function.node_def}
    assert "PecanOpen" in operations
    assert operations & {"PecanNextBlock", "PecanNext"}
    for function in ours:
        assert function.attr["experimental_ints_on_device"].b, function.signature.name


def test_an_iterator_outlives_its_dataset(cluster):
    iterator = iter(_distributed(cluster, D.range(100)).prefetch(1))
    gc.collect()
    assert sorted(int(i) for i in iterator) == list(range(100))


def test_trainers_that_share_a_job_share_the_elements(cluster):
    # More elements than TensorFlow and Pecan prefetch for the first trainer, so that some remain for the second.
    count = 20_000
    parts = [_distributed(cluster, D.range(count), job_name="shared-two") for _ in range(2)]
    iterators = [iter(part) for part in parts]
    seen = [int(next(iterator)) for iterator in iterators]
    for iterator in iterators:
        seen += [int(i) for i in iterator]
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_trainer_that_leaves_a_shared_job_loses_no_elements(cluster, mode):
    # With small rows TensorFlow could have dequeued many at once.
    count = 3000
    leaver, stayer = (
        iter(_distributed(cluster, D.range(count), job_name=f"left-{mode}", processing_mode=mode)) for _ in range(2)
    )
    seen = [int(next(stayer)), *(int(next(leaver)) for _ in range(5))]
    del leaver
    gc.collect()
    seen += [int(i) for i in stayer]
    assert sorted(seen) == list(range(count))


def test_trainers_that_race_for_streams_lose_and_repeat_nothing(cluster):
    # Two names of one host give two sessions, like two trainers.
    port = cluster.target.rpartition(":")[2]
    for number in range(10):
        parts = [
            D.range(2000).apply(pecan.distribute(f"{host}:{port}", job_name=f"race-{number}"))
            for host in ("127.0.0.1", "localhost")
        ]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            passes = list(pool.map(lambda part: [list(part.as_numpy_iterator()) for _ in range(3)], parts))
        for mine, theirs in zip(*passes):
            assert sorted(mine + theirs) == list(range(2000))


FAILING = {
    "blocks": (lambda dataset: dataset, 1),
    "elements": (lambda dataset: dataset.map(lambda x: (x, tf.as_string(x))), 1),
    "parallel steps after": (lambda dataset: dataset.map(lambda x: (x, x), num_parallel_calls=2).prefetch(3), 1),
    "a batch after": (lambda dataset: dataset.batch(4), 4),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_element_is_an_error_at_its_position(cluster, name):
    """G7: the error names the user's step and the element's index, in every pass. The next element follows."""
    after, rows = FAILING[name]
    job_name = "failing-" + name.replace(" ", "-")

    def invert(i):
        return tf.debugging.check_numerics(1.0 / tf.cast(i - 9, tf.float32), "nine")

    dataset = after(D.range(24).map(invert, name="my_inverse"))
    dataset = _distributed(cluster, dataset, deterministic=True, job_name=job_name)
    # In mode deterministic the streams take turns.
    streams = next(j for j in _link(cluster).status()["jobs"] if j.get("name") == job_name)["plan"]["num_streams"]
    messages = []
    for _ in range(2):
        found, iterator = [], iter(dataset)
        while True:
            try:
                element = next(iterator)
                found.append(np.ravel(element[0] if isinstance(element, tuple) else element).tolist())
            except tf.errors.InvalidArgumentError as error:
                found.append(None)
                messages.append(str(error))
            except StopIteration:
                break
        # The error comes at its position. A batch fails with its first failing row, and the rows after that row come next.
        assert found.index(None) == 9 // rows and found.count(None) == 1
        values = [value for part in found if part is not None for value in part]
        wanted = [float(np.float32(1) / np.float32(i - 9)) for i in range(24) if i not in range(9 // rows * rows, 10)]
        assert (sorted(values) if rows > 1 else values) == (sorted(wanted) if rows > 1 else wanted)
    assert len(messages) == 2
    for message in messages:
        assert "my_inverse" in message and "nine" in message and "[pecan:ELEMENT_FAILED]" in message
        stream, index = (int(re.search(rf"{word} (\d+) ", message)[1]) for word in ("stream", "element"))
        assert (stream, index) == (9 // rows % streams, 9 // rows // streams)


def test_ignore_errors_reaches_the_end(cluster):
    def make(text):
        dataset = D.range(40).map(lambda i: tf.debugging.check_numerics(1.0 / tf.cast(i % 4, tf.float32), "zero"))
        return dataset.map(tf.as_string) if text else dataset

    for text in (False, True):
        assert len(list(_distributed(cluster, make(text)).ignore_errors())) == 30


@pytest.mark.parametrize("text", [False, True], ids=["blocks", "elements"])
@pytest.mark.parametrize(
    "after",
    [
        lambda d: d,
        lambda d: d.repeat(),
        lambda d: d.prefetch(2),
        lambda d: d.cache(),
        lambda d: d.ignore_errors(),
        lambda d: d.batch(3).ignore_errors().repeat(),
    ],
    ids=["nothing", "repeat", "prefetch", "cache", "ignore_errors", "all"],
)
def test_an_error_that_ends_a_pass_is_not_taken_as_its_end(cluster, after, text):
    """Otherwise the next epoch would start, and steps such as cache() would take a part of a pass for the whole pass."""
    local = D.range(20).map(tf.as_string) if text else D.range(20)
    dataset = after(_distributed(cluster, local.apply(tf.data.experimental.assert_cardinality(30))))
    iterator, given, errors = iter(dataset), 0, []
    while len(errors) < 4:
        try:
            given += len(np.ravel(next(iterator)))
        except (tf.errors.FailedPreconditionError, tf.errors.CancelledError) as error:
            errors.append(error)
    assert given <= 20
    assert all("[pecan:CARDINALITY]" in str(error) for error in errors)
    assert isinstance(errors[-1], tf.errors.CancelledError)


def test_leaving_an_epoch_early_frees_everything(cluster):
    link = _link(cluster)
    dataset = _distributed(cluster, D.range(1000).map(lambda i: tf.fill([100_000], i)))
    for element in dataset:
        assert element.shape == (100_000,)
        break
    del element, dataset
    _eventually(lambda: (gc.collect(), link.stats())[1]["live"] == 0)
    _eventually(lambda: link.stats()["pool"]["Buffers"] == 0)


def test_tensors_outlive_their_iterator(cluster):
    kept = list(_distributed(cluster, D.range(5).map(lambda i: tf.fill([100_000], i)), deterministic=True))
    gc.collect()
    assert [int(tf.reduce_min(t)) for t in kept] == [int(tf.reduce_max(t)) for t in kept] == list(range(5))


def test_there_is_one_go_runtime(cluster):
    _distributed(cluster, D.range(1))
    with open("/proc/self/maps") as file:
        files = {line.split()[-1] for line in file if line.rstrip().endswith(".so") or ".so." in line}
    with_go = [name for name in files if os.path.exists(name) and _has_go(name)]
    assert with_go == [str(native.load().path)]


def _has_go(name):
    with open(name, "rb") as file:
        return b"\xff Go buildinf:" in file.read()
