"""Random steps in more streams than slots: neither a killed worker nor a resumed trainer changes a value."""

from __future__ import annotations

import os
import signal

import oracle
import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset
AUTO = tf.data.AUTOTUNE
ELEMENTS, BATCH = 960, 4
# Two workers have two slots each, and a plan with more than 16 streams has groups.
STREAMS = 40


def _augment(i: tf.Tensor) -> tuple[tf.Tensor, ...]:
    image = tf.reshape(tf.range(192, dtype=tf.float32), [8, 8, 3]) / 192.0
    image = tf.image.random_brightness(tf.image.random_crop(tf.image.random_flip_left_right(image), [6, 6, 3]), 0.4)
    return i, image, tf.random.normal([2]), tf.random.uniform([], 0, 1 << 30, tf.int32)


PIPELINES = {
    "maps": lambda: D.range(ELEMENTS).map(_augment, num_parallel_calls=AUTO),
    "a shuffle and batches": lambda: D.range(ELEMENTS).shuffle(64).map(_augment, num_parallel_calls=AUTO).batch(BATCH),
    "a filter by drawn values": lambda: (
        D.range(ELEMENTS).map(_augment, num_parallel_calls=AUTO).filter(lambda i, image, noise, n: n > 1 << 28).batch(BATCH)
    ),
}


@pytest.mark.parametrize("mode", ["exactly_once", "deterministic"])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_killed_worker_and_a_resumed_trainer_change_no_value(name, mode):
    def distributed() -> tf.data.Dataset:
        options = dict(processing_mode=mode, seed=7, streams=STREAMS, max_outstanding_bytes=1)
        return PIPELINES[name]().apply(pecan.distribute(cluster.target, **options))

    with pecan.LocalCluster(workers=2) as cluster:
        undisturbed = [oracle.fingerprint(element) for element in distributed()]
        first = pecan.Iterator(distributed())
        read = [oracle.fingerprint(next(first)) for _ in range(len(undisturbed) // 6)]
        os.kill(cluster.workers.pop(0).process.pid, signal.SIGKILL)
        read += [oracle.fingerprint(next(first)) for _ in range(len(undisturbed) // 6)]
        cluster.add_workers(1)
        state = first.state_dict()
        del first
        second = pecan.Iterator(distributed())
        second.load_state_dict(state)
        read += [oracle.fingerprint(next(second)) for _ in range(len(undisturbed) // 6)]
        os.kill(cluster.workers.pop(0).process.pid, signal.SIGKILL)
        read += [oracle.fingerprint(element) for element in second]
    assert len(set(undisturbed)) == len(undisturbed)
    if mode == "deterministic":
        assert read == undisturbed
    else:
        assert sorted(read) == sorted(undisturbed)
