"""What the tests of cache() share: a service with a cache directory, and a dataset of record files."""

from __future__ import annotations

import collections
import contextlib
import pathlib
import socket
import time
from collections.abc import Callable

import numpy as np
import oracle
import pecan
import tensorflow as tf
from pecan._src.client import session

D = tf.data.Dataset
PATIENCE_S = 180
SIZES = (31, 0, 7, 64, 20, 9, 1, 48)


def free_port() -> int:
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def write_records(path: pathlib.Path) -> list[str]:
    """Writes record files of different lengths, whose records are numbers."""
    names, first = [], 0
    path.mkdir()
    for k, size in enumerate(SIZES):
        names.append(str(path / f"part-{k}.tfrecord"))
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


def loose(x: tf.Tensor) -> dict[str, object]:
    """An element with ragged and sparse values."""
    lengths = [x % 3, x % 2]
    rows = tf.RaggedTensor.from_row_lengths(tf.range(x % 3 + x % 2), lengths)
    return {
        "id": x, "rows": rows, "texts": tf.strings.as_string(rows), "deep": tf.RaggedTensor.from_row_lengths(rows, [1, 0, 1]),
        "sparse": tf.sparse.from_dense(tf.one_hot(x % 5, 5, dtype=tf.int32)),
    }


def dense(e: dict[str, object]) -> dict[str, tf.Tensor]:
    """The same with dense ones."""
    return {k: v.to_tensor() if isinstance(v, tf.RaggedTensor) else tf.sparse.to_dense(v) if isinstance(v, tf.SparseTensor) else v for k, v in e.items()}


def nothing():
    """In place of pecan.cache: no step."""
    return lambda dataset: dataset


class Service:
    """A dispatcher, and workers with a cache directory that the test can read."""

    def __init__(self, tmp_path: pathlib.Path, workers: int = 2, work_dir: pathlib.Path | None = None, worker_timeout_ms: int = 2_000, **config) -> None:
        self.caches = tmp_path / "cache"
        self.config = {"cache_dir": self.caches, **config}
        port = free_port() if work_dir else 0
        self.dispatcher_config = pecan.DispatcherConfig(port=port, worker_timeout_ms=worker_timeout_ms, work_dir=work_dir)
        self.dispatcher = pecan.DispatchServer(self.dispatcher_config)
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

    def restart(self) -> None:
        """Kills the dispatcher, and starts it again over its state."""
        self.dispatcher.process.kill()
        self.dispatcher = pecan.DispatchServer(self.dispatcher_config)

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
        """The segments of caches, without those with which a worker measures the directory."""
        return sorted(path for path in self.caches.glob("*.seg") if "-probe-" not in path.name)

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


def elements(dataset: D) -> list[list[list]]:
    return [[component.tolist() for component in tf.nest.map_structure(np.asarray, tf.nest.flatten(e))] for e in dataset.as_numpy_iterator()]


def check_epochs(service: Service, build: Callable[[Callable], D], compared: str, deterministic: bool, **options) -> tuple[list[pathlib.Path], int]:
    """Checks that epochs that read a cache, or half of it, equal those that compute.

    Returns the segments that were written, and the number of streams.

    `compared` says what of a local run is equal, too (`oracle.compare`). It is empty if a local run makes other random choices.
    """
    options = {"deterministic": deterministic, "seed": 3, **options}
    off = service.read(build(pecan.cache), cache="off", **options)
    computed = [elements(off) for _ in range(3)]
    if compared:
        oracle.compare(oracle.run(off), oracle.run(build(nothing)), compared)
    before = set(service.segments())
    dataset = service.read(build(pecan.cache), **options)
    first = elements(dataset)
    assert service.job()["cache"]["state"] == "committed", service.job()["plan"]["reasons"]
    written = sorted(set(service.segments()) - before)
    assert len(written) > 1
    second = elements(dataset)
    assert service.job()["cache"]["state"] == "used"
    # Half of the cache is lost.
    for path in written[::2]:
        path.unlink()
    third = elements(dataset)
    streams = service.job()["plan"]["num_streams"]
    for got, want in zip((first, second, third), computed, strict=True):
        assert got == want if deterministic else sorted(got) == sorted(want)
    return written, streams


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def slow_numbers(names: list[str], files: D | None = None) -> D:
    """Like `numbers`, but slow enough to kill a worker during an epoch. `files` lists the names in another way."""
    def linger(x: tf.Tensor) -> tf.Tensor:
        spin = tf.while_loop(lambda i, s: i < 800, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0))
        return x + tf.cast(spin[1] * 0, tf.int64)

    dataset = (files or D.from_tensor_slices(names)).interleave(tf.data.TFRecordDataset).map(number).map(linger)
    return dataset.apply(pecan.cache()).map(lambda x: 3 * x).map(linger).batch(4)


def flip(path: pathlib.Path) -> None:
    """Changes one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
