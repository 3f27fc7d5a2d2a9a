"""The closing stream starts while remainders of slow or restarted streams are still missing.

An early build sometimes hung when a remainder arrived while the closing stream was starting. Each test repeats that
situation many times. A hang ends the run and prints the stack of every thread (tests/conftest.py). PECAN_CLOSINGS sets
how many epochs each test reads (8 by default).
"""

from __future__ import annotations

import collections
import os
import random
import signal

import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset
EPOCHS = int(os.environ.get("PECAN_CLOSINGS", "8"))
# More streams than the workers have slots, in three groups with a closing stream each.
MANY = 40


def _twice(batch):
    return batch * 2, tf.reduce_sum(batch)


def _slowly(i):
    """Takes about 1 ms for ids of one stream's share, and no time for the others."""
    rounds = tf.where(i < 12, 1000, 0)
    spun = tf.while_loop(lambda n, _: n < rounds, lambda n, x: (n + 1, tf.cos(x)), (0, tf.cast(i, tf.float32)))[1]
    return i + tf.cast(spun * 0, tf.int64)


def _few(slow, count):
    dataset = D.range(count)
    if slow:
        dataset = dataset.map(_slowly)
    return dataset.filter(lambda i: i % 3 != 0).batch(5).map(_twice)


def _seen(elements):
    """Counts the rows, and the batches by size."""
    rows, sizes = collections.Counter(), collections.Counter()
    for doubled, total in elements:
        values = doubled.numpy().tolist()
        assert sum(values) == 2 * int(total)
        rows.update(values)
        sizes[len(values)] += 1
    return rows, sizes


@pytest.fixture(scope="module")
def cluster():
    with pecan.LocalCluster(workers=3) as cluster:
        yield cluster


@pytest.mark.parametrize("slow", [False, True], ids=["equal streams", "one slow stream"])
@pytest.mark.parametrize(("count", "streams"), [(2, "auto"), (23, "auto"), (60, "auto"), (60, MANY)])
def test_remainders_arrive_while_the_closing_stream_starts(cluster, count, streams, slow):
    local = _seen(_few(slow, count))
    ours = _few(slow, count).apply(pecan.distribute(cluster.target, streams=streams)).repeat(EPOCHS)
    rows, sizes = _seen(ours)
    assert rows == collections.Counter({row: times * EPOCHS for row, times in local[0].items()})
    assert sizes == collections.Counter({size: times * EPOCHS for size, times in local[1].items()})


@pytest.mark.parametrize("seed", range(max(1, EPOCHS // 8)))
@pytest.mark.parametrize("slow", [False, True], ids=["equal streams", "one slow stream"])
def test_workers_die_with_their_remainders(slow, seed):
    chance = random.Random(f"{seed}/{slow}")
    local = _seen(_few(slow, 200))
    batches = sum(local[1].values())
    config = pecan.DispatcherConfig(worker_timeout_ms=1000)
    with pecan.LocalCluster(workers=3, dispatcher=config) as cluster:
        ours = _few(slow, 200).apply(pecan.distribute(cluster.target, streams=chance.choice(("auto", MANY))))
        for _ in range(3 if EPOCHS <= 8 else 6):
            # The death comes early, in the middle, or at the end, when only remainders are left.
            at, elements = chance.choice((0, batches // 2, batches - 2, batches - 1)), []
            for number, element in enumerate(ours):
                elements.append(element)
                if number == at:
                    victim = cluster.workers.pop(chance.randrange(len(cluster.workers)))
                    os.kill(victim.process.pid, chance.choice((signal.SIGKILL, signal.SIGTERM)))
                    cluster.add_workers(1)
            assert _seen(elements) == local
