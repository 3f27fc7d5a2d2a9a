"""After an error a pass continues at its position, or raises the error again. It never skips elements silently."""

from __future__ import annotations

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, running_cluster, wait
from test_poison import Supervisor

D = tf.data.Dataset

# An earlier version reported three outages, and then took the pass as ended.
OUTAGES = 4
TOTAL = 200


def _large(i):
    """A large element, so that only a part of a pass can be in flight."""
    return tf.fill([50_000], i)


# A stream has at least one element.
@pytest.mark.streams(most=TOTAL)
@pytest.mark.parametrize(
    ("lost", "after", "read"),
    [
        ("workers", lambda d: d.repeat(), iter),
        ("all", lambda d: d.repeat(), pecan.Iterator),
    ],
    ids=["iter over repeat", "pecan.Iterator over repeat, with the dispatcher"],
)
def test_repeated_outages_skip_no_element(tmp_path, streams, lost, after, read):
    """L9: the test calls the iterator again after each outage. It continues at its position after any number of outages."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        worker = cluster.add()
        dataset = D.range(TOTAL).map(_large)
        dataset = dataset.apply(pecan.distribute(cluster.target, streams=streams, dispatcher_timeout_s=1, max_outstanding_bytes=1))
        iterator = read(after(dataset))
        seen = [int(next(iterator)[0]) for _ in range(10)]
        if lost == "all":
            cluster.dispatcher.kill()
        worker.kill()
        outages = 0
        while outages < OUTAGES:
            try:
                seen.append(int(next(iterator)[0]))
            except tf.errors.UnavailableError:
                outages += 1
        assert len(seen) < TOTAL
        if lost == "all":
            cluster.restart_dispatcher()
        cluster.add()
        while len(seen) < TOTAL:
            try:
                seen.append(int(next(iterator)[0]))
            except tf.errors.UnavailableError:
                continue
        assert sorted(seen) == list(range(TOTAL))
        del iterator, dataset


def test_a_pass_that_an_error_ended_can_be_resumed(tmp_path):
    """L9: the error is raised again, and the position stays. An iterator that loads the position reads the rest after the cause is removed."""
    poison = tmp_path / "poison"
    poison.write_text("yes")

    def die():
        with tf.control_dependencies([tf.raw_ops.Abort(error_msg="the poison")]):
            return tf.constant(0, tf.int64)

    def step(i):
        there = tf.equal(tf.io.read_file(str(poison)), "yes")
        return tf.cond(tf.logical_and(there, tf.equal(i, TOTAL // 2)), die, lambda: i)

    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add()
        dataset = D.range(TOTAL).map(step).map(_large)
        dataset = dataset.apply(pecan.distribute(cluster.target, max_outstanding_bytes=1)).repeat()
        iterator = pecan.Iterator(dataset)
        seen = [int(next(iterator)[0])]
        with Supervisor(cluster) as supervisor:
            with pytest.raises(tf.errors.DataLossError, match="ELEMENT_POISON"):
                seen.extend(int(element[0]) for element in iterator)
            wait(lambda: len(supervisor.causes) >= 3, "the supervisor has seen the third death")
            for _ in range(3):
                with pytest.raises(tf.errors.CancelledError, match="ELEMENT_POISON"):
                    next(iterator)
            poison.write_text("no")
            iterator.load_state_dict(iterator.state_dict())
            while len(seen) < TOTAL:
                seen.append(int(next(iterator)[0]))
        assert sorted(seen) == list(range(TOTAL))
        del iterator, dataset
