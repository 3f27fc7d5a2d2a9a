"""The step cache(): later epochs do not run the steps upstream of it."""

from __future__ import annotations

import time

import cache_service
import numpy as np
import oracle
import pecan
import pytest
import tensorflow as tf
from cache_service import D, Service, dense, loose, nothing, number, numbers, rows, until
from pecan._src.client import session
from soak import cases


@pytest.fixture
def records(tmp_path):
    return cache_service.write_records(tmp_path / "data")


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_cache_has_a_segment_for_each_of_many_streams(tmp_path, deterministic):
    local = rows(D.range(180).map(lambda x: 3 * x + 1))
    with Service(tmp_path) as service:
        # The source is divided after take(), so it has no parts.
        cached = D.range(360).take(180).map(lambda x: 3 * x).apply(pecan.cache()).map(lambda x: x + 1)
        dataset = service.read(cached, deterministic=deterministic, streams=60)
        first = [int(x) for x in dataset]
        assert sorted(first) == local
        assert (service.job()["cache"]["state"], len(service.segments())) == ("committed", 60)
        again = [int(x) for x in dataset]
        assert service.job()["cache"]["state"] == "used"
        assert again == first if deterministic else sorted(again) == local
        if not deterministic:
            # Without the option, the next job would have 16 streams, and no use for this cache. The job closes when its
            # dataset is deleted.
            unasked = service.read(cached)
            assert sorted(int(x) for x in unasked) == local
            (job,) = (job for job in service.status()["jobs"] if not job["options"].get("streams"))
            assert (job["cache"]["state"], job["plan"]["num_streams"]) == ("used", 60)
            assert "The cache that an earlier job wrote" in job["plan"]["streams_why"]


@pytest.mark.parametrize(("workers", "deterministic"), cases([(1, False), (3, False), (2, True)], soak=[(1, False)]))
def test_the_second_epoch_skips_the_steps_upstream(tmp_path, records, workers, deterministic):
    local = rows(numbers(records, nothing))
    with Service(tmp_path, workers) as service:
        dataset = service.read(numbers(records), deterministic=deterministic)
        assert rows(dataset) == local
        first = service.produced()
        assert first["TakeDataset"] == len(local)
        assert service.job()["cache"]["state"] == "committed"
        assert len(service.segments()) == service.job()["plan"]["num_streams"]
        assert rows(dataset) == local and rows(dataset) == local
        third = service.produced()
        assert service.job()["cache"]["state"] == "used"
        below = ("TensorSliceDataset", "InterleaveDataset", "TakeDataset")
        assert {op: third[op] for op in below} == {op: first[op] for op in below}
        # One map is upstream of the step, the other downstream.
        assert (first["MapDataset"], third["MapDataset"]) == (2 * len(local), 4 * len(local))
        until(lambda: service.metric("bytes_read") > 0, "no worker counts the bytes read")
        assert service.metric("segments_invalid") == 0


def described(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
        "id": x, "text": tf.strings.as_string(x), "texts": tf.repeat([tf.strings.as_string(x)], x % 3), "half": tf.cast(x, tf.float16),
        "uneven": tf.range(x % 5), "flag": x % 2 == 0, "complex": tf.complex(tf.cast(x, tf.float32), 1.0), "empty": tf.zeros([0, 3]),
    }


# Positions of the step, and how much of the elements local execution promises.
PIPELINES = {
    "at the end": (lambda names, step: D.range(100).map(lambda x: x * x).apply(step()), "elements"),
    "every dtype": (lambda names, step: D.range(40).map(described).apply(step()).map(lambda e: e), "elements"),
    "ragged and sparse values": (lambda names, step: D.range(60).map(loose).apply(step()).map(dense), "elements"),
    "ragged and sparse batches": (lambda names, step: D.range(60).map(loose).batch(4).apply(step()).map(dense), "elements"),
    "small vectors": (lambda names, step: D.range(500).map(lambda x: tf.fill([7], x)).apply(step()).map(lambda x: x + 1).batch(13), "elements"),
    "large elements": (lambda names, step: D.range(20).map(lambda x: tf.fill([100_000], x)).apply(step()).map(lambda x: x + 1), "elements"),
    "one stream": (lambda names, step: D.range(60).scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x)).apply(step()).map(lambda x: 2 * x), "elements"),
    "after a batch": (lambda names, step: D.range(103).map(lambda x: 2 * x).batch(10).apply(step()).map(lambda x: x + 1), "elements"),
    "remainders joined": (lambda names, step: D.range(103).filter(lambda x: x % 3 > 0).apply(step()).batch(10), "rows"),
    "steps after the batch": (
        lambda names, step: D.range(103).filter(lambda x: x % 3 > 0).apply(step()).batch(10).map(lambda x: x + 1), "rows"),
    "filtered downstream": (lambda names, step: D.range(103).apply(step()).filter(lambda x: x % 3 > 0).flat_map(lambda x: D.range(x % 4)), "elements"),
    "take downstream": (lambda names, step: D.range(90).map(lambda x: 2 * x).apply(step()).take(50).map(lambda x: x + 1), "elements"),
    "skip downstream": (lambda names, step: D.range(90).map(lambda x: 2 * x).apply(step()).map(lambda x: x + 1).skip(40), "elements"),
    "an endless repeat, and take downstream": (lambda names, step: D.range(9).repeat().apply(step()).take(50), "elements"),
    "zip downstream": (
        lambda names, step: D.zip((D.range(90).map(lambda x: 2 * x), D.range(80).map(lambda x: 3 * x).apply(step()))).map(lambda x, y: x + y), "elements"),
    "zip of batches downstream": (
        lambda names, step: D.zip((D.range(80).map(lambda x: 2 * x).batch(4).apply(step()), D.range(20).map(lambda x: 3 * x))), "elements"),
    "enumerate downstream": (lambda names, step: D.range(80).map(lambda x: 2 * x).apply(step()).enumerate().map(lambda i, x: i + x), "elements"),
    "repeat downstream": (lambda names, step: D.range(50).map(lambda x: 2 * x).apply(step()).map(lambda x: x + 1).repeat(3), "elements"),
    "a tf.data cache downstream": (lambda names, step: D.range(50).map(lambda x: 2 * x).apply(step()).cache().map(lambda x: x + 1), "elements"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One service for all tests that do not change it."""
    with Service(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest.mark.parametrize("name", PIPELINES)
def test_every_epoch_has_the_elements_of_a_local_run(shared, records, name):
    build, how = PIPELINES[name]
    local = oracle.run(build(records, nothing))
    dataset = shared.read(build(records, pecan.cache))
    for _ in range(3):
        oracle.compare(oracle.run(dataset), local, how)
    assert shared.job()["cache"]["state"] == "used", shared.job()["plan"]["reasons"]


def test_random_steps_upstream_repeat_their_values_and_those_downstream_do_not(shared, caplog):
    def build(step):
        drawn = D.range(200).map(lambda x: (x, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64))).shuffle(50).apply(step())
        return drawn.map(lambda x, y: (x, y, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))

    dataset = shared.read(build(pecan.cache), deterministic=True, seed=5)
    epochs = [np.array(list(dataset.as_numpy_iterator())) for _ in range(3)]
    assert shared.job()["cache"]["state"] == "used"
    for other in epochs[1:]:
        assert (other[:, :2] == epochs[0][:, :2]).all(), "elements or their order upstream of the step differ"
        assert (other[:, 2] != epochs[0][:, 2]).any(), "a step downstream repeats its random values"
    # The elements are the same whether workers cache or not, and whether the job allows it.
    written = len(shared.segments())
    off = shared.read(build(pecan.cache), deterministic=True, seed=5, cache="off")
    for epoch in epochs:
        assert (np.array(list(off.as_numpy_iterator())) == epoch).all()
    assert "cache" not in shared.job() and len(shared.segments()) == written
    assert not [r for r in caplog.records if "does nothing here" in r.getMessage()]
    with pecan.DispatchServer() as dispatcher, pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target)) as _:
        plain = build(pecan.cache).apply(pecan.distribute(dispatcher.target, deterministic=True, seed=5))
        for epoch in epochs:
            assert (np.array(list(plain.as_numpy_iterator())) == epoch).all()
        state = session.connect(dispatcher.target, 10).status()["jobs"][-1]["cache"]["state"]
        assert state.startswith("off: ")
        session.retire(dispatcher.target.removeprefix("pecan://"))


def test_a_frozen_candidate_repeats_random_values(shared):
    drawn = D.range(200).map(lambda x: (x, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))
    drawn = drawn.apply(pecan.cache_candidate("drawn", freeze_randomness=True))
    drawn = drawn.map(lambda x, y: (x, y, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))
    dataset = shared.read(drawn.apply(pecan.cache_candidate("all")), cache="auto")
    first, second = (sorted(tuple(map(int, e)) for e in dataset.as_numpy_iterator()) for _ in range(2))
    assert [e[:2] for e in first] == [e[:2] for e in second], "elements upstream of the mark differ"
    assert [e[2] for e in first] != [e[2] for e in second], "a step downstream repeats its random values"
    found = pecan.explain(dataset).cache
    assert [(one.name, one.freezes, one.reason) for one in found.candidates] == [
        ("drawn", True, ""),
        ("all", False, "random"),
    ]
    assert (found.cache, found.problem) == ("auto", "")


@pytest.mark.parametrize(("build", "why"), [
    (lambda step: D.range(10).apply(step()).filter(lambda x: x > 2).take(5), "TakeDataset"),
    (lambda step: D.zip((D.range(10).apply(step()), D.range(9))), "no other input is shorter"),
    (lambda step: D.zip((D.range(10).filter(lambda x: x > 2).apply(step()), D.range(9))), "ZipDataset"),
    (lambda step: D.range(10).map(tf.experimental.Optional.from_value).apply(step()).map(lambda x: x.get_value()), "variant"),
    (lambda step: D.range(10).repeat().apply(step()).filter(lambda x: x > 2).take(20), "before TakeDataset"),
    (lambda step: D.range(10).map(lambda x: x + tf.cast(tf.timestamp() * 0, tf.int64)).apply(step()), "other values in each run"),
])
def test_plan_and_log_explain_a_cache_step_without_effect(shared, caplog, build, why):
    dataset = shared.read(build(pecan.cache))
    (warning,) = [r.getMessage() for r in caplog.records if "pecan.cache() does nothing here" in r.getMessage()]
    assert why in warning
    for _ in range(2):
        oracle.compare(oracle.run(dataset), oracle.run(build(nothing)), "elements")
    job = shared.job()
    assert "cache" not in job and why in " ".join(job["plan"]["reasons"]), job["plan"]["reasons"]


def test_an_endless_input_is_not_cached(shared, caplog):
    """If a step after the mark ends the dataset, the reason is that step. So this dataset never ends."""
    dataset = shared.read(D.range(10).repeat().apply(pecan.cache()))
    (warning,) = [r.getMessage() for r in caplog.records if "pecan.cache() does nothing here" in r.getMessage()]
    assert warning.endswith("its input never ends. Put repeat() after it.")
    assert {int(x) for x in dataset.take(200)} <= set(range(10))
    (found,) = pecan.explain(dataset).cache.candidates
    assert (found.legal, found.reason) == (False, "endless")
    assert "cache" not in shared.job()


def test_with_a_hint_the_share_of_each_index_is_cached(shared):
    hint = tf.data.experimental.SHARD_HINT

    def build(step) -> D:
        return D.range(200).shard(hint, hint).map(lambda x: 3 * x).apply(step()).map(lambda x: x + 1)

    dataset = shared.read(build(pecan.cache), sharding=pecan.ShardingPolicy.HINT)
    local = [3 * x + 1 for x in range(200)]
    for state in ("committed", "used", "used"):
        assert sorted(int(x) for x in dataset) == local
        assert shared.job()["cache"]["state"] == state
    assert shared.produced()["TakeDataset"] == 200, "the steps before cache() run again"


def test_another_job_over_the_same_files_reads_the_cache(tmp_path, records):
    with Service(tmp_path) as service:
        first = service.read(numbers(records))
        local = rows(first)
        assert service.produced()["InterleaveDataset"] == len(local)
        dataset = D.from_tensor_slices(records).interleave(tf.data.TFRecordDataset).map(number).apply(pecan.cache())
        # The downstream steps differ. The cached elements are the same.
        second = service.read(dataset.map(lambda x: 5 * x).batch(8))
        assert rows(second) == [5 * x // 3 for x in local]
        produced = service.produced()
        assert "InterleaveDataset" not in produced and produced["MapDataset"] == len(local)


def candidate():
    return pecan.cache_candidate("numbers")


@pytest.mark.parametrize("step", [pecan.cache, candidate])
def test_without_a_cache_directory_the_trainer_logs_one_warning(tmp_path, records, caplog, step):
    with Service(tmp_path, cache_dir=None) as service:
        dataset = service.read(numbers(records, step))
        local = rows(dataset)
        until(lambda: "no worker has a cache directory" in caplog.text, "the trainer gets no warning")
        assert rows(dataset) == local
        time.sleep(1.5)  # two rounds of the thread that logs warnings
        (warning,) = [r.getMessage() for r in caplog.records if "cache directory" in r.getMessage()]
        assert "--cache-dir DIR" in warning
        assert ("pecan.cache()" in warning) == (step is pecan.cache)
        found = pecan.explain(dataset).cache
        assert "--cache-dir DIR" in found.problem and "--cache-dir DIR" in str(found)
        assert ("--cache-dir DIR" in service.job().get("cache", {}).get("state", "")) == (step is pecan.cache)
