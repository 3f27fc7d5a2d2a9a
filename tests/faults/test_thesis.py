"""The experiments of the predecessor with strict checks: SIGKILL at random elements, and every id compared with the source.

These run in modes exactly_once and deterministic: the experiments with an automatic cache, with a cache while it is written, with a
standby and with all processes. The others run in mode deterministic, which promises more, and with PECAN_FAULTS_FULL in both.
"""

from __future__ import annotations

import contextlib
import time

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, running_cluster, wait
from records import FULL, SPREAD
from run import Run

# A worker that can run every stream, so that a second worker is only a standby.
MANY_STREAMS = ("--max-streams", "64")


def _random_position(rng, data) -> int:
    """A random position in an epoch. Elements come before it, and workers still have later ones."""
    return rng.randrange(data.total // 10, data.total // 2)


def _hosts(cluster: Cluster, run: Run) -> dict[int, tuple[int, str]]:
    """The lease and the worker's address of each leased stream of the current epoch."""
    return {stream: held for (_, epoch, stream), held in cluster.leases().items() if epoch == run.epoch}


def _held_by(cluster: Cluster, run: Run, worker) -> bool:
    """Whether a worker has all leased streams of the run's epoch."""
    now = [address for _, address in _hosts(cluster, run).values()]
    return bool(now) and set(now) == {worker.address}


def _cached(data) -> tf.data.Dataset:
    """The records, cached after the step that decodes them."""
    return data.dataset().apply(pecan.cache())


def _caching_cluster(tmp_path, *flags: str) -> Cluster:
    return Cluster(tmp_path, worker_flags=("--cache-dir", str(tmp_path / "cache"), "--cache-orphan-after", "2s", *flags))


def _segment_files(tmp_path) -> dict[str, tuple[int, int]]:
    """Size and time of the segments by name. A segment that is deleted meanwhile is left out."""
    kept = {}
    for path in (tmp_path / "cache").glob("*.seg"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            kept[path.name] = (stat.st_size, stat.st_mtime_ns)
    return kept


def _cache_state(cluster: Cluster) -> str:
    """The dispatcher's state of the cache."""
    (job,) = cluster.status()["jobs"]
    return job["cache"]["state"]


def _elements_read(cluster: Cluster) -> int:
    """The number of elements that all workers together have read from the files."""
    (job,) = cluster.status()["jobs"]
    return sum(int(node["elements"]) for node in job["nodes"] if node["op"] == "InterleaveDataset")


def test_nofail_each_element_is_computed_once(tmp_path, data, truth, golden_cached, mode):
    """T1: an epoch that fills the cache and two cached ones, without a fault. No element is recomputed, and none is dropped."""
    with running_cluster(_caching_cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 3, dataset=_cached(data)) as run:
            run.read_until(1, 0)
            wait(lambda: _cache_state(cluster) == "committed", "the cache is complete")
            assert _elements_read(cluster) == data.total
            kept = _segment_files(tmp_path)
            run.finish()
            run.check(truth, golden_cached, moved=0)
            assert _cache_state(cluster) == "used" and _segment_files(tmp_path) == kept
            assert _elements_read(cluster) == data.total, "files were read again"
            assert not run.observer.moved() and not any(run.observer.duplicates.values())
        run.release()


def test_getfail_the_cache_survives_the_death_of_its_readers(tmp_path, data, truth, golden_cached, mode, rng):
    """T2: all workers are killed while a cached epoch is read, and stay away for different times. The cache does not change."""
    with running_cluster(_caching_cluster(tmp_path)) as cluster:
        cluster.add_all(2)
        with Run(cluster, data, mode, 4, dataset=_cached(data)) as run:
            run.read_until(1, 0)
            wait(lambda: _cache_state(cluster) == "committed", "the cache is complete")
            kept = _segment_files(tmp_path)
            for epoch, away_s in enumerate((0, 1, 15) if FULL else (0, 1), start=1):
                run.read_until(epoch, _random_position(rng, data))
                cluster.kill_workers()
                killed = time.monotonic()
                run.note_fault("all workers were killed while they read the cache")
                wait(lambda: time.monotonic() >= killed + away_s, "the workers were away")
                cluster.restart_workers()
            run.finish()
            run.check(truth, golden_cached, moved=2)
            assert _cache_state(cluster) == "used" and _segment_files(tmp_path) == kept
            assert _elements_read(cluster) == data.total, "files were read again"
        run.release()


def _reached(tmp_path, parts: int, point: str) -> bool:
    """Whether the cache writers have reached a point."""
    # Workers measure the directory when they start.
    names = [path.suffix for path in (tmp_path / "cache").iterdir() if "-probe-" not in path.name]
    done, begun = names.count(".seg"), names.count(".tmp")
    return {
        "in the middle of a block": begun > 0,
        "after a segment": 0 < done < parts,
        "before the commit": done == parts,
    }[point]


POINTS = ["in the middle of a block", "after a segment", "before the commit", "after the commit"]
MODES = ["exactly_once", "deterministic"]
# The modes and points of T3. Without PECAN_FAULTS_FULL, each point has one mode.
PUTFAILS = [(mode, point) for mode in MODES for point in POINTS] if FULL else [(MODES[k % 2], point) for k, point in enumerate(POINTS)]


# The first two points are also those of an automatic cache, whose streams write in the same way.
@pytest.mark.streams(least=SPREAD, most=64)
@pytest.mark.parametrize("mode, point", PUTFAILS if FULL else PUTFAILS[2:])
def test_putfail_the_next_epoch_reads_only_complete_segments(tmp_path, data, truth, golden_cached, mode, point):
    """T3: all workers are killed while the cache is written. The next epoch reads complete segments only. Leftover files are deleted."""
    with running_cluster(_caching_cluster(tmp_path)) as cluster:
        cluster.add_all(3, *MANY_STREAMS)
        with Run(cluster, data, mode, 3, dataset=_cached(data)) as run:
            run.read_until(0, 1)
            (job,) = cluster.status()["jobs"]
            streams, parts = int(job["plan"]["num_streams"]), int(job["plan"]["cache"]["parts"])
            if point == "after the commit":
                # The last element is in flight, and the trainer has not dequeued it.
                run.read_until(0, data.total - 1)
                wait(lambda: _cache_state(cluster) == "committed", "the cache is complete")
            elif point == "before the commit":
                # Streams are opened in turns, so some streams may have ended by then.
                wait(lambda: len({stream for _, epoch, stream in cluster.granted() if epoch == "0"}) == streams, "every stream had a worker")
                run.read_until(0, data.total // 20)
                # Workers complete segments, and cannot report them.
                cluster.dispatcher.pause()
                run.read_until(0, data.total - 1)
                wait(lambda: _reached(tmp_path, parts, point), "all segments are complete")
            else:
                while not _reached(tmp_path, parts, point):
                    run.read_until(0, run.position + 1)
            before = _segment_files(tmp_path)
            cluster.kill_workers()
            run.note_fault(f"all workers were killed {point}")
            if point == "before the commit":
                cluster.dispatcher.resume()
                assert _cache_state(cluster) != "committed"
            cluster.restart_workers()
            run.finish()
            run.check(truth, golden_cached, moved=0 if "commit" in point else 1)
            wait(lambda: _cache_state(cluster) in ("committed", "used"), "the cache is written")
            if point == "after the commit":
                assert _segment_files(tmp_path) == before
                assert _elements_read(cluster) == data.total, "files were read again"
            wait(lambda: len(_segment_files(tmp_path)) == parts and not list((tmp_path / "cache").glob("*.tmp")), "leftover files are deleted")
        run.release()


# The job's options for a cache that the service chooses.
AUTOMATIC = {"cache": "auto", "order": "off"}


def _expensive(data, turns: int = 2400) -> tf.data.Dataset:
    """The records after a step that a decision stores.

    With the default, workers still are the bound when half of the elements are stored. Otherwise a decision may keep only those.
    """

    def step(number: tf.Tensor, payload: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        spin = tf.while_loop(lambda i, s: i < turns, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), (0, 0.0), parallel_iterations=1)
        return number, payload, total + tf.cast(spin[1] * 0, tf.int64)

    return data.dataset().map(step)


def _stored(cluster: Cluster) -> bool:
    """Whether the cache of the decision has all segments."""
    (job,) = cluster.status()["jobs"]
    return "cache" in job and int(job["cache"]["segments"]) == int(job["cache"]["streams"])


def _computed(cluster: Cluster) -> int:
    """The number of elements that all workers together have computed."""
    (job,) = cluster.status()["jobs"]
    return sum(int(node["elements"]) for node in job["nodes"] if node["op"] == "MapDataset")


def _settled(cluster: Cluster) -> int:
    """The same, once workers have reported everything."""
    known = -1
    while (now := _computed(cluster)) != known:
        known = now
        time.sleep(1)
    return now


@pytest.mark.streams(least=32, most=64)
@pytest.mark.parametrize("mode", MODES)
def test_getfail_an_automatic_cache_survives_the_death_of_its_readers(tmp_path, data, truth, golden, mode, rng):
    """T2: the service has chosen what to cache, and all workers are killed while they read it. The cache does not change."""
    with running_cluster(_caching_cluster(tmp_path)) as cluster:
        cluster.add_all(2)
        with Run(cluster, data, mode, 6, dataset=_expensive(data), **AUTOMATIC) as run:
            # On a slow machine, nothing is decided before the first epoch ends.
            for epoch in range(2, 5):
                run.read_until(epoch, 0)
                if _stored(cluster):
                    break
            wait(lambda: _stored(cluster), "the epochs have written the cache")
            kept, computed = _segment_files(tmp_path), _settled(cluster)
            run.read_until(epoch, _random_position(rng, data))
            cluster.kill_workers()
            run.note_fault("all workers were killed while they read the cache")
            cluster.restart_workers()
            run.finish()
            run.check(truth, golden, moved=1)
            assert _segment_files(tmp_path) == kept
            assert _settled(cluster) == computed, "elements were computed again"
        run.release()


@pytest.mark.streams(least=32, most=64)
@pytest.mark.parametrize("mode, point", PUTFAILS)
def test_putfail_later_epochs_complete_an_automatic_cache(tmp_path, data, truth, golden, mode, point):
    """T3: all workers are killed while they write what the service has chosen. Later epochs read what is complete, and write the rest."""
    before_commit = point == "before the commit"
    # Writing takes some seconds then, so that it does not end before the dispatcher stops.
    with running_cluster(_caching_cluster(tmp_path, *(("--cache-write-rate", str(1 << 20)) if before_commit else ()))) as cluster:
        cluster.add_all(2, *(MANY_STREAMS if before_commit else ()))
        with Run(cluster, data, mode, 4, dataset=_expensive(data), **AUTOMATIC) as run:
            run.read_until(0, 1)
            (job,) = cluster.status()["jobs"]
            # The source is divided in the same way for all candidates. In mode deterministic, a segment has the elements of a stream.
            (segments,) = {int(one["plan"].get("parts") or job["plan"]["num_streams"]) for one in job["plan"]["cache_candidates"] if "plan" in one}
            # On a slow machine, nothing is decided before the first epoch ends.
            if point == "after the commit":
                while not _stored(cluster):
                    run.read_until(run.epoch + 1, data.total - 1)
            elif before_commit:
                run.read_until(1, 1)
                while "cache" not in cluster.status()["jobs"][0]:
                    run.read_until(run.epoch + 1, 1)
                wait(lambda: sum(epoch == str(run.epoch) for _, epoch, _ in cluster.granted()) == int(job["plan"]["num_streams"]), "every stream had a worker")
                # Workers complete segments, and cannot report them.
                cluster.dispatcher.pause()
                run.read_until(run.epoch, data.total - 1)
                wait(lambda: _reached(tmp_path, segments, point), "all segments are complete")
            else:
                while not _reached(tmp_path, segments, point):
                    run.read_until(run.epoch, run.position + 1)
            if run.position == 0:
                run.read_until(run.epoch, 1)
            before = _segment_files(tmp_path)
            cluster.kill_workers()
            run.note_fault(f"all workers were killed {point}")
            if before_commit:
                cluster.dispatcher.resume()
                assert not _stored(cluster)
            cluster.restart_workers()
            run.finish()
            run.check(truth, golden, moved=0 if "commit" in point else 1)
            wait(lambda: _stored(cluster), "the cache is written")
            if point == "after the commit":
                assert _segment_files(tmp_path) == before
            wait(lambda: len(_segment_files(tmp_path)) == segments and not list((tmp_path / "cache").glob("*.tmp")), "leftover files are deleted")
        run.release()


@pytest.mark.streams(least=32, most=64)
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_an_automatic_cache_change_while_everything_dies(tmp_path, data, truth, golden, mode, rng):
    """A5: a chosen cache is only written, not used, only read, and both, within epochs and from one to the next, while all processes die."""
    with running_cluster(_caching_cluster(tmp_path)) as cluster:
        cluster.add_all(2)
        flags = cluster.dispatcher.flags
        with Run(cluster, data, mode, 5, dataset=_expensive(data, turns=800), **AUTOMATIC) as run:
            run.read_until(1, 0)
            modes = rng.sample(["put", "compute", "get"], 3)
            for epoch, cache_mode in enumerate([*modes, "auto"], start=1):
                run.read_until(epoch, _random_position(rng, data))
                cluster.dispatcher.flags = (*flags, "--cache-mode", cache_mode)
                _kill_all(cluster, run, rng.choice(sorted(ORDERS)), rng)
            run.finish()
            run.check(truth, golden, moved=4)
            assert _segment_files(tmp_path), "no mode wrote anything"
        run.release()


@pytest.mark.streams(most=64)
@pytest.mark.parametrize("mode", MODES)
def test_failover_a_standby_gets_every_stream(tmp_path, data, truth, golden, mode, rng):
    """T4: the active worker is killed, and a standby that was registered before continues."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        active = cluster.add(*MANY_STREAMS)
        with Run(cluster, data, mode, 2) as run:
            for epoch in range(2):
                run.read_until(epoch, _random_position(rng, data))
                wait(lambda: _held_by(cluster, run, active), "the active worker has every stream")
                before = _hosts(cluster, run)
                standby = cluster.add(*MANY_STREAMS)
                assert _held_by(cluster, run, active), "the standby has a stream"
                active.kill()
                run.note_fault("the active worker was killed")
                wait(lambda: _held_by(cluster, run, standby), "the standby has every stream")
                after = _hosts(cluster, run)
                assert after.keys() <= before.keys()
                assert all(after[stream][0] > before[stream][0] for stream in after)
                active = standby
            run.finish()
            run.check(truth, golden, moved=2)
        run.release()


def test_recover_the_only_worker_continues_at_any_address(tmp_path, data, truth, golden, mode, rng):
    """T5: the only worker is killed, and started again at the same or another address, at once or after it counts as dead."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        worker = cluster.add(*MANY_STREAMS)
        with Run(cluster, data, mode, 4) as run:
            restarts = [(same, late) for same in (True, False) for late in (True, False)]
            for epoch, (same, late) in enumerate(rng.sample(restarts, 4)):
                run.read_until(epoch, _random_position(rng, data))
                worker.kill()
                run.note_fault(f"the worker was killed, same address: {same}, late: {late}")
                if late:
                    wait(lambda: not cluster.status()["workers"], "the worker counts as dead")
                worker.start(worker.address if same else "127.0.0.1:0").ready()
            run.finish()
            run.check(truth, golden, moved=4)
        run.release()


ORDERS = {
    "dispatcher first": lambda workers, dispatcher: [dispatcher, *workers],
    "workers first": lambda workers, dispatcher: [*workers, dispatcher],
    "dispatcher second": lambda workers, dispatcher: [workers[0], dispatcher, *workers[1:]],
    "dispatcher third": lambda workers, dispatcher: [*workers[:2], dispatcher, *workers[2:]],
}


# Both modes together have every order.
KILLED = [(mode, order) for mode in MODES for order in ORDERS] if FULL else [(MODES[k % 2], order) for k, order in enumerate(ORDERS)]


def _kill_all(cluster: Cluster, run: Run, order: str, rng) -> None:
    """Kills the dispatcher and all workers, and starts them again in an order."""
    victims = [*cluster.workers, cluster.dispatcher]
    for program in rng.sample(victims, len(victims)):
        program.kill()
    run.note_fault(f"everything was killed, {order}")
    for program in ORDERS[order](cluster.workers, cluster.dispatcher):
        program.start(program.address)
    for program in (cluster.dispatcher, *cluster.workers):
        program.ready()


@pytest.mark.parametrize("mode", MODES)
def test_killall_the_trainer_gets_no_error(tmp_path, data, truth, golden, mode, rng):
    """T6: the dispatcher and all workers are killed, and started again in each of four orders. The trainer gets no error."""
    orders = [order for with_mode, order in KILLED if with_mode == mode]
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, len(orders)) as run:
            for epoch, order in enumerate(rng.sample(orders, len(orders))):
                run.read_until(epoch, _random_position(rng, data))
                _kill_all(cluster, run, order, rng)
            run.finish()
            run.check(truth, golden, moved=len(orders))
        run.release()


@pytest.mark.streams(least=SPREAD)
def test_five_epochs_stay_exact_while_processes_die(tmp_path, data, truth, golden, mode, rng):
    """T7: one worker is killed, later all processes, later one worker again, in one job of five epochs."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        with Run(cluster, data, mode, 5) as run:
            for epoch, what in ((0, "one"), (2, "all"), (3, "one")):
                run.read_until(epoch, _random_position(rng, data))
                if what == "all":
                    _kill_all(cluster, run, rng.choice(sorted(ORDERS)), rng)
                    continue
                victim = rng.choice(cluster.workers)
                wait(lambda: victim.address in {address for _, address in _hosts(cluster, run).values()}, "the victim has a stream")
                victim.kill()
                run.note_fault("a worker was killed")
                victim.start(victim.address).ready()
            run.finish()
            run.check(truth, golden, moved=3)
        run.release()
