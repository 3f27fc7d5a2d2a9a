"""Faults of a network between real processes: lost routes in one or both directions, resets, and frames out of order."""

from __future__ import annotations

import gc
import pathlib
import threading

import pecan
import pytest
import records
import tensorflow as tf
from cluster import WAIT_S, Cluster, Program, running_cluster, wait
from proxies import Proxy
from records import FULL, SPREAD
from run import MAX_OUTSTANDING_BYTES, Run

TCP = {"data_transfer_protocol": "tcp"}


def _random_position(rng, data) -> int:
    return rng.randrange(data.total // 10, data.total // 2)


def _add_behind(cluster: Cluster, proxy: Proxy, *flags: str) -> Program:
    """Starts a worker that trainers can reach only through a proxy."""
    worker = cluster.add("--advertise", proxy.address, *flags)
    proxy.send("to", worker.address)
    return worker


def _streams_of(cluster: Cluster, run: Run, address: str) -> list[int]:
    return [stream for (_, epoch, stream), held in cluster.leases().items() if epoch == run.epoch and held[1] == address]


@pytest.mark.streams(least=SPREAD)
def test_a_worker_that_lost_the_dispatcher_is_fenced(tmp_path, data, truth, golden, mode, rng, proxy):
    """N1: its trainer can still read it. Its streams move nevertheless, and the trainer accepts nothing of the old lease."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        between = proxy(cluster.target)
        isolated = cluster.add(dispatcher=between.address)
        cluster.add_all(2)
        with Run(cluster, data, mode, 3) as run:
            run.read_until(0, _random_position(rng, data))
            wait(lambda: _streams_of(cluster, run, isolated.address), "the worker has streams")
            between.send("hold", "both")
            run.note_fault("a worker lost its dispatcher")
            wait(lambda: len(cluster.states()) == 2, "the worker counts as dead")
            assert isolated.running
            assert between.send("count")["held_up"] > 0, "the proxy held nothing"
            run.read_until(0, run.position + data.total // 10)
            between.send("forward")
            wait(lambda: cluster.states() == ["connected"] * 3, "the worker is back")
            run.finish()
            run.check(truth, golden, moved=1)
        run.release()


def test_the_only_worker_without_its_dispatcher_counts_as_no_worker(tmp_path, data, proxy):
    """N1: the worker still answers its trainer. The trainer waits for its timeout at most, and continues with another worker."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        between = proxy(cluster.target)
        isolated = cluster.add(dispatcher=between.address)
        dataset = data.dataset().apply(pecan.distribute(cluster.target, max_outstanding_bytes=MAX_OUTSTANDING_BYTES, dispatcher_timeout_s=4))
        iterator = iter(dataset)
        seen = [int(next(iterator)[0])]
        between.send("hold", "both")
        with pytest.raises(tf.errors.UnavailableError) as caught:
            seen.extend(int(element[0]) for element in iterator)
        assert "[pecan:NO_WORKERS]" in str(caught.value)
        assert isolated.running
        assert between.send("count")["held_up"] > 0, "the proxy held nothing"
        cluster.add()
        seen.extend(int(element[0]) for element in iterator)
        assert sorted(seen) == list(range(data.total))
        del iterator, dataset
        gc.collect()


@pytest.mark.streams(least=SPREAD)
def test_a_trainer_that_lost_a_worker_reads_others(tmp_path, data, truth, golden, mode, rng, proxy):
    """N2: the dispatcher still hears the worker. It moves only the streams that this trainer cannot read."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        between = proxy()
        _add_behind(cluster, between)
        cluster.add_all(2)
        with Run(cluster, data, mode, 3, **TCP) as run:
            run.read_until(0, _random_position(rng, data))
            wait(lambda: _streams_of(cluster, run, between.address), "the worker has streams")
            between.send("refuse")
            assert between.send("cut")["cut"] > 0, "the proxy reset no connection"
            run.note_fault("a trainer lost a worker")
            run.read_until(1, data.total // 20)
            assert between.send("count")["refused"] > 0
            assert cluster.states() == ["connected"] * 3, "the dispatcher counted the worker as dead"
            between.send("forward")
            run.finish()
            run.check(truth, golden, moved=1)
            assert "worker lost" not in cluster.dispatcher.log.read_text()
        run.release()


def _read_numbers(target: str, seen: list[int]) -> None:
    """Reads 64 numbers in a job whose 16 streams must be open at the same time, so that each worker gets some."""
    options = {"processing_mode": "deterministic", "streams": 16, **TCP}
    seen.extend(int(number) for number in tf.data.Dataset.range(64).apply(pecan.distribute(target, **options)))
    gc.collect()


PAIRS = ("trainer and dispatcher", "worker and dispatcher", "trainer and worker")


@pytest.mark.streams(least=SPREAD)
def test_bytes_lost_in_one_direction_are_sent_again(tmp_path, data, truth, golden, mode, rng, proxy):
    """N4: between each pair of processes requests arrive and replies are lost, or the reverse. Then the connection is reset."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        proxies = {"trainer and dispatcher": proxy(cluster.target), "worker and dispatcher": proxy(cluster.target), "trainer and worker": proxy()}
        data_proxy = proxies["trainer and worker"]
        _add_behind(cluster, data_proxy, "--dispatcher", proxies["worker and dispatcher"].address)
        cluster.add_all(2)
        # A fault that disconnects the worker moves its streams away until the next epoch. The data connection fails first in each epoch.
        firsts = [("trainer and worker", direction) for direction in ("up", "down")]
        seconds = [(pair, direction) for pair in PAIRS if pair != "trainer and worker" for direction in ("up", "down")]
        rng.shuffle(seconds)
        firsts.append(seconds.pop())
        rng.shuffle(firsts)
        faults = [fault for both in zip(firsts, seconds) for fault in both]
        seen: list[int] = []
        other = threading.Thread(target=_read_numbers, args=(cluster.target, seen), daemon=True)
        with Run(cluster, data, mode, 3, target=proxies["trainer and dispatcher"].address, **TCP) as run:
            for number, (pair, direction) in enumerate(faults):
                epoch, late = divmod(number, 2)
                # The fault comes early. Once all elements are in flight, nothing remains to be lost.
                run.read_until(epoch, (data.total * 3 // 10 if late else 0) + rng.randrange(data.total // 20, data.total // 10))
                before = proxies[pair].send("hold", direction)
                run.note_fault(f"{direction} between {pair} was lost")
                if (pair, direction) == ("worker and dispatcher", "down"):
                    # The dispatcher says nothing to a worker whose streams stay as they are.
                    other.start()
                step = data.total // 200
                held = f"held_{direction}"
                while proxies[pair].send("count")[held] == before[held]:
                    if run.position + step < data.total * (9 if late else 3) // 10:
                        run.read_until(run.epoch, run.position + step)
                    else:
                        wait(lambda: proxies[pair].send("count")[held] > before[held], f"the proxy between {pair} holds bytes {direction}")
                assert proxies[pair].send("cut")["cut"] > before["cut"]
                proxies[pair].send("forward")
            run.finish()
            run.check(truth, golden, moved=0)
            other.join(WAIT_S)
            assert seen == list(range(64))
        run.release()


@pytest.mark.streams(least=SPREAD)
@pytest.mark.parametrize("mode", ["deterministic", "exactly_once"] if FULL else ["deterministic"])
def test_a_silently_lost_route_is_detected(tmp_path, data, truth, golden, mode, rng, proxy):
    """N10: no connection closes and no byte arrives. The trainer asks whether the worker lives, and its streams move."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        between = proxy()
        _add_behind(cluster, between)
        cluster.add_all(2)
        with Run(cluster, data, mode, 1, **TCP) as run:
            run.read_until(0, _random_position(rng, data))
            streams = wait(lambda: _streams_of(cluster, run, between.address), "the worker has streams")
            between.send("hold", "both")
            run.note_fault("a route was lost")
            run.finish()
            assert between.send("count")["held_up"] > 0, "the proxy held nothing"
            assert streams and cluster.states() == ["connected"] * 3, "the dispatcher counted the worker as dead"
            run.check(truth, golden, moved=1)
        run.release()


def test_frames_out_of_order_are_requested_again(tmp_path, data, truth, golden, mode, proxy):
    """N8: an element that arrives before its turn is not delivered before its turn."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        between = [proxy() for _ in range(2)]
        for one in between:
            one.send("swap", 4)
            _add_behind(cluster, one)
        with Run(cluster, data, mode, 2, **TCP) as run:
            run.finish()
            assert sum(one.send("count")["swapped"] for one in between) >= 4, "the proxy exchanged no frames"
            run.check(truth, golden, moved=0)
        run.release()


def _resident() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_large_element_is_complete_after_connection_resets(tmp_path, rng, proxy):
    """N9: connections are reset at points all over an element of 50 MB. The element arrives complete, and its memory is freed."""
    size, points = 50 << 20, 64 if FULL else 10
    cuts = sorted({rng.randrange(1, size) for _ in range(points - 4)} | {1, 64, 200, size - 1})
    with running_cluster(Cluster(tmp_path, worker_flags=("--window-bytes", str(256 << 20)))) as cluster:
        between = proxy()
        between.send("cut-after", *rng.sample(cuts, len(cuts)))
        _add_behind(cluster, between)
        plain = tf.data.Dataset.range(3).map(lambda i: (i, tf.random.stateless_uniform([size // 4], [i, 1], 0, 1 << 30, tf.int32)))
        wanted = [records.crc(element) for element in plain]
        gc.collect()
        before = _resident()
        ours = plain.apply(pecan.distribute(cluster.target, deterministic=True, dispatcher_timeout_s=120, **TCP))
        assert [records.crc(element) for element in ours] == wanted
        assert between.send("count")["cut"] == len(cuts), "the proxy did not reset every connection"
        del ours
        wait(lambda: gc.collect() >= 0 and _resident() < before + 4 * size, "the memory is freed")
