"""A stream that moves to another worker continues at its index. Recomputed elements are counted, and there are few."""

from __future__ import annotations

import shutil
import signal
import time

import numpy as np
import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from soak import cases
from test_outages import programs  # noqa: F401

D = tf.data.Dataset
ROWS, BATCH = 6_000, 8


@tf.function
def _expensive(i: tf.Tensor) -> tf.Tensor:
    """Takes about 1 ms, and returns 8 KiB that start with the number."""
    x = tf.fill([64, 64], tf.cast(i, tf.float32) / ROWS)
    for _ in tf.range(20):
        x = tf.linalg.matmul(x, x) / 64.0
    return tf.fill([2048], tf.cast(i, tf.float32)) + 0.5 * tf.sign(tf.reduce_mean(x))


PIPELINES = {
    "by arithmetic": D.range(ROWS).map(_expensive).batch(BATCH),
    "in part": D.range(ROWS).filter(lambda i: i % 7 != 3).shuffle(32, seed=3).map(_expensive).batch(BATCH),
    "by a checkpoint": D.range(ROWS).map(_expensive).shuffle(32, seed=3).batch(BATCH),
}


def _recovery(link: session.Session) -> dict[str, int]:
    (job,) = link.status()["jobs"]
    return {key: int(value) for key, value in job.get("recovery", {}).items()}


def _delivered(link: session.Session) -> int:
    """The number of elements that the dispatcher counts as delivered. Another worker does not recompute them."""
    (job,) = link.status()["jobs"]
    return sum(int(epoch.get("elements", 0)) for epoch in job.get("epochs", ()))


@pytest.mark.parametrize(
    "name, how",
    # The resume strategy of a stream does not depend on how its worker was lost.
    cases(
        [(name, how) for name in PIPELINES for how in (signal.SIGKILL, signal.SIGTERM)],
        soak=[("by arithmetic", signal.SIGTERM), ("in part", signal.SIGTERM)],
    ),
)
def test_a_lost_worker_costs_few_recomputed_elements(programs, tmp_path, name, how):  # noqa: F811
    dispatcher = programs("pecan-dispatcher", "--listen", "127.0.0.1:0")
    flags = ["--dispatcher", dispatcher.address, "--max-streams", "16", "--window-bytes", "2097152", "--drain-timeout", "30s"]
    if name == "by a checkpoint":
        flags += ["--checkpoint-dir", str(tmp_path), "--checkpoint-interval", "300ms", "--checkpoint-share", "0.5"]
    leaving = programs("pecan-worker", *flags)
    dataset = PIPELINES[name]
    # One stream, because the names of its checkpoints say whether the reader has passed one of them.
    streams = 1 if name == "by a checkpoint" else "auto"
    ours = dataset.apply(pecan.distribute(dispatcher.address, deterministic=True, streams=streams, max_outstanding_bytes=16 << 20))
    link = session.connect(dispatcher.address, 10)
    seen, iterator = [], iter(ours)

    def usable(index: int) -> bool:
        return any(0 < int(file.name.split("-")[0]) <= index for file in tmp_path.rglob("*.checkpoint"))

    while len(seen) < 100 or _delivered(link) < 20 or (name == "by a checkpoint" and not usable(len(seen))):
        seen.append(next(iterator))
    programs("pecan-worker", *flags)
    leaving.process.send_signal(how)
    # After SIGTERM a worker ends once the trainer has all of its elements.
    seen.extend(iterator)
    leaving.process.wait(timeout=180)
    recovery = _recovery(link)
    resumed = recovery.get("restored" if name == "by a checkpoint" else "started", 0)
    assert resumed >= 1, recovery
    if how == signal.SIGTERM:
        assert recovery.get("recomputed", 0) == 0, recovery
    else:
        # The elements that the reader got after the last heartbeat, or that were produced after the last checkpoint.
        assert recovery.get("recomputed", 0) <= 500, recovery
    rows = np.concatenate([batch.numpy() for batch in seen])
    want = {int(row[0]): row for row in np.concatenate([batch.numpy() for batch in dataset])}
    assert sorted(int(row[0]) for row in rows) == sorted(want)
    for row in rows:
        np.testing.assert_array_equal(row, want[int(row[0])])


REFUSED = 37


@tf.function
def _expensive_with_one_failure(i: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_none_equal(i, tf.constant(REFUSED, tf.int64), message="refused")]):
        return _expensive(i)


def test_rows_after_a_failed_element_survive_a_restore_and_a_start_at_an_index(programs, tmp_path):  # noqa: F811
    """The failed element shifts all later batches. A run that is restored after it must have the same shift."""
    saved = tmp_path / "saved"
    saved.mkdir()
    dispatcher = programs("pecan-dispatcher", "--listen", "127.0.0.1:0")
    flags = ["--dispatcher", dispatcher.address, "--max-streams", "16", "--window-bytes", "1048576"]
    flags += ["--checkpoint-dir", str(saved), "--checkpoint-share", "0.5", "--checkpoint-interval"]
    worker = programs("pecan-worker", *flags, "500ms").process
    # take() makes the dataset one stream. Because of shuffle() the stream must recompute elements to start at an index.
    dataset = D.range(3 * ROWS).shuffle(1).map(_expensive_with_one_failure).batch(4).take(3 * ROWS)
    link = session.connect(dispatcher.address, 10)
    ours = iter(dataset.apply(pecan.distribute(dispatcher.address, seed=3, max_outstanding_bytes=1 << 20)))
    rows, failed = [], 0

    def read() -> bool:
        nonlocal failed
        try:
            rows.extend(int(row[0]) for row in next(ours).numpy())
        except StopIteration:
            return False
        except tf.errors.InvalidArgumentError:
            failed += 1
        return True

    while len(rows) < 400 or _recovery(link).get("saved", 0) < 4:
        assert read()
    worker.kill()
    worker.wait()
    worker = programs("pecan-worker", *flags, "1h").process
    end = time.monotonic() + 60
    while _recovery(link).get("restored", 0) < 1:
        assert time.monotonic() < end, _recovery(link)
        time.sleep(0.05)
    for _ in range(20):
        assert read()
    worker.kill()
    worker.wait()
    for job in saved.iterdir():
        shutil.rmtree(job)
    programs("pecan-worker", *flags, "1h")
    while read():
        pass
    assert failed == 1
    # The rows before the failed element in its batch are lost with it.
    lost = set(range(REFUSED - REFUSED % 4, REFUSED + 1))
    assert sorted(rows) == [i for i in range(3 * ROWS) if i not in lost]
