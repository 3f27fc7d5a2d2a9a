"""Which step is cached, decided by measurements: the elements stay the same, and later epochs and jobs are faster where that pays."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time

import pecan
import pytest
import tensorflow as tf
from cache_service import Service, free_port, until
from pecan._src.client import session
from test_metrics import scrape

D = tf.data.Dataset
ELEMENTS, STREAMS = 900, 60
# Parts of the source have 8 elements.
PARTS = 113
# Bytes of an element.
ROW = 4096


def expensive(x: tf.Tensor) -> tf.Tensor:
    """Some milliseconds of integer arithmetic, and 4 kB of results that are equal on all hosts."""
    numbers = tf.range(512, dtype=tf.int64) + x

    def step(i: tf.Tensor, block: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, block * 6364136223846793005 + 1442695040888963407

    _, block = tf.while_loop(lambda i, _: i < 300, step, (0, tf.tile(numbers[None], [16, 1])), parallel_iterations=1)
    return tf.reduce_max(block, axis=0)


def build() -> D:
    return D.range(ELEMENTS).map(expensive, num_parallel_calls=2).batch(4, drop_remainder=True)


def bytes_of(dataset: D) -> list[bytes]:
    return [batch.numpy().tobytes() for batch in dataset]


def timed(dataset: D) -> tuple[float, list[bytes]]:
    began = time.monotonic()
    got = bytes_of(dataset)
    return time.monotonic() - began, got


def decision(service: Service) -> dict:
    """The decision on the newest job."""
    job = service.job()["job_id"]
    return session.connect(service.dispatcher.target, 10).explain(job).get("cache_decision", {})


def computed(service: Service) -> int:
    """Elements that the expensive step has computed for the newest job."""
    return sum(int(node.get("elements", 0)) for node in service.job().get("nodes", []) if "ParallelMap" in node["op"])


@pytest.fixture(scope="module")
def local() -> list[bytes]:
    """The batches of a local run, which computes as long as an epoch of a worker."""
    return bytes_of(build())


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="pecan")
    return caplog


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_expensive_step_is_cached_and_the_second_job_begins_with_it(tmp_path, log, local, deterministic):
    with Service(tmp_path, workers=1) as service:
        def check(got: list[bytes]) -> None:
            assert got == local if deterministic else sorted(got) == sorted(local)

        dataset = service.read(build(), cache="auto", streams=STREAMS, deterministic=deterministic)
        first_s, got = timed(dataset)
        check(got)
        until(lambda: "are cached: the cache at" in log.text, "the trainer's log does not say what is cached")
        chosen = decision(service)
        assert chosen["node"] and "to write, then" in chosen["why"], chosen
        found = pecan.explain(dataset).cache
        assert chosen["why"] in found.decision and chosen["why"] in " ".join(str(found).split())
        assert [c.stored for c in found.candidates if c.step == chosen["node"]] == [True]
        assert service.segments(), "streams that began after the decision wrote nothing"
        check(bytes_of(dataset))
        third_s, got = timed(dataset)
        check(got)
        assert len(service.segments()) == (STREAMS if deterministic else PARTS)
        assert third_s < first_s / 2, f"the first epoch took {first_s:.2f} s, the third one {third_s:.2f} s"
        # Another job over the same steps begins with what is stored.
        streams = STREAMS if deterministic else STREAMS // 2
        other = service.read(build().map(lambda x: x + 1), cache="auto", streams=streams, deterministic=deterministic)
        assert sorted(bytes_of(other.map(lambda x: x - 1))) == sorted(local)
        until(lambda: decision(service).get("node"), "the second job decides nothing")
        reasons = [one.get("why", "") for one in decision(service)["candidates"]]
        assert any("as in 1 earlier job with the same steps" in why for why in reasons), reasons
        if not deterministic:
            # It decides once it has measured 300 elements, with a heartbeat, and streams that have begun compute to their ends.
            assert computed(service) < ELEMENTS * 3 / 4, "a job with another number of streams computes the elements again"


def test_an_ordinary_pipeline_is_cached_for_other_jobs(tmp_path, local):
    """Repeated records in random order, without a seed or a mark. A job with another seed and S reads what the first one has stored."""
    files = tmp_path / "records"
    files.mkdir()
    for k in range(STREAMS):
        with tf.io.TFRecordWriter(str(files / f"{k}.tfrecord")) as writer:
            for i in range(15):
                writer.write(str(15 * k + i).encode())

    def ordinary() -> D:
        records = D.list_files(str(files / "*")).interleave(tf.data.TFRecordDataset, num_parallel_calls=2).shuffle(100)
        return records.map(lambda r: expensive(tf.strings.to_number(r, tf.int64))).batch(4)

    def rows_of(dataset: D) -> list[bytes]:
        return sorted(row.tobytes() for batch in dataset for row in batch.numpy())

    # The records are the numbers of `build`, in other batches.
    local = sorted(batch[at : at + ROW] for batch in local for at in range(0, len(batch), ROW))
    with Service(tmp_path, workers=1) as service:
        for streams in (STREAMS, STREAMS // 2):
            dataset = service.read(ordinary().repeat(4), cache="auto", streams=streams)
            assert rows_of(dataset) == sorted(4 * local)
            assert decision(service).get("node"), "nothing is cached"
            if streams == STREAMS:
                written = service.segments()
                assert len(written) == STREAMS, "some files have no segment"
            else:
                assert service.produced().get("MapDataset", 0) == 0, "the second job computes what is stored"
                assert service.segments() == written
            del dataset


def test_random_steps_after_a_cached_step_draw_the_same_values_as_without(tmp_path):
    """Keyed randomness draws by the number of an element, which a cache does not store."""
    def noisy() -> D:
        drawn = D.range(ELEMENTS).map(expensive, num_parallel_calls=2).apply(pecan.cache_candidate("expensive"))
        return drawn.map(lambda x: x + tf.random.uniform([], maxval=1 << 30, dtype=tf.int64)).shuffle(20).batch(4, drop_remainder=True)

    with Service(tmp_path, workers=1) as service:
        epochs = {}
        for cache in ("candidates", "off"):
            dataset = service.read(noisy(), cache=cache, streams=STREAMS, deterministic=True, seed=3)
            epochs[cache] = [bytes_of(dataset) for _ in range(3)]
            if cache == "candidates":
                assert decision(service).get("node"), "nothing is cached"
                until(lambda: service.metric("bytes_read") > 0, "nothing is read from the cache")
        assert epochs["candidates"] == epochs["off"]
        assert epochs["off"][0] != epochs["off"][1]


def test_nothing_is_written_where_computing_is_cheaper(tmp_path, log):
    with Service(tmp_path, workers=1) as service:
        # The step fills 64 KiB and returns them sixteen times. A cache has to read the whole megabyte.
        dataset = service.read(D.range(600).map(lambda x: (tf.fill([1 << 13], x),) * 16), cache="auto")
        for _ in range(3):
            assert sum(1 for _ in dataset) == 600
        until(lambda: "nothing is cached: computing costs least" in log.text, "the trainer's log does not say why nothing is cached")
        assert "node" not in decision(service)
        assert service.segments() == [] and service.metric("bytes_written") == 0


def test_a_decision_survives_a_restart_of_the_dispatcher_and_deaths_of_workers(tmp_path, local):
    with Service(tmp_path, workers=2, work_dir=tmp_path / "work") as service:
        dataset = service.read(build(), cache="auto", streams=STREAMS)
        got, chosen = [], {}
        for n, batch in enumerate(dataset):
            got.append(batch.numpy().tobytes())
            if n >= ELEMENTS // 8 and not chosen and (chosen := decision(service)):
                # Workers are writing.
                service.kill(0)
                service.restart()
        assert sorted(got) == sorted(local) and chosen["node"]
        assert decision(service) == chosen
        for _ in range(2):
            assert sorted(bytes_of(dataset)) == sorted(local)
        until(lambda: service.job()["cache"]["segments"] == PARTS, "segments are missing after two more epochs")


def test_a_directory_that_cannot_be_written_changes_no_element(tmp_path, log):
    """D14: the bound of the directory leaves room for a part of the cache only."""
    # The elements have 18 MB. A probe of the directory needs 6 MB.
    bound = 9 << 20
    large = D.range(ELEMENTS).map(lambda x: tf.concat([expensive(x) * k for k in (1, 3, 5, 7, 9)], 0), num_parallel_calls=2)
    local = sorted(bytes_of(large))
    with Service(tmp_path, workers=1, cache_bytes=bound) as service:
        dataset = service.read(large, cache="auto", streams=STREAMS)
        for _ in range(3):
            assert sorted(bytes_of(dataset)) == local
        # A part fits, and that part is kept.
        until(lambda: decision(service).get("node"), "nothing is cached")
        chosen = decision(service)
        (share,) = [one["share"] for one in chosen["candidates"] if one["node"] == chosen["node"]]
        assert 0 < share < 1, chosen
        until(lambda: " are kept" in log.text, "the trainer's log does not say that only a part is cached")
        stored = sum(path.stat().st_size for path in service.segments())
        assert 0 < stored <= sum(path.stat().st_size for path in service.caches.iterdir()) <= bound
        until(lambda: service.metric("bytes_read") > 0, "what is stored is not read")


def test_a_directory_that_vanishes_while_it_is_written_changes_no_element(tmp_path, local, caplog):
    """D14: the directory is removed while workers write. The worker's log and a metric say that nothing is written any more."""
    # The logs of programs are on this level.
    caplog.set_level(logging.DEBUG, logger="pecan")
    port = free_port()
    with Service(tmp_path, workers=1, metrics_port=port) as service:
        dataset = service.read(build(), cache="auto", streams=STREAMS)
        removed = False
        for _ in range(3):
            got = []
            for batch in dataset:
                got.append(batch.numpy().tobytes())
                if not removed and service.segments():
                    assert decision(service)["node"] and scrape(port)["pecan_worker_cache_writable"] == 1
                    remove(service.caches)
                    removed = True
            assert sorted(got) == sorted(local)
        assert removed, "nothing was written that could vanish"
        until(lambda: service.metric("writes_dropped") > 0, "no worker counts what it does not write")
        until(lambda: "a cache segment is not written" in caplog.text, "the worker does not warn")
        until(lambda: scrape(port)["pecan_worker_cache_writable"] == 0, "no metric says that the directory cannot be written")


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: pathlib.Path) -> None:
    """Moves a segment out of the directory, and leaves a link to it."""
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def foreign(path: pathlib.Path) -> None:
    """Gives a segment to another user. Nothing else tells that its values may be theirs: whoever can compute checksums can keep them."""
    os.chown(path, 12345, 12345)


HARM = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "gone": lambda path: path.unlink(),
    "another": lambda path: path.write_bytes(max(path.parent.glob("*.seg")).read_bytes()),
    "linked": link,
}
if os.geteuid() == 0:
    HARM["foreign"] = foreign


def test_harmed_files_of_an_automatic_cache_change_no_element(tmp_path, local, caplog):
    """D11, D16: files are damaged, of other streams, links, and of another user. Each is named in a warning, computed, and written again."""
    # The logs of programs are on this level.
    caplog.set_level(logging.DEBUG, logger="pecan")
    with Service(tmp_path, workers=1) as service:
        dataset = service.read(build(), cache="auto", streams=STREAMS)
        for _ in range(3):
            assert sorted(bytes_of(dataset)) == sorted(local)
        def complete() -> bool:
            cache = service.job()["cache"]
            return cache["segments"] == cache["streams"]

        until(complete, "segments are missing after three epochs")
        before = computed(service)
        segments = service.segments()
        harmed = dict(zip(HARM, segments))
        for what, path in harmed.items():
            HARM[what](path)
        strange = harmed["foreign"].read_bytes() if "foreign" in harmed else b""
        assert sorted(bytes_of(dataset)) == sorted(local)
        until(lambda: service.metric("segments_invalid") == len(HARM), f"{service.metric('segments_invalid')} of {len(HARM)} are noticed")
        warned = "\n".join(line for line in caplog.text.splitlines() if "a cache segment cannot be used" in line)
        assert all(path.name in warned for path in harmed.values()), warned
        # A stream of the prefetched epoch had its lease before the harm was known.
        for _ in range(2):
            assert sorted(bytes_of(dataset)) == sorted(local)
        until(complete, "harmed segments are not written again")
        # Only those streams were computed.
        assert computed(service) - before <= 3 * len(HARM) * ELEMENTS // STREAMS
        assert (tmp_path / "outside").is_file(), "a link was followed when its name was removed"
        if strange:
            assert "belongs to user 12345" in warned
            assert harmed["foreign"].read_bytes() == strange, "a file of another user was moved or changed"


def remove(directory: pathlib.Path) -> None:
    """Removes a directory in which workers still make files."""
    while directory.exists():
        for path in directory.iterdir():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            directory.rmdir()
