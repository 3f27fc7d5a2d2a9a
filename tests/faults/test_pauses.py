"""Processes that stop and continue (SIGSTOP and SIGCONT), with the dispatcher's timeouts reduced to about a tenth."""

from __future__ import annotations

import time

import pytest
from cluster import Cluster, running_cluster, wait
from records import GROUP, SPREAD
from run import Run


def _some_host(cluster: Cluster, run: Run):
    """A worker that has a stream of the current epoch."""

    def host():
        addresses = {address for (_, epoch, _), (_, address) in cluster.leases().items() if epoch == run.epoch}
        return next((worker for worker in cluster.workers if worker.address in addresses), None)

    return wait(host, "a worker has a stream")


def test_a_worker_keeps_its_streams_over_a_short_pause(tmp_path, data, truth, golden, mode, rng):
    """G1, short: the dispatcher suspects the worker, and moves no stream."""
    times = ("--worker-suspect-after", "600ms", "--worker-dead-after", "60s")
    with running_cluster(Cluster(tmp_path, flags=times)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 2) as run:
            run.read_until(0, rng.randrange(data.total // 10, data.total // 2))
            sleeper = _some_host(cluster, run)
            before = {key: held for key, held in cluster.leases().items() if held[1] == sleeper.address}
            sleeper.pause()
            run.note_fault("a worker was stopped")
            wait(lambda: cluster.states() == ["connected", "connected", "suspect"], "the worker is suspected")
            after = cluster.leases()
            assert all(after.get(key, held) == held for key, held in before.items()), "streams moved after a short pause"
            sleeper.resume()
            wait(lambda: cluster.states() == ["connected"] * 3, "the worker is connected again")
            run.finish()
            run.check(truth, golden, moved=0)
            assert not run.observer.moved()
        run.release()


@pytest.mark.streams(least=SPREAD)
def test_a_worker_is_fenced_after_a_long_pause_and_returns_as_a_new_worker(tmp_path, data, truth, golden, mode, rng):
    """G1, long: its streams move. After it continues, its frames carry an old lease, and it serves again as a new worker."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 3) as run:
            run.read_until(0, rng.randrange(data.total // 10, data.total // 2))
            sleeper = _some_host(cluster, run)
            sleeper.pause()
            run.note_fault("a worker was stopped")
            wait(lambda: len(cluster.states()) == 2, "the worker counts as dead")
            run.read_until(0, run.position + data.total // 10)
            sleeper.resume()
            wait(lambda: cluster.states() == ["connected"] * 3, "the worker is back")
            run.read_until(1, data.total // 4)
            wait(lambda: sleeper.address in {held[1] for held in cluster.leases().values()}, "the worker has streams again")
            run.finish()
            run.check(truth, golden, moved=1)
        run.release()


# Without the dispatcher, nobody leases the streams of the next group.
@pytest.mark.streams(most=GROUP)
def test_a_paused_dispatcher_counts_nobody_as_dead(tmp_path, data, truth, golden, mode, rng):
    """G2: it stops for several times the timeout of workers and trainers, and afterwards counts none of them as dead."""
    times = ("--worker-dead-after", "1500ms", "--worker-suspect-after", "700ms", "--client-timeout", "2s")
    with running_cluster(Cluster(tmp_path, flags=times)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 3) as run:
            run.read_until(0, rng.randrange(data.total // 10, data.total // 2))
            before = {worker["address"]["worker_id"] for worker in cluster.status()["workers"]}
            cluster.dispatcher.pause()
            run.note_fault("the dispatcher was stopped")
            began = time.monotonic()
            # Workers serve the streams that they have leases for without the dispatcher.
            run.read_until(0, run.position + data.total // 20)
            wait(lambda: time.monotonic() - began > 6, "four times the timeout has passed")
            cluster.dispatcher.resume()
            after = {worker["address"]["worker_id"] for worker in cluster.status()["workers"]}
            assert after == before, "a worker was removed because of the dispatcher's own pause"
            run.read_until(1, data.total // 2)
            assert {worker["address"]["worker_id"] for worker in cluster.status()["workers"]} == before
            run.finish()
            run.check(truth, golden, moved=0)
            assert not run.observer.moved(), "streams moved because of the dispatcher's own pause"
            assert "worker lost" not in cluster.dispatcher.log.read_text()
        run.release()


def test_a_trainer_that_stops_reading_can_continue_later(tmp_path, data, truth, golden, mode, rng):
    """G5: it reads nothing for several times every timeout, while the only worker is killed repeatedly.

    The streams make no progress in that time. The crash guard must not blame an element for that.
    """
    times = ("--client-timeout", "2s", "--job-timeout", "1s")
    with running_cluster(Cluster(tmp_path, flags=times)) as cluster:
        worker = cluster.add()
        with Run(cluster, data, mode, 2) as run:
            run.read_until(0, rng.randrange(data.total // 10, data.total // 2))
            run.note_fault("the trainer stopped reading")
            began = time.monotonic()
            for _ in range(5):
                wait(lambda: _idle(cluster), "the worker's windows are full")
                before = cluster.leases()
                worker.kill()
                wait(lambda: not cluster.states(), "the worker counts as dead")
                worker.start(worker.address).ready()
                after = wait(cluster.leases, "the worker has streams again")
                assert all(after[key][0] > before[key][0] for key in after.keys() & before.keys())
                assert after.keys() & before.keys()
            wait(lambda: time.monotonic() - began > 6, "three times the client's timeout has passed")
            run.finish()
            run.check(truth, golden, moved=1)
        run.release()


def _idle(cluster: Cluster) -> bool:
    """Whether the workers produce no more elements."""

    def produced() -> list[int]:
        return [int(node["elements"]) for job in cluster.status()["jobs"] for node in job["nodes"]]

    first = produced()
    time.sleep(0.7)
    return bool(first) and produced() == first
