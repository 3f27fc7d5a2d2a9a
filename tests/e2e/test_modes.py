"""Log and status show a job's mode. A dataset that cannot keep the mode is refused or runs in a weaker mode."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import signal
import time
import types
from collections.abc import Iterable

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from soak import cases

D = tf.data.Dataset


def _by_the_clock() -> tf.data.Dataset:
    return D.range(40).filter(lambda i: tf.timestamp() > 5)


def _jobs(cluster) -> list[dict]:
    return session.connect(cluster.target.removeprefix("pecan://"), 10).status().get("jobs", [])


@pytest.mark.parametrize("mode", ["exactly_once", "deterministic", "at_least_once", "at_most_once", "off"])
def test_the_start_of_a_job_is_logged(cluster, caplog, mode):
    with caplog.at_level(logging.INFO, logger="pecan"):
        dataset = D.range(40).apply(
            pecan.distribute(cluster.target, job_name=f"said-{mode}", processing_mode=mode, seed=11)
        )
    messages = [r.getMessage() for r in caplog.records if f"job said-{mode} created" in r.getMessage()]
    assert len(messages) == 1
    job = next(j for j in _jobs(cluster) if j.get("name") == f"said-{mode}")
    order = {"off": "order off,", "deterministic": "order auto (exact),"}.get(mode, "order auto (approximate),")
    streams = "a worker's own streams" if mode == "off" else f"{job['plan']['num_streams']} streams"
    for words in (f"mode {mode},", "class B", streams, f"plan {job['plan']['hash'][:12]},", "seed 11,", order):
        assert words in messages[0]
    assert messages[0].endswith("dispatcher in memory only")
    assert job["options"]["mode"] == f"MODE_{mode.upper()}"
    assert job["plan"]["determinism"] == "DETERMINISM_CLASS_B"
    del dataset


@pytest.mark.parametrize(
    ("given", "logged", "sent"),
    [
        ({"order_tolerance": "any"}, "order auto (any),", ("ORDER_AUTO", "ORDER_TOLERANCE_ANY")),
        ({"order": "auto", "order_tolerance": "exact"}, "order auto (exact),", ("ORDER_AUTO", "ORDER_TOLERANCE_EXACT")),
        ({"order": "paper"}, "order paper (any),", ("ORDER_PAPER", "ORDER_TOLERANCE_ANY")),
        ({"order": "paper_unguarded"}, "order paper_unguarded (any),", ("ORDER_PAPER_UNGUARDED", "ORDER_TOLERANCE_ANY")),
    ],
)
def test_order_options_reach_the_dispatcher_and_the_log(cluster, caplog, given, logged, sent):
    name = "-".join(("ordered", *given.values()))
    with caplog.at_level(logging.INFO, logger="pecan"):
        dataset = D.range(40).apply(pecan.distribute(cluster.target, job_name=name, **given))
    assert any(logged in r.getMessage() for r in caplog.records)
    options = next(j for j in _jobs(cluster) if j.get("name") == name)["options"]
    assert (options["order"], options["order_tolerance"]) == sent
    with pytest.raises(pecan.JobMismatchError, match="order"):
        D.range(40).apply(pecan.distribute(cluster.target, job_name=name))
    del dataset


def test_the_log_of_a_jobs_start_names_the_work_directory(tmp_path, caplog):
    config = pecan.DispatcherConfig(work_dir=tmp_path / "work")
    with pecan.DispatchServer(config) as dispatcher, caplog.at_level(logging.INFO, logger="pecan"):
        D.range(40).apply(pecan.distribute(dispatcher.target))
        assert any(r.getMessage().endswith("dispatcher with a work directory") for r in caplog.records)
        session.retire(dispatcher.target.removeprefix("pecan://"))


@pytest.mark.parametrize("asked", ["exactly_once", "deterministic"])
def test_the_service_refuses_a_mode_that_a_registered_dataset_cannot_keep(cluster, asked):
    dataset_id = pecan.register_dataset(cluster.target, _by_the_clock())
    with pytest.raises(ValueError, match=f"mode {asked}.*NONDETERMINISTIC"):
        pecan.from_dataset_id(None, cluster.target, dataset_id, deterministic=asked == "deterministic")
    assert len(list(pecan.from_dataset_id("at_least_once", cluster.target, dataset_id))) == 40


def test_a_weaker_mode_is_a_warning(cluster, caplog):
    with caplog.at_level(logging.INFO, logger="pecan"):
        dataset = _by_the_clock().apply(pecan.distribute(cluster.target, job_name="weak", allow_nondeterministic=True))
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("mode at_least_once and not exactly_once" in text and "FilterDataset" in text for text in warned)
    job = next(j for j in _jobs(cluster) if j.get("name") == "weak")
    assert (job["options"]["mode"], job["options"]["requested_mode"]) == ("MODE_AT_LEAST_ONCE", "MODE_EXACTLY_ONCE")
    assert sorted(int(i) for i in dataset) == list(range(40))


def test_deterministic_mode_becomes_exactly_once_for_nondeterministic_values(cluster, caplog):
    dataset = D.range(9).map(lambda i: (i, tf.timestamp()))
    with pytest.raises(ValueError, match="MapDataset.*NONDETERMINISTIC"):
        dataset.apply(pecan.distribute(cluster.target, deterministic=True))
    reading = dataset.apply(pecan.distribute(cluster.target, deterministic=True, allow_nondeterministic=True))
    assert any("mode exactly_once and not deterministic" in r.getMessage() for r in caplog.records)
    assert sorted(int(i) for i, _ in reading) == list(range(9))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once", "off"])
def test_without_failures_each_element_comes_once(cluster, mode):
    dataset = D.range(200).shuffle(200).map(lambda i: i, num_parallel_calls=2, deterministic=False)
    found = collections.Counter(int(i) for i in dataset.apply(pecan.distribute(cluster.target, processing_mode=mode)))
    times = 2 if mode == "off" else 1
    assert found == collections.Counter({i: times for i in range(200)})


def _read_with_a_death(dataset: Iterable, cluster, *, at: int) -> list[int]:
    """Reads the rest of a pass, and kills a worker that runs a stream whose first elements have arrived."""
    found: list[int] = []
    killed = False
    for element in dataset:
        found.append(int(element[0]))
        if not killed and len(found) >= at:
            victim = _in_the_middle(cluster, {i % STREAMS for i in found})
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
                killed = True
    assert killed
    return found


def _in_the_middle(cluster, arrived: set[int]) -> int | None:
    """The process of a worker that still runs a stream whose first elements have arrived."""
    pids = {worker.target.removeprefix("pecan://"): worker.process.pid for worker in cluster.workers}
    for worker in session.connect(cluster.target.removeprefix("pecan://"), 10).status()["workers"]:
        for stream in worker.get("streams", []):
            if not stream.get("ended") and int(stream["id"].get("stream", 0)) in arrived:
                return pids[worker["address"]["tcp"]]
    return None


def _slow(total: int, *, unordered: bool = False) -> tf.data.Dataset:
    """Large and slow elements after a shuffle, so that workers have produced only a part of them when one dies.

    With `unordered` elements come in the order in which they are ready, so that an index does not identify an element.
    """

    def wait(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        work = tf.random.stateless_uniform([160, 160], [1, 2]) + tf.cast(i, tf.float32)
        for _ in range(3):
            work = tf.linalg.matmul(work, work) / (1 + tf.reduce_max(tf.abs(work)))
        return i, work

    dataset = D.range(total).shuffle(total)
    return dataset.map(wait, num_parallel_calls=2, deterministic=not unordered) if unordered else dataset.map(wait)


# The epoch has 16 streams, and element i comes from stream i mod 16.
TOTAL, STREAMS = 1600, 16
WINDOW = 1 << 20


def _delivered(cluster, name: str) -> dict:
    """The first epoch's status, once the dispatcher knows that all of it has arrived."""
    deadline = time.monotonic() + 20
    while True:
        job = next(j for j in _jobs(cluster) if j.get("name") == name)
        if job["epochs"][0]["state"] == "delivered":
            return job["epochs"][0]
        assert time.monotonic() < deadline, job["epochs"][0]
        time.sleep(0.05)


@pytest.fixture
def small_windows():
    """Two workers that can keep few elements in flight."""
    with pecan.DispatchServer() as dispatcher:
        config = pecan.WorkerConfig(dispatcher.target, window_bytes=WINDOW)
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(pecan.WorkerServer(config)) for _ in range(2)]
            yield types.SimpleNamespace(target=dispatcher.target, workers=workers)


CASES = [(mode, unordered) for mode in ("exactly_once", "at_least_once", "at_most_once", "off") for unordered in (False, True)]


@pytest.mark.parametrize(
    "mode, unordered",
    # tests/faults/test_every_mode.py kills a worker in the other cases.
    cases(CASES, soak=[case for case in CASES if case not in (("at_least_once", True), ("at_most_once", False))]),
)
def test_the_death_of_a_worker_costs_what_the_mode_allows(small_windows, caplog, mode, unordered):
    dataset = _slow(TOTAL, unordered=unordered).apply(
        pecan.distribute(
            small_windows.target, processing_mode=mode, job_name=None if mode == "off" else "lossy",
            max_outstanding_bytes=WINDOW,
        )
    )  # fmt: skip
    found = collections.Counter(_read_with_a_death(dataset, small_windows, at=80))
    wanted, got = set(range(TOTAL)), set(found)
    assert got <= wanted
    if mode == "exactly_once":
        assert found == collections.Counter(range(TOTAL))
    elif mode == "at_least_once":
        assert got == wanted
        # If an index identifies an element, the stream continues. Otherwise it is sent again from its start.
        assert (sum(found.values()) > TOTAL) == unordered
    elif mode == "off":
        assert got == wanted and min(found.values()) >= 2
        assert unordered or sum(found.values()) == 2 * TOTAL
    else:
        assert max(found.values()) == 1
        epoch = _delivered(small_windows, "lossy")
        assert int(epoch["streams_truncated"]) > 0
        assert int(epoch["lost"]) == TOTAL - len(got) > 0
        deadline = time.monotonic() + 30
        while sum("ended early" in r.getMessage() for r in caplog.records) < int(epoch["streams_truncated"]):
            assert time.monotonic() < deadline, "the trainer got no warning about truncated streams"
            time.sleep(0.05)


@pytest.mark.parametrize(("mode", "unordered"), [("at_least_once", True), ("at_most_once", False)])
def test_a_worker_dies_after_a_saved_position(small_windows, mode, unordered):
    """L4: a trainer continues at its position, and from there on its mode's promise for a lost worker holds."""

    def distributed():
        return _slow(TOTAL // 2, unordered=unordered).apply(
            pecan.distribute(small_windows.target, processing_mode=mode, max_outstanding_bytes=WINDOW)
        )

    iterator = pecan.Iterator(distributed())
    seen = [int(next(iterator)[0]) for _ in range(60)]
    state = iterator.state_dict()
    del iterator
    again = pecan.Iterator(distributed())
    again.load_state_dict(state)
    found = collections.Counter(seen + _read_with_a_death(again, small_windows, at=60))
    if mode == "at_least_once":
        assert set(found) == set(range(TOTAL // 2)) and max(found.values()) > 1
    else:
        assert max(found.values()) == 1 and 0 < len(found) < TOTAL // 2
