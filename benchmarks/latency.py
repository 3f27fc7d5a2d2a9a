"""How long a trainer waits at the start and at the end of an epoch."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

import systems
import tensorflow as tf
from row import Contestants, Mark, Medians, Row, Sample, Settings, at_most
from systems import LOCAL, PECAN, STOCK

EMBEDDED = "pecan, embedded start"
_EMBEDDED_START = """
import time, tensorflow as tf
dataset = tf.data.Dataset.range(100).map(lambda x: x + 1)
started = time.perf_counter()
import pecan
next(iter(dataset.apply(pecan.distribute())))
print(time.perf_counter() - started)
"""


def _first_element(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    stock = stack.enter_context(systems.tf_data_service())
    ours = stack.enter_context(systems.pecan_service())
    dataset = tf.data.Dataset.range(100).map(lambda x: x + 1)

    def first(service: systems.Service) -> Callable[[], Sample]:
        def sample() -> Sample:
            started = time.perf_counter()
            distributed = service.through(dataset)
            called = time.perf_counter()
            iterator = iter(distributed)
            next(iterator)
            return {
                "ms after iter()": 1e3 * (time.perf_counter() - called),
                "ms in distribute()": 1e3 * (called - started),
            }

        sample()
        return sample

    def embedded() -> Sample:
        done = subprocess.run(
            [sys.executable, "-c", _EMBEDDED_START], capture_output=True, text=True, timeout=120, check=True
        )
        return {"ms beyond importing TensorFlow": 1e3 * float(done.stdout.split()[-1])}

    return {STOCK: first(stock), PECAN: first(ours), EMBEDDED: embedded}


def _judge_first_element(medians: Medians) -> list[Mark]:
    return [
        at_most("running service: ≤ 50 ms after iter()", medians[PECAN]["ms after iter()"], 50, " ms"),
        at_most(
            "embedded start: ≤ 3 s beyond importing TensorFlow",
            medians[EMBEDDED]["ms beyond importing TensorFlow"] / 1e3,
            3,
            " s",
        ),
    ]


def _epoch_end(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    stock = stack.enter_context(systems.tf_data_service())
    ours = stack.enter_context(systems.pecan_service())
    size, epochs = 500, 3
    dataset = tf.data.Dataset.range(size).map(lambda x: tf.fill([1000], x))

    def ends(distributed: tf.data.Dataset) -> Callable[[], Sample]:
        repeated = distributed.repeat(epochs)

        def sample() -> Sample:
            times = []
            # Deleting an iterator takes long on a busy machine, also that of a local dataset. It has its own figure.
            iterator = iter(repeated)
            for _ in iterator:
                times.append(time.perf_counter())
            end = time.perf_counter()
            del iterator
            deleted = time.perf_counter()
            if len(times) != size * epochs:
                raise RuntimeError(f"got {len(times)} elements instead of {size * epochs}")
            between = [times[size * e] - times[size * e - 1] for e in range(1, epochs)]
            return {
                "ms to the end": 1e3 * (end - times[-1]),
                "ms to the next epoch": 1e3 * max(between),
                "ms to delete it": 1e3 * (deleted - end),
            }

        return sample

    return {LOCAL: ends(dataset), STOCK: ends(stock.through(dataset)), PECAN: ends(ours.through(dataset))}


def _judge_epoch_end(medians: Medians) -> list[Mark]:
    return [
        at_most("last element to the end: ≤ 20 ms", medians[PECAN]["ms to the end"], 20, " ms"),
        at_most(
            "last element to the first of the next epoch: ≤ 20 ms", medians[PECAN]["ms to the next epoch"], 20, " ms"
        ),
    ]


ROWS: dict[str, Row] = {
    "first-element": Row("the first element", _first_element, _judge_first_element),
    "epoch-end": Row("the end of an epoch, and the start of the next", _epoch_end, _judge_epoch_end),
}
