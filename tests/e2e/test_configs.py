"""Servers apply each field of their configuration."""

from __future__ import annotations

import pathlib
import time
import urllib.request

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session

D = tf.data.Dataset


def _until(condition, what: str, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_metrics_are_served_on_the_configured_port():
    ports = [_free_port(), _free_port()]
    with pecan.LocalCluster(
        1, dispatcher=pecan.DispatcherConfig(metrics_port=ports[0]), worker=pecan.WorkerConfig("h:1", metrics_port=ports[1])
    ):
        for port, name in zip(ports, ("dispatcher", "worker")):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=180) as page:
                assert f"pecan_{name}_" in page.read().decode()


def test_a_dispatcher_applies_its_configuration(tmp_path):
    """With a reserve larger than any disk the dispatcher does not start. Datasets without jobs expire."""
    full = pecan.DispatcherConfig(work_dir=tmp_path / "full", work_dir_reserve_bytes=1 << 62)
    with pytest.raises(pecan.ServerError, match="reserve"), pecan.DispatchServer(full):
        pass
    brief = pecan.DispatcherConfig(work_dir=tmp_path / "brief", work_dir_reserve_bytes=0, dataset_timeout_ms=100)
    with pecan.DispatchServer(brief) as dispatcher:
        pecan.register_dataset(dispatcher.target, D.range(5))
        link = session.connect(dispatcher.target.removeprefix("pecan://"), 10)
        _until(lambda: not link.status().get("datasets"), "the dataset has not expired")
        session.retire(dispatcher.target.removeprefix("pecan://"))


def test_a_worker_applies_its_configuration(tmp_path):
    """The worker writes checkpoints to their directory, and compresses its cache."""
    caches, saved = tmp_path / "caches", tmp_path / "saved"
    saved.mkdir()
    config = pecan.WorkerConfig(
        "h:1", cache_dir=caches, cache_compress=True, checkpoint_dir=saved, checkpoint_interval_ms=1, checkpoint_share=1.0,
        drain_timeout_ms=0, shared_memory_bytes=0, threads=70,
    )  # fmt: skip
    with pecan.LocalCluster(1, worker=config) as cluster:
        dataset = D.range(50).map(lambda i: tf.fill([20_000], i)).apply(pecan.cache())
        assert len(list(dataset.apply(pecan.distribute(cluster.target)))) == 50
        size = sum(path.stat().st_size for path in pathlib.Path(caches).glob("*.seg"))
        assert 0 < size < 50 * 20_000 * 8 / 4
        # Streams that cannot start at an index, so that the worker writes checkpoints.
        counted = D.range(10**7).scan(tf.constant(0, tf.int64), lambda s, i: (s + i, s + i)).map(lambda x: (x, x))
        iterator = iter(counted.apply(pecan.distribute(cluster.target)))

        def written():
            for _ in range(1000):
                next(iterator)
            return any(path.is_file() for path in saved.rglob("*"))

        _until(written, "no checkpoint is written")
        process = pathlib.Path(f"/proc/{cluster.workers[0].process.pid}")
        # Without shared memory the worker sends elements over a socket.
        assert "memfd:pecan" not in (process / "maps").read_text()
        assert len(list((process / "task").iterdir())) > 70, "the thread pool is smaller than 70"
