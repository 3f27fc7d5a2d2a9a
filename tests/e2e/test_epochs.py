"""The end of one epoch and the start of the next: which epochs are prefetched, and what an unread prefetched epoch costs."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from script import Script

D = tf.data.Dataset
PATIENCE_S = 180


def _until(what: str, condition: Callable):
    """Polls until the result is true, and returns it."""
    end = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < end, f"did not happen: {what}"
        time.sleep(0.05)
    return answer


def test_an_epoch_that_others_consumed_is_reported_as_empty(cluster):
    def name(dataset):
        return dataset.apply(pecan.distribute(cluster.target, job_name="had-by-others"))

    first = name(D.range(10))
    assert len(list(first)) == 10
    late = "say(len(list(D.range(10).apply(pecan.distribute(sys.argv[1], job_name='had-by-others')))))"
    with Script(late, cluster.target) as script:
        _, out, err = script.rest(180)
    assert out == "0\n"
    for words in ("epoch 0 has no elements left", "had-by-others", "another job_name"):
        assert words in err
    assert len(list(first)) == 10


class Heartbeats:
    """Counts the heartbeats of each worker. A heartbeat has come when the time since the last heartbeat decreases."""

    def __init__(self, link) -> None:
        self.link, self.ages, self.counts = link, {}, collections.Counter()

    def three(self) -> bool:
        for worker in self.link.status()["workers"]:
            name, age = worker["address"]["worker_id"], worker.get("last_heartbeat_s", 0.0)
            self.counts[name] += age < self.ages.get(name, 0.0)
            self.ages[name] = age
        return min(self.counts.values()) >= 3


class Jobs:
    """The jobs that a dispatcher creates from now on."""

    def __init__(self, cluster) -> None:
        self.link = session.connect(cluster.target, 10)
        self.before = {job["job_id"] for job in self.link.status().get("jobs", [])}

    def job(self) -> dict:
        """The only new job."""
        (job,) = [job for job in self.link.status()["jobs"] if job["job_id"] not in self.before]
        return job

    def epoch(self, number: int, *states: str) -> dict | None:
        """An epoch of the new job, if it is in one of the states."""
        epochs = {int(epoch.get("epoch", 0)): epoch for epoch in self.job().get("epochs", [])}
        return epochs[number] if number in epochs and epochs[number]["state"] in states else None

    def delivered(self, number: int) -> dict | None:
        """An epoch of the new job, if its trainer has read it to its end."""
        return self.epoch(number, "delivered")

    def settled(self) -> None:
        """Waits until each worker has sent three heartbeats without a change of the job's metrics."""
        counts, heartbeats = None, Heartbeats(self.link)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            now = {node["node"]: int(node.get("elements", 0)) for node in self.job().get("nodes", [])}
            if now != counts:
                counts, heartbeats = now, Heartbeats(self.link)
            if heartbeats.three() and counts:
                return
            time.sleep(0.05)
        raise AssertionError(f"the workers still produce elements: {counts}")


def test_a_pass_of_known_length_is_read_to_its_end(cluster):
    """The reader and the dispatcher both learn that no element follows the last one."""
    jobs = Jobs(cluster)
    dataset = D.range(400).map(lambda i: (i, tf.fill([2000], i))).batch(7)
    dataset = dataset.apply(pecan.distribute(cluster.target, max_outstanding_bytes=64 << 10))
    for number in range(5):
        assert sum(1 for _ in dataset) == dataset.cardinality() == 58
        _until("the epoch is delivered", lambda number=number: jobs.delivered(number))
        assert int(jobs.delivered(number)["elements"]) == 58


def test_an_unread_prefetched_epoch_costs_one_element_per_worker(cluster):
    jobs = Jobs(cluster)
    dataset = D.range(40_000).map(lambda i: i * 2).batch(10).apply(pecan.distribute(cluster.target))
    assert sum(len(batch) for batch in dataset) == 40_000
    _until("the next epoch is open and unread", lambda: jobs.epoch(1, "ahead"))
    _until("the first is closed", lambda: jobs.delivered(0))
    jobs.settled()
    # Each of the two workers starts one stream and pauses in it, although a stream is small enough to run to its end.
    prefetched = jobs.epoch(1, "ahead")
    assert 1 <= prefetched.get("streams_running", 0) <= 2, prefetched
    assert not prefetched.get("streams_done"), prefetched
    assert prefetched["streams_waiting"] >= 14, prefetched
    # The next iterator reads this epoch.
    assert sum(len(batch) for batch in dataset) == 40_000
    _until("the epoch is delivered", lambda: jobs.delivered(1))
    _until("the epoch after it is open", lambda: jobs.epoch(2, "ahead"))


@pytest.mark.parametrize("mode", ["exactly_once", "deterministic", "off"])
def test_every_epoch_is_complete(cluster, mode):
    times = 2 if mode == "off" else 1
    dataset = D.range(500).apply(pecan.distribute(cluster.target, processing_mode=mode, seed=3)).repeat(3)
    counts = collections.Counter(int(i) for i in dataset)
    assert counts == {i: 3 * times for i in range(500)}


def test_no_epoch_is_prefetched_after_the_last_pass_of_a_repeat(cluster):
    jobs = Jobs(cluster)
    dataset = D.range(100).shuffle(10).repeat(3).apply(pecan.distribute(cluster.target))
    assert len(list(dataset)) == 300
    _until("the last pass is closed", lambda: jobs.delivered(2))
    assert len(jobs.job()["epochs"]) == 3


def test_no_epoch_is_prefetched_over_a_file_cache(cluster, tmp_path):
    jobs = Jobs(cluster)
    dataset = D.range(100).cache(str(tmp_path / "cache")).apply(pecan.distribute(cluster.target))
    for number in range(2):
        assert sorted(int(i) for i in dataset) == list(range(100))
        _until("the epoch is closed", lambda number=number: jobs.delivered(number))
        assert len(jobs.job()["epochs"]) == number + 1


def _slow(number):
    """Keeps a worker in an operation for some time, so that a stopped run does not end at once."""
    noise = tf.random.stateless_uniform([700, 700], [tf.cast(number, tf.int32), 1])
    return number + tf.cast(tf.reduce_sum(noise @ noise @ noise) * 0, tf.int64)


def test_abandoned_passes_leave_a_file_cache_intact(cluster, tmp_path):
    """A pass that a trainer left early does not lock or delete files of the next pass, on any worker."""

    def make():
        return D.range(200).map(_slow).cache(str(tmp_path / "cache")).apply(pecan.distribute(cluster.target))

    dataset = make()
    for number in range(10):
        if number == 5:
            # Another job over the same files. The first job ends with its dataset.
            dataset = make()
        got = [int(i) for i in itertools.islice(dataset, 7 * number)]
        assert len(set(got)) == len(got) == 7 * number
    for _ in range(2):
        assert sorted(int(i) for i in dataset) == list(range(200))
