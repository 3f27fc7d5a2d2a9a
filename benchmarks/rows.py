"""The measurements.

Each prepares its contestants, which are then asked for a sample in turns, and judges the medians.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import meter
import numpy as np
import raw
import systems
import tensorflow as tf
from row import ROOT, Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most, percent_of

LOCAL, STOCK, RAW, MEMCPY = "local tf.data", "tf.data service", "raw TCP pair", "memcpy"
PECAN, PECAN_TCP, PECAN_SHM, EMBEDDED = "pecan", "pecan, TCP", "pecan, shared memory", "pecan, embedded start"
WITHOUT, EXACTLY_ONCE, DETERMINISTIC = "at most once, in memory", "exactly once, durable", "deterministic, durable"
AGAINST_NOTHING = (WITHOUT, "images/s")


def _rate(dataset: tf.data.Dataset) -> float:
    """Elements a second, from the first element to the last."""
    iterator = iter(dataset)
    next(iterator)
    count, started = 0, time.perf_counter()
    for _ in iterator:
        count += 1
        last = time.perf_counter()
    return count / (last - started)


def _scalars(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    stock = stack.enter_context(systems.tf_data_service())
    ours = stack.enter_context(systems.pecan_service())
    many, few = tf.data.Dataset.range(80_000), tf.data.Dataset.range(8_000)
    through_stock = stock.through(few)
    through_ours = ours.through(many, data_transfer_protocol="tcp")
    return {
        LOCAL: lambda: {"elements/s": _rate(many)},
        STOCK: lambda: {"elements/s": _rate(through_stock)},
        PECAN_TCP: lambda: {"elements/s": _rate(through_ours)},
    }


def _judge_scalars(medians: Medians) -> list[Mark]:
    ours = medians[PECAN_TCP]["elements/s"]
    local, stock = ours / medians[LOCAL]["elements/s"], ours / medians[STOCK]["elements/s"]
    return [
        Mark(
            "≥ 80 % of local iteration, or ≥ 8x tf.data service",
            f"{local:.0%} and {stock:.1f}x",
            local >= 0.8 or stock >= 8,
        )
    ]


LARGE_COUNT, LARGE_BYTES = 250, 9_600_000


def _large(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    stock = stack.enter_context(systems.tf_data_service())
    ours = stack.enter_context(systems.pecan_service())
    picture = tf.constant(np.random.default_rng(1).integers(0, 256, LARGE_BYTES, np.uint8))
    dataset = tf.data.Dataset.from_tensors(picture).repeat(LARGE_COUNT)

    def moved(service: systems.Service, **options: object) -> Callable[[], Sample]:
        distributed = service.through(dataset, **options)

        def sample() -> Sample:
            used = service.cpu_seconds() + meter.own_cpu_seconds()
            rate = _rate(distributed)
            used = service.cpu_seconds() + meter.own_cpu_seconds() - used
            return {
                "GB/s": rate * LARGE_BYTES / 1e9,
                "elements/s": rate,
                "CPU s/GB": used / (LARGE_COUNT * LARGE_BYTES / 1e9),
            }

        return sample

    return {
        MEMCPY: lambda: raw.memcpy(LARGE_COUNT, LARGE_BYTES),
        RAW: lambda: raw.tcp_pair(LARGE_COUNT, LARGE_BYTES),
        STOCK: moved(stock),
        PECAN_TCP: moved(ours, compression=None, data_transfer_protocol="tcp"),
        PECAN_SHM: moved(ours, compression=None, data_transfer_protocol="shm"),
    }


def _judge_large(medians: Medians) -> list[Mark]:
    stock, tcp, shared = medians[STOCK], medians[PECAN_TCP], medians[PECAN_SHM]
    return [
        at_least("TCP: ≥ 2x tf.data service", tcp["GB/s"] / stock["GB/s"], 2, "x"),
        at_least("TCP: ≥ 80 % of the raw TCP pair", 100 * tcp["GB/s"] / medians[RAW]["GB/s"], 80, " %"),
        at_least("shared memory: ≥ 5x tf.data service", shared["GB/s"] / stock["GB/s"], 5, "x"),
        at_most("TCP: CPU ≤ 0.6 of tf.data service", tcp["CPU s/GB"] / stock["CPU s/GB"], 0.6),
        at_most("shared memory: CPU ≤ 0.5 of tf.data service", shared["CPU s/GB"] / stock["CPU s/GB"], 0.5),
    ]


PHOTOGRAPHS = 32


def _photographs(settings: Settings, files: int = PHOTOGRAPHS) -> tf.data.Dataset:
    """The demo's training pipeline over some files of its photographs."""
    sys.path.insert(0, str(ROOT / "examples" / "photographs"))
    import build
    import pipeline

    return pipeline.training(build.records("medium", settings.demo_data).training[:files])


def _image_rate(distributed: tf.data.Dataset, service: systems.Service | None = None) -> Callable[[], Sample]:
    """Asks for one pass over a dataset of images and labels."""

    def sample() -> Sample:
        def cpu() -> float:
            return meter.own_cpu_seconds() + (service.cpu_seconds() if service else 0.0)

        used, count, started = cpu(), 0, time.perf_counter()
        for _, labels in distributed:
            count += int(labels.shape[0])
            last = time.perf_counter()
        return {"images/s": count / (last - started), "CPU ms/image": 1e3 * (cpu() - used) / count, "images": count}

    return sample


def _images(stack: contextlib.ExitStack, settings: Settings) -> Contestants:
    dataset = _photographs(settings)
    stock = stack.enter_context(systems.tf_data_service(workers=2, processing_mode="distributed_epoch"))
    ours = stack.enter_context(systems.pecan_service(workers=2))
    return {
        LOCAL: _image_rate(dataset),
        STOCK: _image_rate(stock.through(dataset), stock),
        PECAN: _image_rate(ours.through(dataset), ours),
    }


def _judge_images(medians: Medians) -> list[Mark]:
    ours = medians[PECAN]["images/s"]
    return [
        at_least("≥ tf.data service with 2 workers", ours / medians[STOCK]["images/s"], 1, "x"),
        at_least("≥ 95 % of local tf.data on the same cores", 100 * ours / medians[LOCAL]["images/s"], 95, " %"),
    ]


def _guarantees(stack: contextlib.ExitStack, settings: Settings) -> Contestants:
    dataset = _photographs(settings)
    forgetful = stack.enter_context(systems.pecan_service(workers=2))
    work_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-", dir=ROOT / "build"))
    durable = stack.enter_context(systems.pecan_service(workers=2, work_dir=f"{work_dir}/state"))
    # There each worker gives all that it is given, so that both together give as many images as the others.
    off = forgetful.through(_photographs(settings, PHOTOGRAPHS // 2), processing_mode="off")
    return {
        WITHOUT: _image_rate(forgetful.through(dataset, processing_mode="at_most_once"), forgetful),
        "off, in memory": _image_rate(off, forgetful),
        "exactly once, in memory": _image_rate(forgetful.through(dataset), forgetful),
        EXACTLY_ONCE: _image_rate(durable.through(dataset), durable),
        DETERMINISTIC: _image_rate(durable.through(dataset, deterministic=True, seed=1), durable),
    }


GUARANTEES = """\
The others are compared with the weakest mode that returns each image once if nothing fails: at most once, with
a dispatcher that keeps nothing on disk. It writes nothing, keeps nothing for a successor and recomputes
nothing. Mode off promises less and returns each image twice with two workers. It therefore gets half of the
files, so that as many images come. *Durable* dispatchers have a work directory and write every decision to disk
before it takes effect. Percentages are of the run at most once in the same turn. Every second turn runs
backwards, because the speed of such a machine changes more from minute to minute than the modes cost. The CPU
per image changes less.
"""


def _judge_guarantees(medians: Medians) -> list[Mark]:
    of = percent_of(AGAINST_NOTHING)
    return [
        at_least("exactly once: ≤ 3 % slower", medians[EXACTLY_ONCE][of], 97, " %"),
        at_least("deterministic: ≤ 10 % slower", medians[DETERMINISTIC][of], 90, " %"),
    ]


_EMBEDDED = """
import time, tensorflow as tf
dataset = tf.data.Dataset.range(100).map(lambda x: x + 1)
started = time.perf_counter()
import pecan
next(iter(dataset.apply(pecan.distribute())))
print(time.perf_counter() - started)
"""


SHARED = """\
One trainer runs, so that both jobs read everything. Rows of a block that TensorFlow holds and the training loop
has not used are available to no other trainer. A trainer of a shared job therefore gets small elements one by
one, and a trainer of a private job gets them in blocks.
"""
PICTURE_BYTES = 150_528


def _shared(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    ours = stack.enter_context(systems.pecan_service())
    picture = tf.constant(np.random.default_rng(1).integers(0, 256, PICTURE_BYTES, np.uint8))
    datasets = {
        "scalars": tf.data.Dataset.range(40_000),
        "150 kB pictures": tf.data.Dataset.from_tensors(picture).repeat(8_000),
    }

    def asks(dataset: tf.data.Dataset, **options: object) -> Callable[[], Sample]:
        distributed = ours.through(dataset, **options)
        return lambda: {"elements/s": _rate(distributed)}

    contestants: Contestants = {}
    for name, dataset in datasets.items():
        contestants[f"{name}, a job of its own"] = asks(dataset)
        contestants[f"{name}, shared by name"] = asks(dataset, job_name=name.replace(" ", "-"))
    return contestants


def _judge_shared(_: Medians) -> list[Mark]:
    return []


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
            [sys.executable, "-c", _EMBEDDED], capture_output=True, text=True, timeout=120, check=True
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
            # Kept beyond its end: to delete it takes long on a busy machine, that of a local dataset too.
            iterator = iter(repeated)
            for _ in iterator:
                times.append(time.perf_counter())
            end = time.perf_counter()
            del iterator
            deleted = time.perf_counter()
            if len(times) != size * epochs:
                raise RuntimeError(f"{len(times)} elements came instead of {size * epochs}")
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


MEMORY_ELEMENT, MEMORY_BUDGET = 10_000_000, 128 * 2**20


def _memory(stack: contextlib.ExitStack, settings: Settings) -> Contestants:
    ours = stack.enter_context(systems.pecan_service(window_bytes=MEMORY_BUDGET))
    worker = next(pid for pid in ours.pids if "worker" in meter.command(pid))

    def sample() -> Sample:
        # What TensorFlow takes for running anything at all is not Pecan's to budget: it is there before the first look.
        for _ in ours.through(tf.data.Dataset.range(1000).map(lambda x: tf.fill([10], x))):
            pass
        dataset = tf.data.Dataset.range(2**40).map(lambda x: tf.fill([MEMORY_ELEMENT], tf.cast(x % 251, tf.uint8)))

        def look() -> dict[str, float]:
            # Elements in shared memory are the reader's: they count once, against the trainer's budget.
            (trainer, mapped), (own, slots) = meter.resident_mb(os.getpid()), meter.resident_mb(worker)
            return {"trainer": trainer + max(mapped, slots), "worker": own}

        before, looks, count = look(), [], 0
        started = tick = time.perf_counter()
        dataset = tf.data.Dataset.range(2**40).map(lambda x: tf.fill([MEMORY_ELEMENT], tf.cast(x % 251, tf.uint8)))
        for _ in ours.through(dataset, max_outstanding_bytes=MEMORY_BUDGET):
            count += 1
            time.sleep(0.05)
            now = time.perf_counter()
            if now - tick >= 1:
                tick = now
                looks.append(look())
            if now - started >= settings.memory_seconds:
                break
        tenth = max(1, len(looks) // 10)
        result: Sample = {"seconds": time.perf_counter() - started, "elements": count, "budget MB": MEMORY_BUDGET / 1e6}
        for name in before:
            series = [seen[name] for seen in looks]
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


def _executor(_: contextlib.ExitStack, __: Settings) -> Contestants:
    def sample() -> Sample:
        words = ["go", "test", "-run", "^$", "-bench", "^BenchmarkNext$", "-benchtime", "2s", "./native/tf"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        found = re.search(r"BenchmarkNext\S*\s+\d+\s+([\d.]+) ns/op", done.stdout)
        if found is None:
            raise RuntimeError(f"{' '.join(words)} gave no figure:\n{done.stdout}{done.stderr}")
        return {"µs/element": float(found[1]) / 1e3}

    return {"pecan executor": sample}


def _judge_executor(medians: Medians) -> list[Mark]:
    return [at_most("≤ 10 µs per element from Go", medians["pecan executor"]["µs/element"], 10, " µs")]


ROWS: dict[str, Row] = {
    "scalars": Row("int64 scalars, one worker in another process over TCP loopback", _scalars, _judge_scalars),
    "large": Row("9.6 MB uint8 elements that cost nothing to make, uncompressed", _large, _judge_large),
    "images": Row("the demo's image pipeline, 2 workers", _images, _judge_images),
    "guarantees": Row(
        "the demo's image pipeline by what is promised, 2 workers",
        _guarantees,
        _judge_guarantees,
        repetitions=9,
        against=AGAINST_NOTHING,
        about=GUARANTEES,
    ),
    "shared-job": Row("a job shared by name beside one of the trainer's own", _shared, _judge_shared, about=SHARED),
    "first-element": Row("the first element", _first_element, _judge_first_element),
    "epoch-end": Row("the end of an epoch, and the next", _epoch_end, _judge_epoch_end),
    "memory": Row("memory over a long run of 10 MB elements, slow consumer", _memory, _judge_memory, repetitions=1),
    "executor": Row("executor overhead per element from Go", _executor, _judge_executor),
}
# Rows of the table that one measurement answers together.
ALIASES = {"large-tcp": "large", "large-shm": "large", "cpu": "large"}
