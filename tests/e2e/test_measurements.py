"""What trainers and workers report of their speed, compared with trainers and pipelines of a known speed."""

from __future__ import annotations

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


def train(iterator, step_s: float, seconds: float) -> tuple[float, float]:
    """A training loop with steps of a fixed length.

    Returns the seconds per element, and the share of them in which the loop waited for elements. On a busy host both differ from
    what the lengths of steps and elements say.
    """
    begun, waited, elements = time.monotonic(), 0.0, 0
    while (now := time.monotonic()) - begun < seconds:
        next(iterator)
        waited, elements = waited + time.monotonic() - now, elements + 1
        time.sleep(step_s)
    took = time.monotonic() - begun
    return took / elements, waited / took


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
        element_s, wait = train(iterator, step_s, 8)
        assert (wait > 0.4) == worker_bound, wait
        seen = scrape(at_dispatcher)
        trainer = {name.split("{")[0]: value for name, value in seen.items() if name.startswith("pecan_dispatcher_trainer_")}
        assert trainer["pecan_dispatcher_trainer_element_seconds"] == pytest.approx(element_s, rel=0.25), trainer
        assert trainer["pecan_dispatcher_trainer_wait_ratio"] == pytest.approx(wait, abs=0.2), trainer
        queue = trainer["pecan_dispatcher_trainer_queue_elements"]
        assert queue < 1 if worker_bound else queue >= 1, trainer
        # The graph of a stream reads ahead too, so the share of a worker that is not the bound may seem lower than it is.
        busy = seen['pecan_dispatcher_worker_busy_ratio{placement="remote"}']
        assert busy > 0.9 if worker_bound else busy < 0.6, busy
        states = scrape(at_worker)
        assert states['pecan_worker_runs_seconds_total{state="computing"}'] > 0
        assert (states['pecan_worker_runs_seconds_total{state="blocked"}'] > 1) == (not worker_bound), states
    finally:
        for program in programs:
            program.stop()
