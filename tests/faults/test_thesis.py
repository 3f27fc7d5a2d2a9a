"""The six experiments of the predecessor, made strict: kill -9 at random elements, every id held against the source, in both modes."""

from __future__ import annotations

import contextlib
import time

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, cleared, wait
from records import FULL
from run import Run

# A worker with room for every stream, so that another one is a mere standby.
ROOMY = ("--max-streams", "64")


def _somewhere(rng, data) -> int:
    """A position within an epoch, with elements before it, and with later elements that workers still hold."""
    return rng.randrange(data.total // 10, data.total // 2)


def _hosts(cluster: Cluster, run: Run) -> dict[int, tuple[int, str]]:
    """Lease and worker's address of each stream that is held of the epoch that is being read."""
    return {stream: held for (_, epoch, stream), held in cluster.leases().items() if epoch == run.epoch}


def _held_by(cluster: Cluster, run: Run, worker) -> bool:
    """Whether a worker holds all streams of the run's epoch."""
    now = [address for _, address in _hosts(cluster, run).values()]
    return bool(now) and set(now) == {worker.address}


def _cached(data) -> tf.data.Dataset:
    """The records, cached after the step that decodes them."""
    return data.dataset().apply(pecan.cache())


def _keeping(tmp_path) -> Cluster:
    return Cluster(tmp_path, worker_flags=("--cache-dir", str(tmp_path / "cache"), "--cache-orphan-after", "2s"))


def _kept(tmp_path) -> dict[str, tuple[int, int]]:
    """Size and time of the segments by name; one that is deleted meanwhile is none."""
    kept = {}
    for path in (tmp_path / "cache").glob("*.seg"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            kept[path.name] = (stat.st_size, stat.st_mtime_ns)
    return kept


def _cache(cluster: Cluster) -> str:
    """What the dispatcher says of the cache."""
    (job,) = cluster.status()["jobs"]
    return job["cache"]["state"]


def _made(cluster: Cluster) -> int:
    """The number of elements that all workers have read from the files."""
    (job,) = cluster.status()["jobs"]
    return sum(int(node["elements"]) for node in job["nodes"] if node["op"] == "InterleaveDataset")


def test_nofail(tmp_path, data, truth, golden, mode):
    """T1: a cold epoch and two cached ones without a fault: nothing is made twice, and nothing dropped."""
    with cleared(_keeping(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 3, dataset=_cached(data)) as run:
            run.until(1, 0)
            wait(lambda: _cache(cluster) == "committed", "the cache is whole")
            assert _made(cluster) == data.total
            kept = _kept(tmp_path)
            run.finish()
            run.check(truth, golden, moved=0)
            assert _cache(cluster) == "used" and _kept(tmp_path) == kept
            assert _made(cluster) == data.total, "files were read again"
            assert not run.observer.moved() and not any(run.observer.duplicates.values())
        run.forget()


def test_getfail(tmp_path, data, truth, golden, mode, rng):
    """T2: all workers are killed while a cached epoch is read, and are away for a moment or longer; the cache stays as it was."""
    with cleared(_keeping(tmp_path)) as cluster:
        cluster.add_all(2)
        with Run(cluster, data, mode, 4, dataset=_cached(data)) as run:
            run.until(1, 0)
            wait(lambda: _cache(cluster) == "committed", "the cache is whole")
            kept = _kept(tmp_path)
            for epoch, away_s in enumerate((0, 1, 15) if FULL else (0, 1), start=1):
                run.until(epoch, _somewhere(rng, data))
                for worker in cluster.workers:
                    worker.kill()
                killed = time.monotonic()
                run.struck_by("all workers were killed while they read the cache")
                wait(lambda: time.monotonic() >= killed + away_s, "the workers were away")
                for worker in cluster.workers:
                    worker.start(worker.address)
                for worker in cluster.workers:
                    worker.ready()
            run.finish()
            run.check(truth, golden, moved=2)
            assert _cache(cluster) == "used" and _kept(tmp_path) == kept
            assert _made(cluster) == data.total, "files were read again"
        run.forget()


def _segments(tmp_path, streams: int, point: str) -> bool:
    """Whether the filling of the cache has come to a point."""
    names = [path.suffix for path in (tmp_path / "cache").iterdir()]
    done, begun = names.count(".seg"), names.count(".tmp")
    return {
        "in the middle of a block": begun > 0 and done == 0,
        "after a segment": 0 < done < streams,
        "before the commit": done == streams,
    }[point]


POINTS = ["in the middle of a block", "after a segment", "before the commit", "after the commit"]
MODES = ["exactly_once", "deterministic"]


@pytest.mark.parametrize(
    "mode, point",
    [(mode, point) for mode in MODES for point in POINTS] if FULL else [(MODES[k % 2], point) for k, point in enumerate(POINTS)],
)
def test_putfail(tmp_path, data, truth, golden, mode, point):
    """T3: all workers are killed while the cache is written. The next epoch reads a whole one or none, and the leftovers go."""
    with cleared(_keeping(tmp_path)) as cluster:
        cluster.add_all(3, *ROOMY)
        with Run(cluster, data, mode, 3, dataset=_cached(data)) as run:
            run.until(0, 1)
            (job,) = cluster.status()["jobs"]
            streams = int(job["plan"]["num_streams"])
            if point == "after the commit":
                # The trainer has yet to take the last one, which is on its way.
                run.until(0, data.total - 1)
                wait(lambda: _cache(cluster) == "committed", "the cache is whole")
            elif point == "before the commit":
                # Some may have been read to their ends by then: streams are opened in turns.
                wait(lambda: len({stream for _, epoch, stream in cluster.granted() if epoch == "0"}) == streams, "every stream had a worker")
                run.until(0, data.total // 20)
                # Segments become whole, and nobody hears of it.
                cluster.dispatcher.pause()
                run.until(0, data.total - 1)
                wait(lambda: _segments(tmp_path, streams, point), "all segments are whole")
            else:
                while not _segments(tmp_path, streams, point):
                    run.until(0, run.position + 1)
            before = _kept(tmp_path)
            for worker in cluster.workers:
                worker.kill()
            run.struck_by(f"all workers were killed {point}")
            if point == "before the commit":
                cluster.dispatcher.resume()
                assert _cache(cluster) != "committed"
            for worker in cluster.workers:
                worker.start(worker.address)
            for worker in cluster.workers:
                worker.ready()
            run.finish()
            run.check(truth, golden, moved=0 if "commit" in point else 1)
            wait(lambda: _cache(cluster) in ("committed", "used"), "the cache was written in the end")
            if point == "after the commit":
                assert _kept(tmp_path) == before
                assert _made(cluster) == data.total, "files were read again"
            left = wait(lambda: len(_kept(tmp_path)) == streams and not list((tmp_path / "cache").glob("*.tmp")), "leftovers are gone")
            assert left
        run.forget()


def test_failover(tmp_path, data, truth, golden, mode, rng):
    """T4: the active worker is killed, and a standby that is registered already goes on."""
    with cleared(Cluster(tmp_path)) as cluster:
        active = cluster.add(*ROOMY)
        with Run(cluster, data, mode, 2) as run:
            for epoch in range(2):
                run.until(epoch, _somewhere(rng, data))
                wait(lambda: _held_by(cluster, run, active), "the active worker has every stream")
                before = _hosts(cluster, run)
                standby = cluster.add(*ROOMY)
                assert _held_by(cluster, run, active), "the standby is none"
                active.kill()
                run.struck_by("the active worker was killed")
                wait(lambda: _held_by(cluster, run, standby), "the standby has every stream")
                after = _hosts(cluster, run)
                assert after.keys() <= before.keys()
                assert all(after[stream][0] > before[stream][0] for stream in after)
                active = standby
            run.finish()
            run.check(truth, golden, moved=2)
        run.forget()


def test_recover(tmp_path, data, truth, golden, mode, rng):
    """T5: the only worker is killed, and started again on its address or another, at once and after it counts as dead."""
    with cleared(Cluster(tmp_path)) as cluster:
        worker = cluster.add(*ROOMY)
        with Run(cluster, data, mode, 4) as run:
            ways = [(same, late) for same in (True, False) for late in (True, False)]
            for epoch, (same, late) in enumerate(rng.sample(ways, 4)):
                run.until(epoch, _somewhere(rng, data))
                worker.kill()
                run.struck_by(f"the worker was killed, same address: {same}, late: {late}")
                if late:
                    wait(lambda: not cluster.status()["workers"], "the worker counts as dead")
                worker.start(worker.address if same else "127.0.0.1:0").ready()
            run.finish()
            run.check(truth, golden, moved=4)
        run.forget()


ORDERS = {
    "dispatcher first": lambda workers, dispatcher: [dispatcher, *workers],
    "workers first": lambda workers, dispatcher: [*workers, dispatcher],
    "dispatcher second": lambda workers, dispatcher: [workers[0], dispatcher, *workers[1:]],
    "dispatcher third": lambda workers, dispatcher: [*workers[:2], dispatcher, *workers[2:]],
}


def _kill_all(cluster: Cluster, run: Run, order: str, rng) -> None:
    """Kills dispatcher and workers, and starts them again in an order."""
    victims = [*cluster.workers, cluster.dispatcher]
    for program in rng.sample(victims, len(victims)):
        program.kill()
    run.struck_by(f"everything was killed, {order}")
    for program in ORDERS[order](cluster.workers, cluster.dispatcher):
        program.start(program.address)
    for program in (cluster.dispatcher, *cluster.workers):
        program.ready()


def test_killall(tmp_path, data, truth, golden, mode, rng):
    """T6: dispatcher and workers are killed, and started again in each of four orders; the trainer hears nothing of it."""
    with cleared(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 4) as run:
            for epoch, order in enumerate(rng.sample(sorted(ORDERS), 4)):
                run.until(epoch, _somewhere(rng, data))
                _kill_all(cluster, run, order, rng)
            run.finish()
            run.check(truth, golden, moved=4)
        run.forget()


def test_five_epochs(tmp_path, data, truth, golden, mode, rng):
    """T7: a fail-over, then everything, then a fail-over, in one job of five epochs."""
    with cleared(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 5) as run:
            for epoch, what in ((0, "one"), (2, "all"), (3, "one")):
                run.until(epoch, _somewhere(rng, data))
                if what == "all":
                    _kill_all(cluster, run, rng.choice(sorted(ORDERS)), rng)
                    continue
                victim = rng.choice(cluster.workers)
                wait(lambda: victim.address in {address for _, address in _hosts(cluster, run).values()}, "the victim has a stream")
                victim.kill()
                run.struck_by("a worker was killed")
                victim.start(victim.address).ready()
            run.finish()
            run.check(truth, golden, moved=3)
        run.forget()
