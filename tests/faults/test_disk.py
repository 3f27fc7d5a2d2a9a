"""What full disks do to a job. The disks are real file systems in memory."""

from __future__ import annotations

import errno
import os
import pathlib
import re
import socket
import subprocess
import threading
import time
import urllib.request

import pecan
import pytest
import slow_disk as slow_disks
import tensorflow as tf
from cluster import Cluster, running_cluster, wait
from records import FULL
from run import Run


@pytest.fixture
def small_disk():
    """Mounts small file systems, which are unmounted at the end of the test."""
    mounted: list[pathlib.Path] = []

    def mount(at: pathlib.Path, size: int) -> pathlib.Path:
        at.mkdir()
        if os.geteuid() != 0:
            pytest.skip("only root may mount a small disk")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(at)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr}")
        mounted.append(at)
        return at

    yield mount
    for at in mounted:
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.fixture
def slow_disk(tmp_path):
    """A mounted file system whose calls take as long as the test says."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("only root may mount a file system of /dev/fuse")
    disk = slow_disks.SlowDisk(tmp_path / "slow")
    if not disk.mounted:
        pytest.skip("no file system of /dev/fuse can be mounted here")
    yield disk
    disk.delay(0)
    disk.unmount()


def _fill(disk: pathlib.Path) -> pathlib.Path:
    """Fills the rest of the disk."""
    filler = disk / "filler"
    filler.touch()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        filler.write_bytes(bytes(os.statvfs(disk).f_frsize * (os.statvfs(disk).f_bavail + 1)))
    return filler


def test_a_dispatcher_with_a_full_disk_grants_no_leases_and_continues(tmp_path, data, truth, golden, rng, small_disk):
    """D5: while the disk of the work directory is full, running streams continue, no lease is granted, and nobody times out."""
    disk = small_disk(tmp_path / "disk", 64 << 20)
    with running_cluster(Cluster(tmp_path, work=disk / "work", flags=("--work-dir-reserve-bytes", str(16 << 20)))) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, "deterministic", 3) as run:
            run.read_until(0, rng.randrange(data.total // 10, data.total // 2))
            filler = _fill(disk)
            run.note_fault("the dispatcher's disk ran full")

            def make_room() -> None:
                wait(lambda: "the disk is full" in cluster.dispatcher.log.read_text(), "the dispatcher logs the full disk")
                granted = cluster.granted()
                still = [run.delivered, time.monotonic()]

                def starves() -> bool:
                    if run.delivered != still[0]:
                        still[:] = [run.delivered, time.monotonic()]
                    return time.monotonic() - still[1] > 4

                # The outage is longer than the time after which a silent worker counts as dead.
                wait(starves, "the trainer has everything that workers produced")
                assert cluster.granted() == granted, "a lease was granted on a full disk"
                filler.unlink()
                found.append(granted)

            found: list[list[tuple[str, ...]]] = []
            room = threading.Thread(target=make_room)
            room.start()
            run.finish()
            room.join()
            assert found, "the dispatcher did not notice the full disk"
            run.check(truth, golden, moved=0)
            log = cluster.dispatcher.log.read_text()
            assert "the disk has space again" in log and "worker lost" not in log
            assert cluster.states() == ["connected"] * 3
        run.release()


def test_a_full_cache_disk_caches_what_fits(tmp_path, data, truth, small_disk):
    """D5: the output of a cached step does not fit on the workers' disk. What does not fit is computed in every epoch."""
    disk = small_disk(tmp_path / "disk", 1 << 20)
    with running_cluster(Cluster(tmp_path, worker_flags=("--cache-dir", str(disk / "cache")))) as cluster:
        cluster.add_all(2)
        with Run(cluster, data, "exactly_once", 2, dataset=data.dataset().apply(pecan.cache())) as run:
            run.finish()
            run.check(truth, None, moved=0)
            wait(lambda: _metric(cluster, "cache", "writes_dropped") > 0, "segments do not fit")
            (job,) = cluster.status()["jobs"]
            assert job["cache"]["state"].startswith("filling"), job["cache"]["state"]
            nodes = {node["op"]: int(node["elements"]) for node in job["nodes"]}
            assert data.total < nodes["InterleaveDataset"] <= 2 * data.total
        run.release()


@pytest.mark.streams(least=32, most=64)
def test_a_disk_that_fills_while_a_chosen_cache_is_written_changes_no_element(tmp_path, data, truth, golden, small_disk):
    """D5: the disk is full when workers have written a part of what the service has chosen. The rest is computed, and what is stored stays."""
    disk = small_disk(tmp_path / "disk", 64 << 20)
    with running_cluster(Cluster(tmp_path, worker_flags=("--cache-dir", str(disk / "cache")))) as cluster:
        cluster.add_all(2)
        # On a busy host, the service may measure for some epochs before it chooses.
        expensive = data.dataset().map(lambda *element: _expensive(*element, turns=1600))
        with Run(cluster, data, "deterministic", 9, dataset=expensive, **AUTOMATIC) as run:
            _read_until_written(run, disk / "cache", 1)
            _fill(disk)
            run.note_fault("the workers' disk ran full")
            run.finish()
            run.check(truth, golden, moved=0)
            wait(lambda: _metric(cluster, "cache", "writes_dropped") > 0, "a metric counts what is not written")
            assert any("no space left on device" in worker.log.read_text() for worker in cluster.workers), "no worker warns"
            (job,) = cluster.status()["jobs"]
            stored, streams = int(job["cache"]["segments"]), int(job["cache"]["streams"])
            assert 0 < stored < streams, f"{stored} of {streams} segments are stored"
            wait(lambda: _metric(cluster, "cache", "bytes_read") > 0, "what is stored is read")
        run.release()


@pytest.mark.parametrize("cache", ["forced", pytest.param("auto", marks=pytest.mark.streams(most=128))])
def test_a_read_only_cache_disk_is_reported_and_changes_no_element(tmp_path, data, truth, small_disk, cache):
    """D14: the file system of the cache directory is read-only. Every epoch computes, and a warning and a metric say so.

    When it can be written again, the service chooses a cache.
    """
    disk = small_disk(tmp_path / "disk", 64 << 20)
    (disk / "cache").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    # Only a decision needs a step that is worth a cache.
    dataset = data.dataset().apply(pecan.cache()) if cache == "forced" else data.dataset().map(_expensive)
    with running_cluster(Cluster(tmp_path, worker_flags=("--cache-dir", str(disk / "cache")))) as cluster:
        ports = [_free_port() for _ in range(2)]
        for port in ports:
            cluster.add("--metrics-listen", f"127.0.0.1:{port}")

        def writable(value: int) -> bool:
            return all(_sample(port, "pecan_worker_cache_writable") == value for port in ports)

        options = AUTOMATIC if cache == "auto" else {}
        with Run(cluster, data, "exactly_once", 2 if cache == "forced" else 6, dataset=dataset, **options) as run:
            run.read_until(2, 0)
            wait(lambda: all("read-only file system" in worker.log.read_text() for worker in cluster.workers), "workers warn")
            wait(lambda: writable(0), "a metric says that the directory cannot be written")
            if cache == "forced":
                wait(lambda: _metric(cluster, "cache", "writes_dropped") > 0, "a metric counts what is not written")
            else:
                explained = pecan.explain(run.dataset).cache
                assert "nothing is cached" in explained.decision, explained
                assert not any(candidate.stored for candidate in explained.candidates), explained
                subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
                wait(lambda: writable(1), "a metric says that the directory can be written")
            run.finish()
            run.check(truth, None, moved=0)
            if cache == "auto":
                wait(lambda: _metric(cluster, "cache", "segments") > 0, "the service chooses a cache when the directory can be written")
        run.release()


# A forced cache is written and read in the same way.
@pytest.mark.streams(least=32, most=64)
@pytest.mark.parametrize("cache, mode", [("auto", "deterministic"), ("forced", "exactly_once")] if FULL else [("auto", "deterministic")])
def test_a_slow_cache_directory_does_not_stop_epochs(tmp_path, data, truth, golden, slow_disk, cache, mode):
    """D14: each call of the cache directory takes 5 s, while segments are written, and while they are read. The epochs go on without it."""
    slow = "does not answer in time"
    forced = cache == "forced"
    # The service must choose this directory, each call of which is answered by Python.
    dataset = data.dataset().apply(pecan.cache()) if forced else data.dataset().map(lambda *element: _expensive(*element, turns=2400))
    with running_cluster(Cluster(tmp_path, worker_flags=("--cache-dir", str(slow_disk.path)))) as cluster:
        cluster.add_all(2)
        with Run(cluster, data, mode, 5, dataset=dataset, **({} if forced else AUTOMATIC)) as run:
            _read_until_written(run, slow_disk.path, 2)
            for epoch in range(run.epoch, run.epoch + 2):
                began = time.monotonic()
                slow_disk.delay(5)
                run.read_until(epoch + 1, 0)
                # Four calls of each stream would take 160 s or more.
                assert time.monotonic() - began < 60, f"epoch {epoch} waited for the directory"
            wait(lambda: any(slow in worker.log.read_text() for worker in cluster.workers), "workers warn")
            wait(lambda: _metric(cluster, "cache", "writes_dropped") > 0, "a metric counts what is not written")
            slow_disk.delay(0)
            run.finish()
            run.check(truth, golden, moved=0)
            assert _metric(cluster, "cache", "segments_invalid") == 0, "a slow segment counts as damaged"
        run.release()


# The states of streams over more, shorter files fit on the disk.
@pytest.mark.streams(most=40)
def test_a_full_checkpoint_disk_saves_no_checkpoints(tmp_path, data, truth, small_disk):
    """D5: checkpoints do not fit on the workers' disk. After a worker's death its elements are recomputed."""
    disk = small_disk(tmp_path / "disk", 256 << 10)
    flags = ("--checkpoint-dir", str(disk), "--checkpoint-interval", "100ms", "--checkpoint-share", "1")
    dataset = data.dataset().map(_expensive).shuffle(400, seed=5)
    with running_cluster(Cluster(tmp_path, worker_flags=flags)) as cluster:
        cluster.add_all(2)
        with Run(cluster, data, "exactly_once", 1, dataset=dataset, streams="auto") as run:
            run.read_until(0, 1)
            while not _metric(cluster, "recovery", "not_saved"):
                run.read_until(0, run.position + 1)
            assert not _metric(cluster, "recovery", "saved")
            cluster.workers[0].kill()
            run.note_fault("a worker without a checkpoint was killed")
            run.finish()
            run.check(truth, None, moved=1)
        run.release()


# The job's options for a cache that the service chooses.
AUTOMATIC = {"cache": "auto", "order": "off"}


def _read_until_written(run: Run, cache: pathlib.Path, more: int) -> None:
    """Reads until a segment is stored, and at least one element of an epoch. The run ends so many epochs after that one."""
    run.read_until(0, 1)
    # Workers measure the directory when they start.
    while run.epoch < run.passes and (run.position == 0 or all("-probe-" in path.name for path in cache.glob("*.seg"))):
        run.read_until(run.epoch, run.position + 1)
    run.passes = run.epoch + 1 + more


def _expensive(number: tf.Tensor, payload: tf.Tensor, total: tf.Tensor, turns: int = 400) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    spin = tf.while_loop(lambda i, s: i < turns, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0))
    return number, payload, total + tf.cast(spin[1] * 0, tf.int64)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _sample(port: int, name: str) -> float:
    """A sample without labels that a program serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return float(re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)[1])


def _metric(cluster: Cluster, what: str, name: str) -> int:
    """The sum of one metric that workers report about jobs or about themselves."""
    status = cluster.status()
    return sum(int(one.get(what, {}).get(name, 0)) for one in (*status["jobs"], *status["workers"]))
