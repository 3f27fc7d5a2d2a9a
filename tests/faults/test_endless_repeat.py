"""Batches go on from pass to pass while workers and the dispatcher are killed."""

from __future__ import annotations

import collections

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, running_cluster, wait

BATCH = 7
# Files, rows, passes, and batches between two faults, by the number of streams. 40 streams have groups, and each group has a closing
# stream. The workers have 4 slots together.
DATA = {3: (9, 90, 6, 5), 9: (9, 90, 6, 5), 40: (40, 200, 4, 15)}


def _written(directory, files: int, rows: int) -> list[str]:
    names = [str(directory / f"{k}.tfrecord") for k in range(files)]
    for k, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for i in range(k, rows, files):
                writer.write(str(i).encode())
    return names


def _dataset(names: list[str]) -> tf.data.Dataset:
    records = tf.data.Dataset.from_tensor_slices(names).interleave(tf.data.TFRecordDataset, cycle_length=2)
    return records.map(lambda r: tf.strings.to_number(r, tf.int64)).shuffle(30).repeat().batch(BATCH)


@pytest.mark.parametrize("resumes", [False, True], ids=["one run", "the trainer resumes"])
@pytest.mark.parametrize("streams", DATA)
def test_each_row_comes_once_in_each_pass(tmp_path, streams, resumes):
    """In turn, in each of several passes: a worker, the dispatcher, or both of them are killed."""
    files, total, passes, every = DATA[streams]
    names = _written(tmp_path, files, total)
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(2)

        def begin() -> pecan.Iterator:
            return pecan.Iterator(_dataset(names).apply(pecan.distribute(cluster.target, streams=streams, seed=5)))

        iterator, rows = begin(), collections.Counter()
        for n in range(passes * total // BATCH):
            rows.update(next(iterator).numpy().tolist())
            if n % every == every - 1:
                fault = n // every % 3
                if fault != 0:
                    cluster.workers[-1].kill()
                    cluster.add_all(1)
                if fault != 1:
                    cluster.dispatcher.kill()
                    cluster.restart_dispatcher()
                if resumes:
                    state = iterator.state_dict()
                    iterator = begin()
                    iterator.load_state_dict(state)
        wait(lambda: "connected" in cluster.states(), "a worker serves")
        plan = cluster.status()["jobs"][-1]["plan"]
        assert (plan["num_streams"], plan.get("group", 0), plan["carry"]) == (streams, 16 if streams > 16 else 0, True)
    assert rows.total() == passes * total // BATCH * BATCH
    assert max(rows.values()) == passes
    assert all(passes - rows[i] in (0, 1) for i in range(total)), rows
