"""Local workers that a trainer starts for itself, and `target_workers="LOCAL"`."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time

import pecan
import pytest
import tensorflow as tf
from script import Script
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program, run_command
from test_hosts import hosts, service  # noqa: F401 - fixtures
from test_placement import FLOATS, WINDOW, Trainer
from test_processes import _wait_until_ended

WAIT_S = 90
COUNT = 3000


def workers(target: str, placement: str) -> list[dict]:
    """What the dispatcher shows of the workers with a placement."""
    shown = run_command("pecanctl", "status", "--json", "--dispatcher", target)
    assert shown.returncode == 0, shown.stderr
    return [each for each in json.loads(shown.stdout).get("workers", []) if each["placement"] == placement]


def wait_for(what: str, holds) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.2)


def test_only_local_workers_serve_a_trainer_and_they_end_with_it(hosts, service):  # noqa: F811
    """A remote worker has another host id. Only the worker that the trainer starts gets streams, at a lower priority."""
    with Script(
        f"""
        from pecan._src.client import session
        from pecan._src.servers import local_workers
        dataset = D.range({COUNT}).map(lambda i: tf.fill([1000], i))
        read = pecan.distribute({service!r}, target_workers="LOCAL", local_workers=1, streams=8, max_outstanding_bytes=1 << 20)
        iterator = iter(dataset.apply(read))
        seen = [int(next(iterator)[0]) for _ in range(200)]
        status = session.connect({service!r}, 10).status()
        say(sum(len(w["streams"]) for w in status["workers"] if w["placement"] == "local"))
        say(sum(len(w["streams"]) for w in status["workers"] if w["placement"] == "remote"))
        seen += [int(element[0]) for element in iterator]
        say(sorted(seen) == list(range({COUNT})))
        [worker] = local_workers.of_service({service!r}).processes
        say(worker.pid)
        time.sleep(100)
        """,
        network=hosts.names[0],
    ) as script:
        assert int(script.line()) > 0
        assert int(script.line()) == 0
        assert script.line() == "True"
        worker = int(script.line())
        stat = pathlib.Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) == script.process.pid, "the trainer is not the parent"
        own = os.getpriority(os.PRIO_PROCESS, script.process.pid)
        threads = [int(each) for each in os.listdir(f"/proc/{worker}/task")]
        assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {min(own + 10, 19)}
        script.process.send_signal(signal.SIGKILL)
        _wait_until_ended([worker], 10)


def test_without_local_workers_the_target_local_is_an_error_that_names_the_way_out(cluster):
    with pecan.LocalCluster(workers=0) as empty:
        for local in (0, "auto"):
            with pytest.raises(ConnectionError, match="local_workers=1"):
                tf.data.Dataset.range(10).apply(pecan.distribute(empty.target, target_workers="LOCAL", local_workers=local))
    # Any worker of this host will do.
    near = tf.data.Dataset.range(10).apply(pecan.distribute(cluster.target, target_workers="LOCAL"))
    assert sorted(int(x) for x in near) == list(range(10))


def test_the_dispatcher_starts_local_workers_and_gives_them_back(tmp_path: pathlib.Path):
    """A local worker costs more than it gains, so the search tries one, and the remote worker continues its streams."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: USD\ntrainers: {host: {per_hour: 1.0}}\nworkers: {small: {per_hour: 0.1}}\nlocal_share: 2.0\n")
    programs = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--prices", str(prices))]
    target = programs[0].address
    try:
        programs.append(Program("pecan-worker", "--dispatcher", target, "--max-streams", "4", "--window-bytes", str(WINDOW)))
        dataset = tf.data.Dataset.range(COUNT).apply(testing.sleep(20_000))
        dataset = dataset.map(lambda n: tf.fill([FLOATS], tf.cast(n, tf.float32)))
        trainer = Trainer(dataset.apply(pecan.distribute(target, streams=64, max_outstanding_bytes=WINDOW, objective="cost")))
        trainer.step_s = 0.03
        trainer.start()
        wait_for("a local worker with streams", lambda: any(each.get("streams") for each in workers(target, "local")))
        wait_for("no local worker", lambda: not workers(target, "local"))
        assert trainer.is_alive(), "the trainer ended before the search"
        trainer.step_s = 0.0
        trainer.join(300)
        assert trainer.failure is None and not trainer.is_alive(), trainer.failure
        assert sorted(trainer.taken) == list(range(COUNT))
    finally:
        for program in programs:
            program.process.kill()
        for program in programs:
            program.process.communicate(timeout=180)


def test_an_objective_sizes_the_private_cluster():
    """A step with a cache runs only on workers with a cache directory, so one worker stays whatever is decided."""
    with Script(
        """
        from pecan._src.client import session
        dataset = D.range(1000).apply(pecan.cache()).apply(pecan.distribute(objective="time", worker_limits={"local": (0, 1)}))
        for _ in range(2):
            say(sorted(int(x) for x in dataset) == list(range(1000)))
        cluster = private_cluster.running()
        link = session.connect(cluster.target, 10)
        iterator = iter(dataset)
        while link.local_workers(1, 1)[1] < 0:
            time.sleep(0.1)
        say("decided")
        dispatcher, worker = (process.pid for process in cluster.processes)
        say(os.getpriority(os.PRIO_PROCESS, worker) - os.getpriority(os.PRIO_PROCESS, dispatcher))
        say(dispatcher, worker)
        """
    ) as script:
        assert [script.line() for _ in range(4)] == ["True", "True", "decided", "10"]
        pids = [int(pid) for pid in script.line().split()]
        assert script.rest()[0] == 0
        _wait_until_ended(pids, 5)
