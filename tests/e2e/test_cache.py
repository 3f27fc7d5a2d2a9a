"""The step cache(): later epochs do not run the steps upstream of it, and damage to its files does not change elements."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import subprocess
import time

import numpy as np
import oracle
import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from soak import SOAK, cases
from test_commands import Program, run_command

D = tf.data.Dataset
PATIENCE_S = 180
SIZES = (31, 0, 7, 64, 20, 9, 1, 48)


@pytest.fixture
def records(tmp_path):
    """Record files of different lengths, whose records are numbers."""
    names, first = [], 0
    (tmp_path / "data").mkdir()
    for k, size in enumerate(SIZES):
        names.append(str(tmp_path / "data" / f"part-{k}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for i in range(first, first + size):
                writer.write(str(i).encode())
        first += size
    return names


def number(record: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_number(record, tf.int64)


def numbers(names: list[str], step=pecan.cache) -> D:
    """A dataset that reads and decodes upstream of the step, and maps and batches downstream."""
    dataset = D.from_tensor_slices(names).interleave(tf.data.TFRecordDataset).map(number)
    return dataset.apply(step()).map(lambda x: 3 * x).batch(16)


def nothing():
    """In place of pecan.cache: no step."""
    return lambda dataset: dataset


class Service:
    """A dispatcher, and workers with a cache directory that the test can read."""

    def __init__(self, tmp_path: pathlib.Path, workers: int = 2, **config) -> None:
        self.caches = tmp_path / "cache"
        self.config = {"cache_dir": self.caches, **config}
        self.dispatcher = pecan.DispatchServer(pecan.DispatcherConfig(worker_timeout_ms=2_000))
        self.workers: list[pecan.WorkerServer] = []
        for _ in range(workers):
            self.add()

    def add(self) -> None:
        self.workers.append(pecan.WorkerServer(pecan.WorkerConfig(self.dispatcher.target, **self.config)))

    def kill(self, which: int = -1) -> None:
        """Kills a worker with SIGKILL, and starts another one."""
        victim = self.workers.pop(which).process
        victim.kill()
        assert not victim.running
        self.add()

    def read(self, dataset: D, **options) -> D:
        return dataset.apply(pecan.distribute(self.dispatcher.target, **options))

    def status(self) -> dict:
        return session.connect(self.dispatcher.target, 10).status()

    def job(self) -> dict:
        """The newest job."""
        return self.status()["jobs"][-1]

    def produced(self) -> dict[str, int]:
        """Elements of the newest job by op, once two reads are equal."""
        known, deadline = None, time.monotonic() + PATIENCE_S
        while True:
            sums: collections.Counter[str] = collections.Counter()
            for node in self.job().get("nodes", []):
                sums[node["op"]] += int(node.get("elements", 0))
            if sums and dict(sums) == known:
                return known
            assert time.monotonic() < deadline, "the metrics keep changing"
            known = dict(sums)
            time.sleep(0.3)

    def metric(self, what: str) -> int:
        return sum(int(w.get("cache", {}).get(what, 0)) for w in self.status()["workers"])

    def segments(self) -> list[pathlib.Path]:
        return sorted(self.caches.glob("*.seg"))

    def stop(self) -> None:
        session.retire(self.dispatcher.target.removeprefix("pecan://"))
        for worker in self.workers:
            worker.stop()
        self.dispatcher.stop()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_) -> None:
        self.stop()


def rows(dataset: D) -> list[int]:
    return sorted(int(x) for batch in dataset for x in batch.numpy().ravel())


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_cache_has_a_segment_for_each_of_many_streams(tmp_path, deterministic):
    local = rows(D.range(180).map(lambda x: 3 * x + 1))
    with Service(tmp_path) as service:
        cached = D.range(180).map(lambda x: 3 * x).apply(pecan.cache()).map(lambda x: x + 1)
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
    "small vectors": (lambda names, step: D.range(500).map(lambda x: tf.fill([7], x)).apply(step()).map(lambda x: x + 1).batch(13), "elements"),
    "large elements": (lambda names, step: D.range(20).map(lambda x: tf.fill([100_000], x)).apply(step()).map(lambda x: x + 1), "elements"),
    "one stream": (lambda names, step: D.range(60).scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x)).apply(step()).map(lambda x: 2 * x), "elements"),
    "after a batch": (lambda names, step: D.range(103).map(lambda x: 2 * x).batch(10).apply(step()).map(lambda x: x + 1), "elements"),
    "remainders joined": (lambda names, step: D.range(103).filter(lambda x: x % 3 > 0).apply(step()).batch(10), "rows"),
    "steps after the batch": (
        lambda names, step: D.range(103).filter(lambda x: x % 3 > 0).apply(step()).batch(10).map(lambda x: x + 1), "rows"),
    "filtered downstream": (lambda names, step: D.range(103).apply(step()).filter(lambda x: x % 3 > 0).flat_map(lambda x: D.range(x % 4)), "elements"),
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


def test_a_frozen_candidate_repeats_random_values_and_nothing_is_stored(shared):
    drawn = D.range(200).map(lambda x: (x, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))
    drawn = drawn.apply(pecan.cache_candidate("drawn", freeze_randomness=True))
    drawn = drawn.map(lambda x, y: (x, y, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))
    written = len(shared.segments())
    dataset = shared.read(drawn.apply(pecan.cache_candidate("all")), cache="auto")
    first, second = (sorted(tuple(map(int, e)) for e in dataset.as_numpy_iterator()) for _ in range(2))
    assert [e[:2] for e in first] == [e[:2] for e in second], "elements upstream of the mark differ"
    assert [e[2] for e in first] != [e[2] for e in second], "a step downstream repeats its random values"
    found = pecan.explain(dataset).cache
    assert [(one.name, one.freezes, one.reason, one.stored) for one in found.candidates] == [
        ("drawn", True, "", False),
        ("all", False, "random", False),
    ]
    assert (found.cache, found.problem, len(shared.segments())) == ("auto", "", written)


@pytest.mark.parametrize(("build", "why"), [
    (lambda step: D.range(10).apply(step()).take(5), "is upstream of TakeDataset"),
    (lambda step: D.zip((D.range(10).apply(step()), D.range(10))), "it comes before ZipDataset"),
    (lambda step: D.range(10).map(lambda x: tf.RaggedTensor.from_row_lengths([x], [1])).apply(step()), "variant"),
    (lambda step: D.range(10).repeat().apply(step()).take(20), "does nothing"),
    (lambda step: D.range(100).filter(lambda x: x % 3 > 0).batch(10).apply(step()), "Move it before that step"),
    (lambda step: D.range(10).map(lambda x: x + tf.cast(tf.timestamp() * 0, tf.int64)).apply(step()), "other values in each run"),
])
def test_plan_and_log_explain_a_cache_step_without_effect(shared, caplog, build, why):
    dataset = shared.read(build(pecan.cache))
    (warning,) = [r.getMessage() for r in caplog.records if "pecan.cache() does nothing here" in r.getMessage()]
    assert why in warning or why == "does nothing"
    for _ in range(2):
        oracle.compare(oracle.run(dataset), oracle.run(build(nothing)), "rows" if "Move it before" in why else "elements")
    job = shared.job()
    assert "cache" not in job and why in " ".join(job["plan"]["reasons"]), job["plan"]["reasons"]


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


def test_changed_files_are_read_again(tmp_path, records):
    with Service(tmp_path) as service:
        dataset = service.read(numbers(records))
        before = rows(dataset)
        with tf.io.TFRecordWriter(records[3]) as writer:
            for i in range(1000, 1064):
                writer.write(str(i).encode())
        now = rows(numbers(records, nothing))
        assert now != before
        for _ in range(3):
            assert rows(dataset) == now
        until(lambda: service.metric("segments_invalid") == 1, "no worker counts the invalid segment")
        assert service.job()["cache"]["state"] == "used"


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "gone": lambda path: path.unlink(),
    "another": lambda path: path.write_bytes(next(p for p in path.parent.glob("*.seg") if p != path).read_bytes()),
}


def test_damaged_cache_files_do_not_change_elements(tmp_path, records):
    """D11: a damaged segment is computed again, moved aside, counted and rewritten."""
    # Elements of many blocks, so that the reader gets some before the damaged block.
    def build(step):
        dataset = D.from_tensor_slices(records).interleave(tf.data.TFRecordDataset).map(number)
        return dataset.map(lambda x: tf.fill([30_000], x)).apply(step()).map(lambda x: x[:2] * 3).batch(16)

    local = rows(build(nothing))
    # The tests of service/cache open segments with each kind of damage.
    damage = {what: apply for what, apply in DAMAGE.items() if SOAK or what in ("flipped", "cut", "gone", "another")}
    with Service(tmp_path) as service:
        dataset = service.read(build(pecan.cache))
        assert rows(dataset) == local
        for invalid, (what, apply) in enumerate(damage.items()):
            largest = max(service.segments(), key=lambda path: path.stat().st_size)
            apply(largest)
            assert rows(dataset) == local, what
            until(lambda n=invalid: service.metric("segments_invalid") == n + 1, f"{what}: not noticed")
            # Only that stream is written again. Then the whole cache is read.
            assert rows(dataset) == local
            assert service.job()["cache"]["state"] in ("committed", "used"), what
            produced = service.produced()["InterleaveDataset"]
            assert rows(dataset) == local
            assert service.produced()["InterleaveDataset"] == produced
        for path in service.caches.iterdir():
            path.unlink()
        service.caches.rmdir()
        assert rows(dataset) == local and rows(dataset) == local


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


def test_a_full_cache_does_not_stop_epochs(tmp_path, records, caplog):
    local = rows(numbers(records, nothing))
    with Service(tmp_path, cache_bytes=100) as service:
        dataset = service.read(numbers(records))
        for _ in range(3):
            assert rows(dataset) == local
        assert service.job()["cache"]["state"].startswith("filling")
        until(lambda: service.metric("writes_dropped") >= 3, "no worker counts the dropped writes")
        assert rows(dataset) == local
        until(lambda: "raise --cache-bytes" in caplog.text, "the trainer gets no warning about dropped writes")
        assert "raise --cache-bytes" in service.job()["cache"]["state"]
        assert list(service.caches.iterdir()) == []


def slow_numbers(names: list[str]) -> D:
    """Like `numbers`, but slow enough to kill a worker during an epoch."""
    def linger(x: tf.Tensor) -> tf.Tensor:
        spin = tf.while_loop(lambda i, s: i < 800, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0))
        return x + tf.cast(spin[1] * 0, tf.int64)

    dataset = D.from_tensor_slices(names).interleave(tf.data.TFRecordDataset).map(number).map(linger)
    return dataset.apply(pecan.cache()).map(lambda x: 3 * x).map(linger).batch(4)


# The fault scenarios T2 and T3 kill workers in both modes.
@pytest.mark.parametrize("deterministic", cases([False, True], soak=[False]))
def test_workers_die_while_they_write_and_read_a_cache(tmp_path, records, deterministic):
    local = rows(numbers(records, nothing))
    with Service(tmp_path) as service:
        dataset = service.read(slow_numbers(records), deterministic=deterministic)
        for epoch in range(3):
            got = []
            for n, batch in enumerate(dataset):
                got += batch.numpy().ravel().tolist()
                if n == 5 and epoch < 2:
                    # The epoch that reads the cache loses both workers at once.
                    for _ in range(1 + (epoch == 1)):
                        service.kill(0)
            assert sorted(got) == local, f"epoch {epoch}"
            cache = service.job()["cache"]
            assert cache["state"] in ("committed", "used") and cache["segments"] == cache["streams"]
        # One segment for each stream. Workers may have written more, and delete those later.
        assert cache["segments"] <= len(service.segments())


def test_unused_cache_files_are_removed(tmp_path, records):
    caches = tmp_path / "cache"
    caches.mkdir(mode=0o700)
    with pecan.DispatchServer() as dispatcher:
        cluster = session.connect(dispatcher.target, 10).status()["cluster_id"]
        ours = [caches / f"{cluster}-{'ab' * 32}-0-7-1-dead.{end}" for end in ("tmp", "seg", "bad")]
        for path in [*ours, caches / "notes.txt"]:
            path.write_bytes(b"x" * 100)
        server = pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target, cache_dir=caches, cache_orphan_after_ms=300))
        dataset = numbers(records).apply(pecan.distribute(dispatcher.target))
        local = rows(dataset)
        until(lambda: not any(path.exists() for path in ours), "files of a dead worker are not deleted")
        assert (caches / "notes.txt").exists(), "a file that is not Pecan's was deleted"
        assert rows(dataset) == local
        job = session.connect(dispatcher.target, 10).status()["jobs"][-1]
        assert job["cache"]["state"] == "used"
        server.stop()
        session.retire(dispatcher.target.removeprefix("pecan://"))


def test_two_services_in_one_directory_leave_each_others_files_alone(tmp_path, records):
    """D13: each service keeps its segments and removes its orphans, and touches no file of the other."""
    local = rows(numbers(records, nothing))
    config = {"workers": 1, "cache_orphan_after_ms": 300}
    with Service(tmp_path, **config) as one, Service(tmp_path, **config) as two:
        services = (one, two)
        datasets = [service.read(numbers(records)) for service in services]
        assert [rows(dataset) for dataset in datasets] == [local, local]
        segments = one.segments()
        assert len(segments) == sum(service.job()["plan"]["num_streams"] for service in services)
        # A service that has removed its orphan has known all other files for as long as that one.
        orphans = [one.caches / f"{service.status()['cluster_id']}-{'ab' * 32}-0-7-1-dead.tmp" for service in services]
        for path in orphans:
            path.write_bytes(b"x")
        until(lambda: not any(path.exists() for path in orphans), "a service does not remove its orphans")
        assert one.segments() == segments
        for service, dataset in zip(services, datasets, strict=True):
            assert rows(dataset) == local
            assert (service.job()["cache"]["state"], service.metric("segments_invalid")) == ("used", 0)


def test_a_restarted_dispatcher_knows_its_caches(tmp_path, records):
    local = rows(numbers(records, nothing))
    config = pecan.DispatcherConfig(port=free_port(), work_dir=tmp_path / "work")
    dispatcher = pecan.DispatchServer(config)
    worker = pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target, cache_dir=tmp_path / "cache"))
    dataset = numbers(records).apply(pecan.distribute(dispatcher.target))
    assert rows(dataset) == local
    dispatcher.process.kill()
    dispatcher = pecan.DispatchServer(config)
    assert rows(dataset) == local
    job = session.connect(dispatcher.target, 10).status()["jobs"][-1]
    assert job["cache"]["state"] == "used"
    session.retire(dispatcher.target.removeprefix("pecan://"))
    worker.stop()
    dispatcher.stop()


def free_port() -> int:
    import socket

    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def bounded():
    """A dispatcher with a quota for caches."""
    program = Program("pecan-dispatcher", "--cache-quota", "2400000", stderr=subprocess.DEVNULL)
    yield program
    program.process.kill()
    program.process.communicate(timeout=PATIENCE_S)


def test_a_quota_keeps_the_cache_that_saves_more(tmp_path, bounded):
    """A cheap cache is evicted for an expensive one of the same size. Its files are removed, and its job computes."""
    def large(x: tf.Tensor) -> tf.Tensor:
        return tf.fill([1000], x)

    def spin(x: tf.Tensor) -> tf.Tensor:
        spun = tf.while_loop(lambda i, s: i < 800, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0))
        return x + tf.cast(spun[1] * 0, tf.int64)

    # Each cache has 1.6 MB of elements.
    cheap = D.range(200).map(large).apply(pecan.cache()).map(lambda x: x[0])
    dear = D.range(200).map(spin).map(large).apply(pecan.cache()).map(lambda x: x[0])
    target = f"pecan://{bounded.address}"

    def control(*words: str) -> subprocess.CompletedProcess[str]:
        return run_command("pecanctl", "cache", *words, "--dispatcher", bounded.address)

    def recorded() -> dict[str, dict]:
        return {cache["key"]: cache for cache in json.loads(control("list", "--json").stdout)["caches"]}

    def files() -> set[str]:
        return {path.name.split("-")[2] for path in (tmp_path / "cache").glob("*.seg")}

    with pecan.WorkerServer(pecan.WorkerConfig(target, cache_dir=tmp_path / "cache")):
        first = cheap.apply(pecan.distribute(target))
        assert sorted(int(x) for x in first) == list(range(200))
        (low,) = recorded()
        assert files() == {low}
        second = dear.apply(pecan.distribute(target))
        for _ in range(2):
            assert sorted(int(x) for x in second) == list(range(200))
        until(lambda: low not in recorded(), "no cache is evicted")
        ((high, kept),) = recorded().items()
        assert (kept["state"], kept["tenant"], kept["segments"]) == ("committed", "default", kept["streams"]) and kept["saves_s"] > 0.1
        until(lambda: files() == {high}, "the files of the evicted cache are not removed")
        assert "are intact" in control("verify", str(tmp_path / "cache")).stdout
        # The first job goes on without a cache, and says why.
        assert sorted(int(x) for x in first) == list(range(200))
        states = {job["cache"]["key"]: job["cache"]["state"] for job in session.connect(target, 10).status()["jobs"]}
        assert states[low].startswith("not kept: the quotas for caches keep others") and states[high] == "used"
        # It caches again when there is room.
        until(lambda: control("rm", high).returncode == 0, "a cache that no epoch uses is not removed")
        assert control("rm", high).returncode == 1
        assert sorted(int(x) for x in first) == list(range(200))
        until(lambda: recorded().keys() == files() == {low}, "the first job does not cache again")
        session.retire(bounded.address)


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    with pecan.DispatchServer() as dispatcher:
        for name in ("open", "link"):
            with pytest.raises(pecan.ServerError, match="not safe to use"):
                pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target, cache_dir=tmp_path / name))
