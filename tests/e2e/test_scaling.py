"""A service that starts its workers: their number follows the speed of a trainer."""

from __future__ import annotations

import itertools
import json
import pathlib
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from tensorflow.python.data.experimental.ops import testing
from test_metrics import free_port
from test_placement import FLOATS, WINDOW, Trainer
from test_provider import libraries, start  # noqa: F401 - a fixture

# Elements and steps sleep, so that two processors carry all workers. A busy host stretches them by some milliseconds.
ELEMENT_S, STEP_S, SLOTS = 0.4, 0.16, 1
MOST = 7
# The price of a worker, where that of the trainer is 1.
PRICE = 0.1
PRICES = f"currency: USD\ntrainers: {{host: {{per_hour: 1.0}}}}\nworkers: {{small: {{per_hour: {PRICE}}}}}\n"
ELEMENTS = 700
WAIT_S = 90


def optimum(step_s: float) -> int:
    """The number of workers at which an element costs least."""
    return min(range(1, MOST + 1), key=lambda n: (1 + PRICE * n) * max(step_s, ELEMENT_S / (n * SLOTS)))


def follow(target: str, trainer: Trainer, step_s: float) -> tuple[float, dict]:
    """Changes the trainer's speed, and waits until the search has ended and as many workers run as the trainer needs.

    A busy host stretches steps and elements by different factors, so one more worker is accepted.

    Returns the seconds that it took, and the placement.
    """
    trainer.step_s = step_s
    accepted = (optimum(step_s), optimum(step_s) + 1)
    begun, seen = time.monotonic(), []
    while (took := time.monotonic() - begun) < WAIT_S and trainer.is_alive():
        status = session.connect(target, 30).status()
        now = status["jobs"][0].get("placement") or {}
        running = sum(worker["state"] == "connected" for worker in status["workers"])
        if now.get("converged") and now["remote"] == running and running in accepted:
            return took, now
        seen.append((round(took, 1), running, now.get("remote"), now.get("state"), now.get("why")))
        time.sleep(0.25)
    changes = [next(group) for _, group in itertools.groupby(seen, lambda each: each[1:])]
    pytest.fail(f"a step of {step_s} s: not {accepted} workers within {took:.0f} s, {len(trainer.taken)} elements: {changes}")


def test_the_number_of_workers_follows_the_trainer(tmp_path: pathlib.Path):
    decided, log, prices = tmp_path / "decisions", tmp_path / "log", tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    flags = ("--min-workers", "1", "--max-workers", str(MOST), "--decisions-log", str(decided), "--prices", str(prices))
    dispatcher = start(free_port(), log, *flags)
    target = dispatcher.address
    try:
        dataset = tf.data.Dataset.range(ELEMENTS).apply(testing.sleep(int(1e6 * ELEMENT_S)))
        dataset = dataset.map(lambda n: tf.fill([FLOATS], tf.cast(n, tf.float32)))
        options = dict(streams=64, max_outstanding_bytes=WINDOW, objective="cost", local_workers=0)
        trainer = Trainer(dataset.apply(pecan.distribute(target, **options)))
        end = time.monotonic() + WAIT_S
        while not session.connect(target, 30).status()["workers"]:
            assert time.monotonic() < end, f"the first worker is not there after {WAIT_S} s: {log.read_text()[-2000:]}"
            time.sleep(0.2)
        trainer.start()
        took, found = follow(target, trainer, STEP_S)
        assert took < 30 and found["search_windows"] <= 6, (took, found)
        faster, _ = follow(target, trainer, STEP_S / 2)
        slower, _ = follow(target, trainer, STEP_S * 2)
        print(f"converged after {took:.1f} s, followed a faster trainer after {faster:.1f} s and a slower one after {slower:.1f} s")
        # The rest comes without a pause.
        trainer.step_s = 0.0
        trainer.join(300)
        assert trainer.failure is None and not trainer.is_alive(), trainer.failure
        assert sorted(trainer.taken) == list(range(ELEMENTS))
        first = json.loads(decided.read_text().splitlines()[0])
        assert first["target"] == {"remote": 1, "local": 0} and first["limits"]["Max"]["Remote"] == MOST
        assert "worker ended by itself" not in log.read_text()
    finally:
        dispatcher.process.kill()
        dispatcher.process.wait(180)
