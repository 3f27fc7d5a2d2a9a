"""A budget bounds the workers of a job whose trainer waits for every worker that it can get."""

from __future__ import annotations

import concurrent.futures
import pathlib

import pecan
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program
from test_placement import FLOATS, PRICES, WINDOW, Trainer, converged

# With the trainer at 1 and a worker at 0.25 per hour, the budget is enough for two of three workers.
WORKERS, BUDGET, AFFORDABLE = 3, 1.6, 2
# The sleep of an element, so that two processors carry all workers.
ELEMENT_S, ELEMENTS = 0.08, 600


def test_a_budget_bounds_the_workers(tmp_path: pathlib.Path):
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    programs = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--prices", str(prices))]
    target = programs[0].address
    try:
        flags = ("--dispatcher", target, "--max-streams", "1", "--window-bytes", str(WINDOW), "--threads", "1")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            programs += pool.map(lambda _: Program("pecan-worker", *flags), range(WORKERS))
        dataset = tf.data.Dataset.range(ELEMENTS).apply(testing.sleep(int(1e6 * ELEMENT_S)))
        dataset = dataset.map(lambda n: tf.fill([FLOATS], tf.cast(n, tf.float32)))
        options = dict(streams=64, max_outstanding_bytes=WINDOW, objective="budget", budget_per_hour=BUDGET, local_workers=0)
        served = dataset.apply(pecan.distribute(target, **options))
        trainer = Trainer(served)
        trainer.step_s = 0.0
        trainer.start()
        took = converged(target, range(AFFORDABLE, AFFORDABLE + 1), 90, "from one worker")
        placed = pecan.explain(served).placement
        print(f"converged after {took:.1f} s: {placed.why}")
        assert placed.objective == "budget" and placed.remote == AFFORDABLE
        assert placed.prices.trainer + AFFORDABLE * placed.prices.remote <= BUDGET
        trainer.join(300)
        assert trainer.failure is None and not trainer.is_alive(), trainer.failure
        assert sorted(trainer.taken) == list(range(ELEMENTS))
    finally:
        for program in programs:
            program.process.kill()
        for program in programs:
            program.process.communicate(timeout=180)
