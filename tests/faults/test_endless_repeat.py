"""Batches go on from pass to pass while workers and the dispatcher are killed."""

from __future__ import annotations

import collections

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, running_cluster, wait

ROWS, BATCH, PASSES = 90, 7, 6


@pytest.fixture
def names(tmp_path) -> list[str]:
    names = [str(tmp_path / f"{k}.tfrecord") for k in range(9)]
    for k, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for i in range(k, ROWS, len(names)):
                writer.write(str(i).encode())
    return names


def _dataset(names: list[str]) -> tf.data.Dataset:
    records = tf.data.Dataset.from_tensor_slices(names).interleave(tf.data.TFRecordDataset, cycle_length=2)
    return records.map(lambda r: tf.strings.to_number(r, tf.int64)).shuffle(30).repeat().batch(BATCH)


@pytest.mark.parametrize("resumes", [False, True], ids=["one run", "the trainer resumes"])
@pytest.mark.parametrize("streams", [3, 9])
def test_each_row_comes_once_in_each_pass(tmp_path, names, streams, resumes):
    """In turn, in each of several passes: a worker, the dispatcher, or both of them are killed."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(2)

        def begin() -> pecan.Iterator:
            return pecan.Iterator(_dataset(names).apply(pecan.distribute(cluster.target, streams=streams, seed=5)))

        iterator, rows = begin(), collections.Counter()
        for n in range(PASSES * ROWS // BATCH):
            rows.update(next(iterator).numpy().tolist())
            if n % 5 == 4:
                if n % 3 != 0:
                    cluster.workers[-1].kill()
                    cluster.add_all(1)
                if n % 3 != 1:
                    cluster.dispatcher.kill()
                    cluster.restart_dispatcher()
                if resumes:
                    state = iterator.state_dict()
                    iterator = begin()
                    iterator.load_state_dict(state)
        wait(lambda: "connected" in cluster.states(), "a worker serves")
    assert rows.total() == PASSES * ROWS // BATCH * BATCH
    assert max(rows.values()) == PASSES
    assert all(PASSES - rows[i] in (0, 1) for i in range(ROWS)), rows
