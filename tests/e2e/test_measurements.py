"""What trainers and workers report of their speed, compared with trainers and pipelines of a known speed."""

from __future__ import annotations

import statistics
import time

import pecan
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program
from test_metrics import free_port, scrape

# Elements of a size that is neither packed with others nor near the bounds below.
FLOATS = 16 << 10
WINDOW = 1 << 20


def pipeline(sleep_s: float) -> tf.data.Dataset:
    """Elements that take a fixed time and nearly no processor."""
    dataset = tf.data.Dataset.range(1_000_000).apply(testing.sleep(int(1e6 * sleep_s)))
    return dataset.map(lambda n: tf.fill([FLOATS], tf.cast(n, tf.float32)))


# Rounds of training after which the figures must have been right once. A round in which the host stops for a moment, or
# changes its speed, has no right figure: reports cover the last seconds only.
ROUNDS, ROUND_S = 8, 4


def train(iterator, step_s: float, seconds: float) -> tuple[float, float]:
    """A training loop with steps of a fixed length.

    Returns the median of the seconds per element, and the share of the time in which the loop waited for elements. On a busy host
    both differ from what the lengths of steps and elements say.
    """
    begun, waited, times = time.monotonic(), 0.0, []
    while (now := time.monotonic()) - begun < seconds:
        next(iterator)
        waited += time.monotonic() - now
        time.sleep(step_s)
        times.append(time.monotonic() - now)
    return statistics.median(times), waited / (time.monotonic() - begun)


def differences(seen: dict[str, float], element_s: float, wait: float, worker_bound: bool) -> list[str]:
    """Says which figures of the dispatcher differ from those of the training loop."""
    trainer = {name.split("{")[0]: value for name, value in seen.items() if name.startswith("pecan_dispatcher_trainer_")}
    queue = trainer["pecan_dispatcher_trainer_queue_elements"]
    # The graph of a stream reads ahead too, so the share of a worker that is not the bound may seem lower than it is.
    busy = seen['pecan_dispatcher_worker_busy_ratio{kind="remote"}']
    right = {
        f"the loop waits for {wait:.2f} of its time": (wait > 0.4) == worker_bound,
        f"an element takes {element_s:.4f} s": trainer["pecan_dispatcher_trainer_element_seconds"] == pytest.approx(element_s, rel=0.25),
        f"the share waited is {wait:.2f}": trainer["pecan_dispatcher_trainer_wait_ratio"] == pytest.approx(wait, abs=0.2),
        f"elements that are ready: {queue:.1f}": queue < 1 if worker_bound else queue >= 1,
        f"busy share of the worker: {busy:.2f}": busy > 0.9 if worker_bound else busy < 0.6,
    }
    return [f"{what}, but {trainer} was reported" for what, holds in right.items() if not holds]


@pytest.mark.parametrize(
    ("sleep_s", "step_s", "worker_bound"),
    [
        pytest.param(0.005, 0.02, False, id="the trainer is the bound"),
        pytest.param(0.04, 0.01, True, id="the worker is the bound"),
    ],
)
def test_the_figures_of_a_known_trainer_and_pipeline_are_right(sleep_s, step_s, worker_bound):
    at_dispatcher, at_worker = free_port(), free_port()
    programs = []
    try:
        programs.append(Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{at_dispatcher}"))
        target = programs[0].address
        flags = ("--max-streams", "1", "--window-bytes", str(WINDOW), "--metrics-listen", f"127.0.0.1:{at_worker}")
        programs.append(Program("pecan-worker", "--dispatcher", target, *flags))
        dataset = pipeline(sleep_s).apply(pecan.distribute(target, streams=4, max_outstanding_bytes=WINDOW))
        # The first seconds fill the buffers.
        iterator = iter(dataset)
        train(iterator, step_s, 4)
        wrong = [["no round"]]
        while wrong[-1] and len(wrong) <= ROUNDS:
            element_s, wait = train(iterator, step_s, ROUND_S)
            wrong.append(differences(scrape(at_dispatcher), element_s, wait, worker_bound))
        assert not wrong[-1], wrong[1:]
        states = scrape(at_worker)
        assert states['pecan_worker_runs_seconds_total{state="computing"}'] > 0
        assert (states['pecan_worker_runs_seconds_total{state="blocked"}'] > 1) == (not worker_bound), states
    finally:
        for program in programs:
            program.stop()
