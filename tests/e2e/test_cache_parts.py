"""Caches by parts of the source: another number of streams, seed or order of files reads what was stored."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib

import cache_service
import numpy as np
import pecan
import pytest
import tensorflow as tf
from cache_service import SIZES, D, Service, flip, nothing, number, rows, slow_numbers, until
from test_commands import Program, run_command


@pytest.fixture
def records(tmp_path):
    return cache_service.write_records(tmp_path / "data")


def listed(names: list[str], step=pecan.cache, factor: int = 3) -> D:
    """Like `numbers`, with files in random order, and no seed. `factor` is used upstream of the step."""
    return listed_records(names).map(number).map(lambda x: factor * x).apply(step())


def listed_records(names: list[str]) -> D:
    """The records of files in random order."""
    files = D.list_files(str(pathlib.Path(names[0]).parent / "*.tfrecord"))
    return files.interleave(tf.data.TFRecordDataset)


def upstream(service: Service) -> int:
    """Elements that the newest job has computed at the cached step."""
    return service.produced().get("TakeDataset", 0)


def parts(service: Service) -> int:
    return int(service.job()["plan"]["cache"].get("parts", 0))


def test_jobs_with_other_streams_seeds_and_steps_read_the_parts(tmp_path, records):
    local = rows(listed(records, nothing).batch(16))
    with Service(tmp_path) as service:
        first = service.read(listed(records).batch(16))
        assert rows(first) == local
        assert (upstream(service), service.job()["cache"]["state"]) == (len(local), "committed")
        written = service.segments()
        assert len(written) == parts(service) == len(SIZES)
        # The same steps up to the cached one: other streams, another seed, other steps after it, no steps after it.
        for dataset, options in [
            (listed(records).batch(16), {"streams": 3}),
            (listed(records).batch(16), {"streams": 8, "seed": 7}),
            (listed(records).map(lambda x: x + 1).map(lambda x: x - 1).batch(4), {}),
            (listed(records).shuffle(50).batch(16).map(lambda x: x), {"streams": 5}),
        ]:
            other = service.read(dataset, **options)
            assert rows(other) == local
            assert (upstream(service), service.job()["cache"]["state"]) == (0, "used"), service.job()["plan"]["reasons"]
            del other
        assert service.segments() == written
        # Another step before the cached one.
        below = service.read(listed(records, factor=5).batch(16))
        assert rows(below) == [x // 3 * 5 for x in local]
        assert upstream(service) == len(local)
        assert service.metric("segments_invalid") == 0


def test_ranges_and_slices_have_parts(tmp_path):
    sources = {
        "a range": lambda: D.range(3000).map(lambda x: 2 * x),
        "slices": lambda: D.from_tensor_slices(np.arange(1000) % 7).filter(lambda x: x > 2),
        "batches": lambda: D.range(5003).batch(10).map(lambda x: x + 1),
    }
    with Service(tmp_path) as service:
        for what, build in sources.items():
            local = sorted(int(x) for e in build() for x in np.ravel(e.numpy()))
            stored = len(service.segments())
            for streams in (4, 7):
                dataset = service.read(build().apply(pecan.cache()), streams=streams)
                assert sorted(int(x) for e in dataset for x in np.ravel(e.numpy())) == local, what
                assert service.job()["cache"]["state"] == ("committed" if streams == 4 else "used"), what
                assert len(service.segments()) - stored == parts(service) > 1, what
                del dataset


@pytest.mark.parametrize("streams", [2, 5])
def test_deterministic_elements_are_equal_with_and_without_a_cache(tmp_path, records, streams):
    """Computed, half stored, read, and without a cache: the same elements in the same order."""
    def build():
        kept = listed_records(records).shuffle(25).map(number).apply(pecan.cache())
        dataset = kept.map(lambda x: (x, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))
        return dataset.shuffle(20).batch(4)

    options = {"deterministic": True, "seed": 5, "streams": streams}
    with Service(tmp_path) as service:
        def epochs(n: int, **more) -> list[list[bytes]]:
            dataset = service.read(build(), **options, **more)
            read = [[b"".join(np.asarray(x).tobytes() for x in e) for e in dataset.as_numpy_iterator()] for _ in range(n)]
            assert ("cache" in service.job()) == (not more) and (more or service.job()["cache"]["state"] == "used")
            return read

        without = epochs(3, cache="off")
        assert without[0] != without[1]
        assert epochs(3) == without
        for path in service.segments()[::2]:
            path.unlink()
        assert epochs(3) == without
        until(lambda: service.metric("segments_invalid") == len(SIZES) // 2, "the missing segments are not noticed")


def test_only_changed_parts_are_computed_again(tmp_path, records):
    """D15: versions of a file are never mixed, and the other files' parts are read."""
    with Service(tmp_path) as service:
        dataset = service.read(listed(records).batch(16))
        before = rows(dataset)
        assert upstream(service) == len(before)
        with tf.io.TFRecordWriter(records[3]) as writer:
            for i in range(1000, 1040):
                writer.write(str(i).encode())
        now = rows(listed(records, nothing).batch(16))
        assert now != before
        other = service.read(listed(records).batch(16), streams=3)
        assert rows(other) == now
        assert upstream(service) == 40
        # What the other job found and wrote again holds for the first one.
        for _ in range(2):
            assert rows(dataset) == now
        until(lambda: service.metric("segments_invalid") == 1, "no worker counts the invalid segment")
        # A damaged part is one part, too. The newest segment is the one that was written again.
        flip(max(service.segments(), key=lambda path: path.stat().st_mtime))
        third = service.read(listed(records).batch(16), streams=5)
        assert rows(third) == now
        until(lambda: service.metric("segments_invalid") == 2, "damage is not noticed")


def test_a_job_reads_the_parts_that_an_interrupted_one_has_written(tmp_path, records):
    """D15: what is complete is read, and what was being written is removed."""
    local = rows(listed(records, nothing).batch(4))
    with Service(tmp_path, cache_orphan_after_ms=300, max_streams=1) as service:
        def build() -> D:
            files = D.list_files(str(pathlib.Path(records[0]).parent / "*.tfrecord"))
            return slow_numbers(records, files)

        first = service.read(build(), streams=8)
        iterator = iter(first)
        # The dispatcher must have recorded them, or the parts are lost with their workers.
        while int(service.job().get("cache", {}).get("segments", 0)) < 2:
            next(iterator)
        for _ in range(2):
            service.kill(0)
        del iterator, first
        unfinished = {path.name for path in service.caches.iterdir() if path.suffix == ".tmp"}
        second = service.read(build(), streams=3)
        assert rows(second) == local
        assert 0 < upstream(service) < len(local)
        until(lambda: not unfinished & set(os.listdir(service.caches)), "files of dead workers are not removed")
        assert rows(second) == local
        # The last segment may become durable after its epoch.
        until(lambda: service.job()["cache"]["state"] == "used", "the cache is not complete")


def test_what_cannot_be_stored_by_parts_says_why(tmp_path):
    def shuffled(step):
        return D.range(300).shuffle(30).batch(4).apply(step())

    with Service(tmp_path) as service:
        dataset = service.read(shuffled(pecan.cache))
        assert rows(dataset) == rows(shuffled(nothing))
        job = service.job()
        assert parts(service) == 0
        assert "needs them in that order" in " ".join(job["plan"]["reasons"])
        assert len(service.segments()) == job["plan"]["num_streams"]


def test_shuffles_of_records_are_live_over_a_cache_that_all_jobs_share(tmp_path, records):
    """Neither a seed nor an epoch changes what is stored. Each epoch and each job has an order of its own."""
    def build(step, buffer: int = 40) -> D:
        return listed_records(records).shuffle(buffer).map(number).filter(lambda x: x % 5 > 0).apply(step).map(lambda x: x + 1).batch(4)

    local = rows(build(nothing()))
    with Service(tmp_path) as service:
        def orders(step, n: int, **options) -> list[list[int]]:
            dataset = service.read(build(step, options.pop("buffer", 40)), **options)
            read = [[int(x) for batch in dataset for x in batch.numpy().ravel()] for _ in range(n)]
            assert all(sorted(epoch) == local for epoch in read)
            return read

        frozen = orders(pecan.cache(), 2, deterministic=True, seed=1)
        written = service.segments()
        assert len(written) == parts(service) == len(SIZES)
        assert frozen[0] == frozen[1], "pecan.cache() repeats the first epoch"
        assert orders(pecan.cache(), 1, deterministic=True, seed=2)[0] != frozen[0]
        assert upstream(service) == 0
        assert orders(pecan.cache(), 1, deterministic=True, seed=1, streams=3, buffer=9)[0] != frozen[0]
        assert upstream(service) == 0 and service.segments() == written
        # A candidate does not freeze: with and without the cache, each epoch has another order.
        options = {"deterministic": True, "seed": 1}
        computed = orders(pecan.cache_candidate("numbers"), 2, cache="off", **options)
        assert computed[0] != computed[1]
        assert orders(pecan.cache_candidate("numbers"), 2, **options) == computed


@pytest.mark.parametrize("mode", ["exactly_once", "deterministic"])
def test_drawn_values_are_shared_by_jobs_with_their_seed(tmp_path, mode):
    """Drawn values belong to the streams of their seed. What follows the cached step does not matter, and the seed does."""

    def build(after) -> D:
        drawn = D.range(200).map(lambda x: (x, tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)))
        return after(drawn.apply(pecan.cache()))

    def read(after, seed: int) -> tuple[list[tuple[int, int]], int]:
        """Returns the elements, and how many of them were computed upstream of the cached step."""
        dataset = service.read(build(after), streams=4, seed=seed, deterministic=mode == "deterministic")
        pairs = [pair for numbers, drawn in dataset for pair in zip(numbers.numpy().tolist(), drawn.numpy().tolist(), strict=True)]
        return sorted(pairs), upstream(service)

    with Service(tmp_path) as service:
        first, computed = read(lambda kept: kept.batch(8), seed=5)
        assert (computed, len({y for _, y in first})) == (200, 200)
        other, computed = read(lambda kept: kept.map(lambda x, y: (x, y + 1)).batch(8), seed=5)
        assert computed == 0 and other == [(x, y + 1) for x, y in first]
        reseeded, computed = read(lambda kept: kept.batch(8), seed=6)
        assert computed == 200 and [x for x, _ in reseeded] == [x for x, _ in first] and reseeded != first


@pytest.mark.parametrize("order", ["any", "deterministic", "shuffled"])
def test_jobs_at_the_same_time_share_the_work(tmp_path, order):
    """Each of two jobs computes what the other does not, and reads the rest. If streams must be open together, one follows the other."""
    elements = 240

    def linger(x: tf.Tensor) -> tf.Tensor:
        spin = tf.while_loop(lambda i, s: i < 1500, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0))
        return x + tf.cast(spin[1] * 0, tf.int64)

    def build() -> D:
        source = D.range(elements)
        return (source.shuffle(elements) if order == "shuffled" else source).map(linger).apply(pecan.cache()).map(lambda x: x + 1)

    def computed(job: dict) -> int:
        """Elements that a job has computed upstream of the cached step, once two reads are equal."""
        return sum(int(node.get("elements", 0)) for node in job.get("nodes", []) if node["op"] == "RangeDataset")

    with Service(tmp_path, workers=2, max_streams=1) as service:
        jobs = [service.read(build(), streams=24, deterministic=order == "deterministic") for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            for found in both.map(rows, jobs):
                assert found == list(range(1, elements + 1))
        service.produced()
        shares = [computed(job) for job in service.status()["jobs"]]
        print(f"{shares} of {elements} elements are computed")
        assert elements <= sum(shares) < 1.5 * elements, shares


@pytest.mark.parametrize("shared", [False, True])
def test_a_tenant_reads_the_cache_of_another_only_if_an_administrator_shares_it(tmp_path, records, shared):
    local = rows(listed(records, nothing).batch(16))
    dispatcher = Program("pecan-dispatcher", "--listen", "127.0.0.1:0", *["--cache-shared"] * shared)
    worker = Program("pecan-worker", "--dispatcher", dispatcher.address, "--cache-dir", str(tmp_path / "cache"))
    try:
        states, stored = [], []
        for tenant in ("red", "blue"):
            dataset = listed(records).batch(16).apply(pecan.distribute(dispatcher.address, tenant=tenant))
            assert rows(dataset) == local
            (job,) = [job for job in json.loads(run_command("pecanctl", "jobs", "--json", "--dispatcher", dispatcher.address).stdout) if job["options"]["tenant"] == tenant]
            states.append(job["cache"]["state"])
            stored.append(len([path for path in (tmp_path / "cache").glob("*.seg") if "-probe-" not in path.name]))
            del dataset
        assert states == ["committed", "used" if shared else "committed"]
        assert stored == [len(SIZES), len(SIZES) if shared else 2 * len(SIZES)]
    finally:
        worker.stop()
        dispatcher.stop()
