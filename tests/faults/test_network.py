"""What a network may do between real processes: lost routes, one way or both, resets, and frames out of their order."""

from __future__ import annotations

import gc
import pathlib

import pecan
import pytest
import records
import tensorflow as tf
from cluster import Cluster, Program, cleared, wait
from proxies import Proxy
from records import FULL
from run import ON_THE_WAY, Run

TCP = {"data_transfer_protocol": "tcp"}


def _somewhere(rng, data) -> int:
    return rng.randrange(data.total // 10, data.total // 2)


def _behind(cluster: Cluster, proxy: Proxy, *flags: str) -> Program:
    """A worker that trainers reach through a proxy alone."""
    worker = cluster.add("--advertise", proxy.address, *flags)
    proxy.tell("to", worker.address)
    return worker


def _streams_of(cluster: Cluster, run: Run, address: str) -> list[int]:
    return [stream for (_, epoch, stream), held in cluster.leases().items() if epoch == run.epoch and held[1] == address]


def test_a_worker_that_lost_the_dispatcher_is_fenced(tmp_path, data, truth, golden, mode, rng, proxy):
    """N1: its trainer still reads it; its streams move all the same, and nothing of the old lease is taken."""
    with cleared(Cluster(tmp_path)) as cluster:
        between = proxy(cluster.target)
        lonely = cluster.add(dispatcher=between.address)
        cluster.add_all(2)
        with Run(cluster, data, mode, 3) as run:
            run.until(0, _somewhere(rng, data))
            wait(lambda: _streams_of(cluster, run, lonely.address), "it has streams")
            between.tell("hold", "both")
            run.struck_by("a worker lost its dispatcher")
            wait(lambda: len(cluster.states()) == 2, "the worker counts as dead")
            assert lonely.running
            assert between.tell("count")["held_up"] > 0, "nothing was lost"
            run.until(0, run.position + data.total // 10)
            between.tell("pass")
            wait(lambda: cluster.states() == ["connected"] * 3, "the worker is back")
            run.finish()
            run.check(truth, golden, moved=1)
        run.forget()


def test_the_only_worker_that_lost_the_dispatcher_is_no_worker(tmp_path, data, proxy):
    """N1: it answers its trainer as before, which waits no longer for it than its timeout, and goes on with another one."""
    with cleared(Cluster(tmp_path)) as cluster:
        between = proxy(cluster.target)
        lonely = cluster.add(dispatcher=between.address)
        dataset = data.dataset().apply(pecan.distribute(cluster.target, max_outstanding_bytes=ON_THE_WAY, dispatcher_timeout_s=4))
        iterator = iter(dataset)
        seen = [int(next(iterator)[0])]
        between.tell("hold", "both")
        with pytest.raises(tf.errors.UnavailableError) as caught:
            seen.extend(int(element[0]) for element in iterator)
        assert "[pecan:NO_WORKERS]" in str(caught.value)
        assert lonely.running
        assert between.tell("count")["held_up"] > 0, "nothing was lost"
        cluster.add()
        seen.extend(int(element[0]) for element in iterator)
        assert sorted(seen) == list(range(data.total))
        del iterator, dataset
        gc.collect()


def test_a_trainer_that_lost_a_worker_reads_others(tmp_path, data, truth, golden, mode, rng, proxy):
    """N2: the dispatcher still hears the worker, and moves what this trainer cannot read, and no more."""
    with cleared(Cluster(tmp_path)) as cluster:
        between = proxy()
        _behind(cluster, between)
        cluster.add_all(2)
        with Run(cluster, data, mode, 3, **TCP) as run:
            run.until(0, _somewhere(rng, data))
            wait(lambda: _streams_of(cluster, run, between.address), "it has streams")
            between.tell("refuse")
            assert between.tell("cut")["cut"] > 0, "nothing was cut"
            run.struck_by("a trainer lost a worker")
            run.until(1, data.total // 20)
            assert between.tell("count")["refused"] > 0
            assert cluster.states() == ["connected"] * 3, "the worker was taken for dead"
            between.tell("pass")
            run.finish()
            run.check(truth, golden, moved=1)
            assert "worker lost" not in cluster.dispatcher.log.read_text()
        run.forget()


PAIRS = ("trainer and dispatcher", "worker and dispatcher", "trainer and worker")


def test_what_is_lost_in_one_direction_is_sent_again(tmp_path, data, truth, golden, mode, rng, proxy):
    """N4: requests pass and replies vanish, or the reverse, between each two; what was under way is lost with its connection."""
    with cleared(Cluster(tmp_path)) as cluster:
        ways = {"trainer and dispatcher": proxy(cluster.target), "worker and dispatcher": proxy(cluster.target), "trainer and worker": proxy()}
        near = ways["trainer and worker"]
        _behind(cluster, near, "--dispatcher", ways["worker and dispatcher"].address)
        cluster.add_all(2)
        # Whatever cuts the worker off takes its streams from it until the next epoch. So the data connection is hit first in its epochs.
        firsts = [("trainer and worker", way) for way in ("up", "down")]
        seconds = [(pair, way) for pair in PAIRS if pair != "trainer and worker" for way in ("up", "down")]
        rng.shuffle(seconds)
        # Nobody has anything to say to a worker that has its streams, until an earlier blow has had some moved.
        firsts.append(next(blow for blow in seconds if blow != ("worker and dispatcher", "down")))
        seconds.remove(firsts[-1])
        rng.shuffle(firsts)
        blows = [blow for both in zip(firsts, seconds) for blow in both]
        with Run(cluster, data, mode, 3, target=ways["trainer and dispatcher"].address, **TCP) as run:
            for number, (pair, way) in enumerate(blows):
                epoch, late = divmod(number, 2)
                # Early: when all is on its way already, nothing is left that could be lost.
                run.until(epoch, (data.total * 3 // 10 if late else 0) + rng.randrange(data.total // 20, data.total // 10))
                before = ways[pair].tell("hold", way)
                run.struck_by(f"{way} between {pair} was lost")
                step = data.total // 200
                held = f"held_{way}"
                while ways[pair].tell("count")[held] == before[held]:
                    if run.position + step < data.total * (9 if late else 3) // 10:
                        run.until(run.epoch, run.position + step)
                    else:
                        wait(lambda: ways[pair].tell("count")[held] > before[held], f"something was lost {way} between {pair}")
                assert ways[pair].tell("cut")["cut"] > before["cut"]
                ways[pair].tell("pass")
            run.finish()
            run.check(truth, golden, moved=0)
        run.forget()


@pytest.mark.parametrize("mode", ["deterministic", "exactly_once"] if FULL else ["deterministic"])
def test_a_route_that_is_lost_silently_is_found(tmp_path, data, truth, golden, mode, rng, proxy):
    """N10: nothing is closed and nothing comes; the trainer asks whether the worker lives, and has its streams moved."""
    with cleared(Cluster(tmp_path)) as cluster:
        between = proxy()
        _behind(cluster, between)
        cluster.add_all(2)
        with Run(cluster, data, mode, 1, **TCP) as run:
            run.until(0, _somewhere(rng, data))
            streams = wait(lambda: _streams_of(cluster, run, between.address), "it has streams")
            between.tell("hold", "both")
            run.struck_by("a route was lost")
            run.finish()
            assert between.tell("count")["held_up"] > 0, "nothing was lost"
            assert streams and cluster.states() == ["connected"] * 3, "the worker was taken for dead"
            run.check(truth, golden, moved=1)
        run.forget()


def test_frames_out_of_order_are_asked_for_again(tmp_path, data, truth, golden, mode, proxy):
    """N8: an element that comes before its turn is not taken before it."""
    with cleared(Cluster(tmp_path)) as cluster:
        between = [proxy() for _ in range(2)]
        for one in between:
            one.tell("swap", 4)
            _behind(cluster, one)
        with Run(cluster, data, mode, 2, **TCP) as run:
            run.finish()
            assert sum(one.tell("count")["swapped"] for one in between) >= 4, "nothing was exchanged"
            run.check(truth, golden, moved=0)
        run.forget()


def _resident() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_large_element_that_is_cut_comes_whole(tmp_path, rng, proxy):
    """N9: a connection is reset at points all over an element of 50 MB; what comes is whole, and memory is given back."""
    size, points = 50 << 20, 64 if FULL else 10
    cuts = sorted({rng.randrange(1, size) for _ in range(points - 4)} | {1, 64, 200, size - 1})
    with cleared(Cluster(tmp_path, worker_flags=("--window-bytes", str(256 << 20)))) as cluster:
        between = proxy()
        between.tell("cut-after", *rng.sample(cuts, len(cuts)))
        _behind(cluster, between)
        plain = tf.data.Dataset.range(3).map(lambda i: (i, tf.random.stateless_uniform([size // 4], [i, 1], 0, 1 << 30, tf.int32)))
        wanted = [records.crc(element) for element in plain]
        gc.collect()
        before = _resident()
        ours = plain.apply(pecan.distribute(cluster.target, deterministic=True, dispatcher_timeout_s=120, **TCP))
        assert [records.crc(element) for element in ours] == wanted
        assert between.tell("count")["cut"] == len(cuts), "not every cut was made"
        del ours
        wait(lambda: gc.collect() >= 0 and _resident() < before + 4 * size, "memory comes back")
