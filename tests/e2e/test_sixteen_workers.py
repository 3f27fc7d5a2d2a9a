"""A job with an objective finds the workers that its trainer needs among sixteen, and shows how. Two jobs share them by weight."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import json
import logging
import pathlib
import statistics
import time
from collections.abc import Iterator

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program
from test_placement import BUSY_LOAD, Trainer, check_logged, check_shown

WORKERS = 16
# Elements and steps sleep, so that two processors carry all workers.
ELEMENT_S, STEP_S = 0.48, 0.06
# The price of a worker, where that of the trainer is 1.
PRICE = 0.05
PRICES = f"currency: USD\ntrainers: {{host: {{per_hour: 1.0}}}}\nworkers: {{small: {{per_hour: {PRICE}}}}}\n"
# So many that a probe that gains 11 % pays for itself in the last search.
ELEMENTS = 2400
# Elements of a size that is not packed with others, and buffers of a few of them.
FLOATS, WINDOW = 64 << 10, 1 << 20
WAIT_S = 90


class TimedTrainer(Trainer):
    """A trainer that measures its steps."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        super().__init__(dataset)
        self.step_s = STEP_S
        # How long the last steps took.
        self.steps: collections.deque[float] = collections.deque(maxlen=20)

    def step(self) -> None:
        begun = time.monotonic()
        super().step()
        self.steps.append(time.monotonic() - begun)

    def complete(self, elements: int) -> None:
        """Reads the rest without a pause. Each element has come once."""
        self.step_s = 0.0
        self.join(300)
        assert self.failure is None and not self.is_alive(), self.failure
        assert sorted(self.taken) == list(range(elements))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, pathlib.Path]]:
    """The address of a dispatcher with sixteen workers of one slot, and its log of decisions."""
    directory = tmp_path_factory.mktemp("service")
    log, prices = directory / "decisions", directory / "prices.yaml"
    prices.write_text(PRICES)
    programs = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--decisions-log", str(log), "--prices", str(prices))]
    try:
        flags = ("--dispatcher", programs[0].address, "--max-streams", "1", "--window-bytes", str(WINDOW), "--threads", "1")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            programs += pool.map(lambda _: Program("pecan-worker", *flags), range(WORKERS))
        yield programs[0].address, log
    finally:
        for program in programs:
            program.process.kill()
        for program in programs:
            program.process.communicate(timeout=180)


def sleepy(elements: int, floats: int = FLOATS) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(elements).apply(testing.sleep(int(1e6 * ELEMENT_S)))
    return dataset.map(lambda n: tf.fill([floats], tf.cast(n, tf.float32)))


def jobs(target: str) -> list[dict]:
    return session.connect(target, 30).status()["jobs"]


def optimum(step_s: float) -> int:
    """The number of workers at which an element costs least."""
    return min(range(1, WORKERS + 1), key=lambda n: (1 + PRICE * n) * max(step_s, ELEMENT_S / n))


def follow(target: str, trainer: TimedTrainer, step_s: float) -> tuple[float, float]:
    """Changes the trainer's speed, and waits until the search has ended at the number of workers that the trainer needs.

    A busy host stretches steps and elements. So the optimum follows from measured steps, and its neighbours are accepted.

    Returns how long that took, and the load of the host.
    """
    trainer.step_s = step_s
    trainer.steps.clear()
    begun, seen, loads = time.monotonic(), [], [0.0]
    while (took := time.monotonic() - begun) < WAIT_S and trainer.is_alive():
        [job] = jobs(target)
        loads += [reader["host"]["load"] for reader in job["consumers"] if reader.get("host")]
        now = job.get("placement") or {}
        best = optimum(max(step_s, statistics.median(list(trainer.steps) or [0.0])))
        if now.get("converged") and abs(now["remote"] - best) <= 1:
            return took, statistics.median(loads)
        seen.append((round(took, 1), best, now.get("remote"), now.get("state"), now.get("why")))
        time.sleep(0.25)
    changes = [next(group) for _, group in itertools.groupby(seen, lambda each: each[1:])]
    pytest.fail(f"a step of {step_s} s: not {best} workers within {took:.0f} s, {len(trainer.taken)} elements: {changes}")


def test_a_job_finds_its_workers_and_follows_its_trainer(service: tuple[str, pathlib.Path], caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "pecan")
    target, log = service
    served = sleepy(ELEMENTS).apply(pecan.distribute(target, streams=64, max_outstanding_bytes=WINDOW, objective="cost", local_workers=0))
    trainer = TimedTrainer(served)
    trainer.start()
    took, load = follow(target, trainer, STEP_S)
    placed = check_shown(target, served, WORKERS, PRICE)
    # On a busy host, the trainer may have taken nothing in the last seconds.
    assert placed.prices.job - PRICE * placed.running_remote in (pytest.approx(0.0), pytest.approx(1.0))
    check_logged([one.getMessage() for one in caplog.records if "placement" in one.getMessage()])
    slower, _ = follow(target, trainer, 2 * STEP_S)
    faster, _ = follow(target, trainer, STEP_S / 2)
    trainer.complete(ELEMENTS)
    decisions = [json.loads(line) for line in log.read_text().splitlines()]
    print(f"from 1 worker to {optimum(STEP_S)} in {took:.1f} s, to {optimum(2 * STEP_S)} in {slower:.1f} s, to {optimum(STEP_S / 2)} in {faster:.1f} s")
    assert decisions[0]["target"] == {"remote": 1, "local": 0} and decisions[0]["state"] == "start"
    assert any(len(each["candidates"] or []) >= 2 for each in decisions)
    if took >= 30 and load > BUSY_LOAD:
        pytest.skip(f"other processes keep this host busy, with a load of {load:.1f}: the search took {took:.0f} s")
    assert took < 30


def test_two_jobs_share_the_workers_by_weight(service: tuple[str, pathlib.Path]):
    """Each stream has five elements, so a share that is wrong at first is right within seconds."""
    target, _ = service
    streams, each = 80, 5
    trainers = {}
    for weight in (1.0, 3.0):
        distributed = pecan.distribute(target, streams=streams, weight=weight, local_workers=0, order="off")
        trainers[weight] = TimedTrainer(sleepy(streams * each, 16).apply(distributed))
        trainers[weight].step_s = 0.0
        trainers[weight].start()
    expected = {weight: WORKERS * weight / 4 for weight in trainers}
    seen, end = [], time.monotonic() + WAIT_S
    while not seen or seen[-1] != expected:
        assert time.monotonic() < end, f"not {expected} streams within {WAIT_S} s: {seen[-20:]}"
        time.sleep(0.1)
        running = [(job["options"]["weight"], job.get("running", 0)) for job in jobs(target)]
        seen.append({weight: sum(n for of, n in running if of == weight) for weight in trainers})

    def wait_for(elements: int) -> dict[float, int]:
        """Waits until the heavy job has taken so many elements more, and returns what both have taken."""
        end = len(trainers[3.0].taken) + elements
        while len(trainers[3.0].taken) < end and trainers[3.0].is_alive():
            time.sleep(0.1)
        return {weight: len(trainer.taken) for weight, trainer in trainers.items()}

    # The first streams of the light job are the rests of those that it gave. Opening them takes longer than computing them.
    before = wait_for(100)
    wait_for(150)
    light, heavy = (len(trainer.taken) - before[weight] for weight, trainer in trainers.items())
    assert 2 < heavy / light < 4.5, (light, heavy)
    for trainer in trainers.values():
        trainer.complete(streams * each)
