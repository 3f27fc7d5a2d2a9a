"""Local workers that a trainer starts for itself, and `target_workers="LOCAL"`."""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from script import Script
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program
from test_hosts import TRAINER, hosts, service  # noqa: F401 - fixtures
from test_placement import BUSY_LOAD, WINDOW, Trainer
from test_processes import _wait_until_ended

WAIT_S = 90
COUNT = 3000
# A worker has room for sixteen elements.
FLOATS = 16 << 10


def workers(target: str, kind: str) -> list[dict]:
    """What the dispatcher shows of the local or remote workers."""
    return [each for each in session.connect(target, 30).status()["workers"] if each["kind"] == kind]


def wait_for(what: str, holds, shown=lambda: "") -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what} {shown()}"
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
        say(sum(len(w["streams"]) for w in status["workers"] if w["kind"] == "local"))
        say(sum(len(w["streams"]) for w in status["workers"] if w["kind"] == "remote"))
        seen += [int(element[0]) for element in iterator]
        say(sorted(seen) == list(range({COUNT})))
        [worker] = local_workers.of_service({service!r}).processes
        say(worker.pid)
        say(session.trainer_id())
        time.sleep(100)
        """,
        network=hosts.names[0],
    ) as script:
        assert int(script.line()) > 0
        assert int(script.line()) == 0
        assert script.line() == "True"
        worker = int(script.line())
        # Who knows the id may let the worker read files, and everybody may see the flags of a process.
        secret = script.line().encode()
        assert secret not in pathlib.Path(f"/proc/{worker}/cmdline").read_bytes()
        assert secret in pathlib.Path(f"/proc/{worker}/environ").read_bytes()
        stat = pathlib.Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) == script.process.pid, "the trainer is not the parent"
        own = os.getpriority(os.PRIO_PROCESS, script.process.pid)
        threads = [int(each) for each in os.listdir(f"/proc/{worker}/task")]
        assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {min(own + 10, 19)}
        script.process.send_signal(signal.SIGKILL)
        _wait_until_ended([worker], 10)


# Elements of a shared job that its trainers read on two hosts.
SHARED_COUNT, SHARED_BYTES = 400, 100_000


def test_trainers_on_two_hosts_read_from_the_local_workers_of_their_host(hosts):  # noqa: F811
    """Each trainer of a shared job starts a local worker, and there is no other. Few elements go over the link."""
    address = hosts.start(0, "pecan-dispatcher", "--listen", f"{TRAINER}:0").address
    lines = f"""
        from pecan._src.client import session
        from tensorflow.python.data.experimental.ops import testing
        def received():
            lines = [line.split() for line in open("/proc/net/dev") if ":" in line]
            return sum(int(line[1]) for line in lines if line[0] != "lo:")
        dataset = D.range({SHARED_COUNT}).apply(testing.sleep(40_000))
        dataset = dataset.map(lambda i: (i, tf.random.stateless_uniform([{SHARED_BYTES // 4}], [i, 1], None, None, tf.int32)))
        read = pecan.distribute({address!r}, job_name="shared", local_workers=1, streams=64, compression=None)
        elements = dataset.apply(read)
        def workers():
            return [worker["kind"] for worker in session.connect({address!r}, 30).status()["workers"]]
        while workers() != ["local", "local"]:
            time.sleep(0.1)
        say("ready")
        sys.stdin.readline()
        before = received()
        taken = [int(element[0]) for element in elements]
        say(received() - before)
        say(*taken)
        """
    taken = []
    with Script(lines, network=hosts.names[0]) as first, Script(lines, network=hosts.names[1]) as second:
        for script in (first, second):
            assert script.line() == "ready"
        for script in (first, second):
            script.process.stdin.write("begin\n")
            script.process.stdin.flush()
        for script in (first, second):
            received, mine = int(script.line()), [int(each) for each in script.line().split()]
            print(f"{len(mine)} elements, {received} bytes over the link")
            assert len(mine) > SHARED_COUNT / 4
            # Without a preference, half of the elements would.
            assert received < len(mine) * SHARED_BYTES / 4
            taken += mine
            assert script.rest()[0] == 0
    assert sorted(taken) == list(range(SHARED_COUNT))


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


# The processor time of an element and of a step of the trainer. A step also sleeps, as for an accelerator.
HEAVY_S, COMPUTE_S, SLEEP_S = 0.06, 0.025, 0.075
HEAVY_COUNT = 700
# Two busy threads for each processor, at the priority of the trainer. A local worker has a lower one. Kernels that divide the
# processors among sessions give each busy session the same part, however many threads it has.
BUSY_SESSIONS = 3
BUSY = """
import hashlib, os, threading
block = bytes(1 << 20)
def compute():
    while True:
        hashlib.sha256(block)
for _ in range(2 * len(os.sched_getaffinity(0)) - 1):
    threading.Thread(target=compute, daemon=True).start()
compute()
"""
BLOCK = bytes(64 << 10)


class Computes(Trainer):
    """A training loop whose steps compute."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        super().__init__(dataset)
        self.step_s = SLEEP_S

    def step(self) -> None:
        if self.step_s:
            used = time.thread_time()
            while time.thread_time() - used < COMPUTE_S:
                hashlib.sha256(BLOCK)
            time.sleep(self.step_s)


def heavy() -> tf.data.Dataset:
    """Elements that take about HEAVY_S of a processor each."""
    values = tf.range(1.0, 1 << 16)

    def once(n: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.lgamma(values + n))

    once(tf.constant(1.0))
    begun = time.process_time()
    for _ in range(5):
        once(tf.constant(1.0))
    times = max(1, round(5 * HEAVY_S / (time.process_time() - begun)))

    def element(n: tf.Tensor) -> tf.Tensor:
        number = tf.cast(n, tf.float32)
        # Sums of logarithms of factorials, which are not negative.
        nothing = tf.minimum(tf.add_n([once(number + i) for i in range(times)]), 0.0)
        return tf.fill([FLOATS], number + nothing)

    return tf.data.Dataset.range(HEAVY_COUNT).map(element)


def test_local_workers_are_given_back_while_the_host_is_busy(tmp_path: pathlib.Path):
    """A local worker is cheaper than a remote one, and as fast on an idle host. Busy processes leave it little of the host."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: USD\ntrainers: {host: {per_hour: 1.0}}\nworkers: {small: {per_hour: 0.4}}\nlocal_share: 0.25\n")
    programs = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--prices", str(prices))]
    target, busy = programs[0].address, []
    try:
        programs.append(Program("pecan-worker", "--dispatcher", target, "--window-bytes", str(WINDOW)))
        limits = {"remote": (0, 1), "local": (0, 1)}
        options = dict(streams=64, max_outstanding_bytes=WINDOW, objective="cost", worker_limits=limits)
        trainer = Computes(heavy().apply(pecan.distribute(target, **options)))
        trainer.start()

        def placed() -> dict:
            return session.connect(target, 30).status()["jobs"][0].get("placement") or {}

        loads: list[float] = []

        def read_loads() -> None:
            [job] = session.connect(target, 30).status()["jobs"]
            loads.extend(reader["host"]["load"] for reader in job["consumers"] if reader.get("host"))

        def only_local() -> bool:
            read_loads()
            if len(loads) > 100 and statistics.median(loads) > BUSY_LOAD:
                pytest.skip(f"other processes keep this host busy, with a load of {statistics.median(loads):.1f}")
            now = placed()
            return bool(now.get("converged")) and (now["remote"], now["local"]) == (0, 1)

        wait_for("the local worker serves the trainer alone", only_local, placed)
        assert any(each["streams"] for each in workers(target, "local"))
        for _ in range(BUSY_SESSIONS):
            busy.append(subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True))
        loads.clear()

        def only_remote() -> bool:
            read_loads()
            return placed()["local"] == 0 and not workers(target, "local")

        wait_for("the local worker is given back", only_remote, placed)
        assert any(each["streams"] for each in workers(target, "remote"))
        assert max(loads) > BUSY_LOAD, "the trainer reported no load of its host"
        assert trainer.is_alive(), "the trainer ended before the local worker was given back"
        for process in busy:
            process.kill()
        trainer.step_s = 0.0
        trainer.join(300)
        assert trainer.failure is None and not trainer.is_alive(), trainer.failure
        assert sorted(trainer.taken) == list(range(HEAVY_COUNT))
    finally:
        for process in busy:
            process.kill()
            process.wait(180)
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


# What an element of the private cluster sleeps, and the elements that a worker computes at once: one per processor, 2 to 16.
SLEEP_ELEMENT_S, AT_ONCE = 0.4, max(2, min(16, len(os.sched_getaffinity(0))))
SLOW_STEP_S, WANTED_BY_FAST_STEP, MOST_BY_CORES = 0.45, 7, 8


def test_a_private_cluster_sizes_itself():
    """Without an objective, it begins with one worker per four cores. It stops those that a slow trainer does not need, and starts others
    for a fast one."""
    fast_step_s = SLEEP_ELEMENT_S / AT_ONCE / WANTED_BY_FAST_STEP
    with Script(
        f"""
        from pecan._src.client import session
        from tensorflow.python.data.experimental.ops import testing
        # As on a host of 16 processors.
        os.sched_getaffinity = lambda pid: set(range({2 * MOST_BY_CORES}))
        dataset = D.range(1300).apply(testing.sleep(int(1e6 * {SLEEP_ELEMENT_S})))
        dataset = dataset.map(lambda n: tf.fill([1 << 20], tf.cast(n, tf.float32)))
        dataset = dataset.apply(pecan.distribute(streams=64, max_outstanding_bytes=16 << 20))
        iterator = iter(dataset)
        cluster, seen, loads = private_cluster.running(), [], []
        say(len(cluster.workers.processes))
        def train(step_s, enough):
            end = time.monotonic() + {WAIT_S}
            while time.monotonic() < end and (element := next(iterator, None)) is not None:
                seen.append(int(element[0]))
                time.sleep(step_s)
                [job] = session.connect(cluster.target, 10).status()["jobs"]
                loads.extend(reader["host"]["load"] for reader in job["consumers"] if reader.get("host"))
                placed = job.get("placement") or {{}}
                running = len(cluster.workers.processes)
                if placed.get("converged") and running == placed["local"] and enough(running):
                    break
            say(running, sorted(loads)[len(loads) // 2], placed)
        train({SLOW_STEP_S}, lambda n: n == 1)
        train({fast_step_s}, lambda n: n >= {WANTED_BY_FAST_STEP - 1})
        say(pecan.explain(dataset).placement.objective)
        seen += [int(element[0]) for element in iterator]
        say(sorted(seen) == list(range(1300)))
        """
    ) as script:
        assert script.line() == "4"
        for what, holds in (("one worker", lambda n: n == 1), ("many workers", lambda n: n >= WANTED_BY_FAST_STEP - 1)):
            running, load, placed = script.line().split(maxsplit=2)
            if not holds(int(running)) and float(load) > BUSY_LOAD:
                pytest.skip(f"other processes keep this host busy, with a load of {load}: {what} were not reached")
            assert holds(int(running)), f"not {what} within {WAIT_S} s, but {running}: {placed}"
        assert [script.line() for _ in range(2)] == ["cost", "True"]
