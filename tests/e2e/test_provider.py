"""A dispatcher that starts and stops its workers: they come when a trainer reads, and leave when nobody does."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import threading
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.servers import programs
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program, run_command
from test_metrics import free_port, scrape, until

ELEMENT_S, STEP_S, ELEMENTS = 0.02, 0.005, 3000
# Elements of a size that is not packed with others, and buffers of a few of them.
FLOATS, WINDOW = 16 << 10, 1 << 20
MOST = 3
WAIT_S = 120


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch):
    """The dispatcher passes its environment on to its workers. In a source tree they find TensorFlow's libraries by it."""
    monkeypatch.setattr("test_commands.ENVIRONMENT", {**programs.environment(programs.WORKER), "PYTHONPATH": str(pathlib.Path(pecan.__file__).parents[1])})


def start(metrics: int, log: pathlib.Path, *flags: str, listen: str = "127.0.0.1:0") -> Program:
    """A dispatcher that starts up to MOST workers."""
    flags = ("--workers-provider", "local", "--max-workers", str(MOST), "--workers-idle-time", "2s", "--metrics-listen", f"127.0.0.1:{metrics}", *flags)
    workers = f"--workers-args=--max-streams=1,--threads=1,--window-bytes={WINDOW}"
    with log.open("ab") as file:
        return Program("pecan-dispatcher", "--listen", listen, workers, *flags, stderr=file)


def status(target: str) -> dict:
    shown = run_command("pecanctl", "status", "--json", "--dispatcher", target)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def eventually(condition, what: str, log: pathlib.Path | None = None):
    """Waits until a condition holds. If it does not, the failure shows the last decisions in the dispatcher's log."""
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}\n{log.read_text()[-4000:] if log else ''}"
        time.sleep(0.2)
    return found


def workers(target: str) -> dict[str, str]:
    """The addresses of the registered workers and their states."""
    return {worker["address"]["tcp"]: worker["state"] for worker in status(target)["workers"]}


def grown(target: str) -> dict | None:
    """The status of the provider, if two workers serve."""
    seen = status(target)
    return seen["provider"] if [worker["state"] for worker in seen["workers"]].count("connected") >= 2 else None


class Trainer(threading.Thread):
    """A training loop in the background, over a pipeline that sleeps. It starts no workers of its own."""

    def __init__(self, target: str, elements: int = ELEMENTS) -> None:
        super().__init__(daemon=True)
        dataset = tf.data.Dataset.range(elements).apply(testing.sleep(int(1e6 * ELEMENT_S)))
        dataset = dataset.map(lambda n: tf.fill([FLOATS], tf.cast(n, tf.float32)))
        self.dataset = dataset.apply(pecan.distribute(target, streams=48, max_outstanding_bytes=WINDOW, objective="time", local_workers=0))
        self.elements, self.step_s, self.taken, self.failure = elements, STEP_S, [], None

    def run(self) -> None:
        try:
            for element in self.dataset:
                self.taken.append(int(element[0]))
                time.sleep(self.step_s)
        except (tf.errors.OpError, pecan.PecanError) as error:
            self.failure = error

    def complete(self) -> None:
        """Waits for the end. Every element has come once."""
        self.step_s = 0.0
        self.join(WAIT_S)
        assert self.failure is None and not self.is_alive(), self.failure
        assert sorted(self.taken) == list(range(self.elements))


def test_workers_come_with_a_trainer_and_leave_after_it(tmp_path: pathlib.Path):
    """Their streams can begin at any index and leave first, which the dispatcher measures."""
    metrics, log = free_port(), tmp_path / "log"
    dispatcher = start(metrics, log)
    target = dispatcher.address
    try:
        before = until(metrics, lambda seen: 'pecan_dispatcher_provider_workers{state="ready"}' in seen, "an answer of the provider")
        assert before['pecan_dispatcher_provider_workers{state="ready"}'] == 0
        trainer = Trainer(target)
        trainer.start()
        # One worker takes 20 ms for an element and a step takes 5 ms, so the search wants as many as there may be.
        seen = eventually(lambda: grown(target), "the search has got a second worker")
        assert (seen["name"], seen["max"], seen["error"]) == ("local", MOST, "") and seen["desired"] >= 2, seen
        table = run_command("pecanctl", "status", "--dispatcher", target).stdout
        assert "provider of workers" in table
        # A slow trainer needs one worker. The others leave while it reads.
        trainer.step_s = 0.1
        eventually(lambda: 'msg="a worker left"' in log.read_text(), "a worker leaves while the trainer reads", log)
        assert trainer.is_alive() and workers(target)
        trainer.complete()
        eventually(lambda: not workers(target), "all workers have left")
        after = until(metrics, lambda seen: seen['pecan_dispatcher_provider_workers{state="ready"}'] == 0, "the provider has no worker")
        left = after['pecan_dispatcher_worker_leave_seconds_count{streams="all"}']
        assert 2 <= left == log.read_text().count('msg="a worker left"') == log.read_text().count('msg="worker asked to leave"')
        assert "worker ended by itself" not in log.read_text()
    finally:
        dispatcher.process.kill()
        dispatcher.process.wait(180)


def test_a_restarted_dispatcher_replaces_its_workers(tmp_path: pathlib.Path):
    """G8: its workers end with it. The next one asks for those that the job wants, and the trainer misses nothing."""
    metrics, log = free_port(), tmp_path / "log"
    flags = ("--work-dir", str(tmp_path / "work"), "--worker-dead-after", "3s")
    dispatcher = start(metrics, log, *flags)
    target = dispatcher.address
    try:
        trainer = Trainer(target, 1500)
        trainer.start()
        first = eventually(lambda: workers(target), "a worker serves the job")
        eventually(lambda: len(trainer.taken) > 20, "the trainer has elements")
        pids = children(dispatcher.process.pid)
        assert pids
        dispatcher.process.send_signal(signal.SIGKILL)
        dispatcher.process.wait(180)
        dispatcher = start(metrics, log, *flags, listen=target)
        eventually(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids), "the workers of the killed dispatcher have ended")
        eventually(lambda: set(workers(target)) - set(first), "another worker serves the job")
        trainer.complete()
        eventually(lambda: not workers(target) and not children(dispatcher.process.pid), "all workers have left")
        assert dispatcher.stop()[0] == 0
    finally:
        dispatcher.process.kill()
        dispatcher.process.wait(180)


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(child) for task in os.listdir(f"/proc/{pid}/task") for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]


def test_a_signal_moves_streams_away_from_a_slow_reader():
    """A worker on SIGTERM does not wait until its reader has taken what is ready: these streams continue elsewhere at once."""
    metrics = free_port()
    running = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{metrics}")]
    target = running[0].address
    try:
        flags = ("--dispatcher", target, "--max-streams", "2", "--threads", "1", "--drain-timeout", "100s")
        running += [Program("pecan-worker", *flags) for _ in range(2)]
        dataset = tf.data.Dataset.range(400).map(lambda n: tf.fill([FLOATS], tf.cast(n, tf.float32)))
        iterator = iter(dataset.apply(pecan.distribute(target, streams=8, max_outstanding_bytes=WINDOW)))
        taken = [int(next(iterator)[0]) for _ in range(5)]
        # The reader takes no more, and its buffers are full.
        time.sleep(1)
        assert running[1].stop()[0] == 0
        seen = scrape(metrics)
        name = "pecan_dispatcher_worker_leave_seconds"
        assert seen[f'{name}_count{{streams="at_index"}}'] == seen[f'{name}_count{{streams="all"}}'] == 1
        took = seen[f'{name}_sum{{streams="at_index"}}']
        assert took <= seen[f'{name}_sum{{streams="all"}}'] < 50
        taken += [int(element[0]) for element in iterator]
        assert sorted(taken) == list(range(400))
        if took > 2 and (load := os.getloadavg()[0] / len(os.sched_getaffinity(0))) > 1.3:
            pytest.skip(f"other processes keep this host busy, with a load of {load:.1f}: the streams left after {took:.1f} s")
        assert took <= 2
    finally:
        for program in running:
            program.process.kill()
        for program in running:
            program.process.communicate(timeout=180)
