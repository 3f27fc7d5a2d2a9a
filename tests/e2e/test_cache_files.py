"""The files of caches: changed sources, damage, room, orphans and quotas do not change elements."""

from __future__ import annotations

import json
import os
import subprocess
import time

import cache_service
import pecan
import pytest
import tensorflow as tf
from cache_service import PATIENCE_S, D, Service, flip, free_port, nothing, number, numbers, rows, slow_numbers, until
from pecan._src.client import session
from soak import SOAK, cases
from test_commands import Program, run_command


@pytest.fixture
def records(tmp_path):
    return cache_service.write_records(tmp_path / "data")


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


def test_changed_files_with_computed_names_are_read_again(tmp_path, caplog):
    """Nobody notices that such a file has changed, so its elements are stored only if the user promises that none changes."""
    folder = tmp_path / "data"
    folder.mkdir()
    for k in range(60):
        (folder / str(k)).write_text(str(k))

    def contents(step) -> D:
        return D.range(60).map(lambda k: tf.io.read_file(f"{folder}/" + tf.strings.as_string(k))).apply(step).map(number).batch(4)

    with Service(tmp_path) as service:
        dataset = service.read(contents(pecan.cache()))
        (refused,) = [r.getMessage() for r in caplog.records if "pecan.cache() does nothing here" in r.getMessage()]
        assert "MapDataset" in refused and "files_never_change=True" in refused
        (found,) = pecan.explain(dataset).cache.candidates
        assert (found.legal, found.reason) == (False, "computed_files") and found.why in refused
        first = rows(dataset)
        (folder / "7").write_text("1000")
        changed = rows(contents(nothing()))
        assert changed != first
        # The client may have opened the next epoch before the change.
        assert [rows(dataset) for _ in range(3)][1:] == 2 * [changed]
        assert not service.segments()
        promised = service.read(contents(pecan.cache(files_never_change=True)))
        (found,) = pecan.explain(promised).cache.candidates
        assert found.legal and "never change" in found.why
        for _ in range(2):
            assert rows(promised) == changed
        assert service.job()["cache"]["state"] == "used" and service.segments()


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


def test_a_worker_writes_no_faster_than_its_rate(tmp_path):
    """However fast the disk is, an epoch that writes lasts as long as the bound says. One that reads does not."""
    rate = 2 << 20

    def noise(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # What snappy cannot make smaller.
        return x, tf.random.stateless_uniform([10_000], [x, x], None, None, tf.int64)

    dataset = D.range(50).map(noise).apply(pecan.cache()).map(lambda x, _: x)
    with Service(tmp_path, workers=1, cache_write_rate=rate) as service:
        read = service.read(dataset)
        spent = []
        for _ in range(2):
            began = time.monotonic()
            assert sorted(int(x) for x in read) == list(range(50))
            spent.append(time.monotonic() - began)
            until(lambda: service.job()["cache"]["state"] in ("committed", "used"), "the cache is not complete")
        written = sum(path.stat().st_size for path in service.segments())
        assert written > 50 * 80_000 and spent[0] >= written / rate > spent[1]


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
        # Powers of a large odd number do not compress, so that the size of a cache does not depend on the speed of its store.
        return tf.concat([[x], tf.math.cumprod(tf.fill([1000], 2 * x + 6364136223846793005))], 0)

    def spin(x: tf.Tensor) -> tf.Tensor:
        spun = tf.while_loop(lambda i, s: i < 800, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0))
        return x + tf.cast(spun[1] * 0, tf.int64)

    # Each cache has 1.6 MB of elements.
    cheap = D.range(200).map(large).apply(pecan.cache()).map(lambda x: x[0])
    expensive = D.range(200).map(spin).map(large).apply(pecan.cache()).map(lambda x: x[0])
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
        second = expensive.apply(pecan.distribute(target))
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
        assert states[low].startswith("not kept: other caches are expected to save more") and states[high] == "used"
        # It caches again when there is room.
        until(lambda: control("rm", high).returncode == 0, "a cache that no epoch uses is not removed")
        assert control("rm", high).returncode == 1
        assert sorted(int(x) for x in first) == list(range(200))
        until(lambda: recorded().keys() == files() == {low}, "the first job does not cache again")
        session.retire(bounded.address)


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    """D16: another user can write into the directory, or it is a link."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    with pecan.DispatchServer() as dispatcher:
        for name in ("open", "link"):
            with pytest.raises(pecan.ServerError, match="not safe to use"):
                pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target, cache_dir=tmp_path / name))
