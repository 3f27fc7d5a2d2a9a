"""What Pecan itself uses: memory in a long run, and CPU per element of the executor."""

from __future__ import annotations

import contextlib
import os
import time

import meter
import numpy as np
import systems
import tensorflow as tf
from row import Contestants, Mark, Medians, Row, Sample, Settings, at_most
from systems import PECAN

# Bytes of an element, and of the budgets of trainer and worker.
ELEMENT, BUDGET = 10_000_000, 128 * 2**20


def _memory(stack: contextlib.ExitStack, settings: Settings) -> Contestants:
    ours = stack.enter_context(systems.pecan_service(window_bytes=BUDGET))
    worker = next(pid for pid in ours.pids if "worker" in meter.command(pid))

    def sample() -> Sample:
        # A first job loads what TensorFlow needs in any case. That memory is no part of the budget.
        for _ in ours.through(tf.data.Dataset.range(1000).map(lambda x: tf.fill([10], x))):
            pass

        def resident() -> dict[str, float]:
            # Elements in shared memory belong to the trainer, so they count once, for its budget.
            (trainer, mapped), (own, slots) = meter.resident_mb(os.getpid()), meter.resident_mb(worker)
            return {"trainer": trainer + max(mapped, slots), "worker": own}

        before, seen_mb, count = resident(), [], 0
        started = tick = time.perf_counter()
        dataset = tf.data.Dataset.range(2**40).map(lambda x: tf.fill([ELEMENT], tf.cast(x % 251, tf.uint8)))
        for _ in ours.through(dataset, max_outstanding_bytes=BUDGET):
            count += 1
            time.sleep(0.05)
            now = time.perf_counter()
            if now - tick >= 1:
                tick = now
                seen_mb.append(resident())
            if now - started >= settings.memory_seconds:
                break
        tenth = max(1, len(seen_mb) // 10)
        result: Sample = {"seconds": time.perf_counter() - started, "elements": count, "budget MB": BUDGET / 1e6}
        for name in before:
            series = [seen[name] for seen in seen_mb]
            result[f"{name} MB before"] = before[name]
            result[f"{name} MB peak"] = max(series)
            result[f"{name} MB early"] = float(np.median(series[tenth : 2 * tenth]))
            result[f"{name} MB late"] = float(np.median(series[-tenth:]))
        return result

    return {PECAN: sample}


def _judge_memory(medians: Medians) -> list[Mark]:
    ours, marks = medians[PECAN], []
    for name in ("trainer", "worker"):
        growth = ours[f"{name} MB late"] - ours[f"{name} MB early"]
        above = ours[f"{name} MB peak"] - ours[f"{name} MB before"]
        marks.append(
            at_most(
                f"{name}: flat (second tenth of the run to the last: ≤ 5 % of the budget)",
                growth,
                0.05 * ours["budget MB"],
                " MB",
            )
        )
        marks.append(at_most(f"{name}: peak above its start ≤ budget + 20 %", above, 1.2 * ours["budget MB"], " MB"))
    return marks


EXECUTOR = "pecan executor"


def _executor(_: contextlib.ExitStack, __: Settings) -> Contestants:
    return {EXECUTOR: lambda: {"µs/element": meter.go_benchmark("./native/tf", "BenchmarkNext", "2s") / 1e3}}


def _judge_executor(medians: Medians) -> list[Mark]:
    return [at_most("≤ 10 µs per element from Go", medians[EXECUTOR]["µs/element"], 10, " µs")]


ROWS: dict[str, Row] = {
    "memory": Row(
        "memory in a long run of 10 MB elements with a slow consumer", _memory, _judge_memory, repetitions=1
    ),
    "executor": Row("overhead of the executor per element, from Go", _executor, _judge_executor),
}
