"""How many elements a second come through: scalars, large elements, images, and a shared job."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable

import demo_records
import meter
import numpy as np
import raw
import systems
import tensorflow as tf
from row import ROOT, Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most, percent_of
from systems import LOCAL, PECAN, STOCK

RAW, MEMCPY = "raw TCP pair", "memcpy"
PECAN_TCP, PECAN_SHM = "pecan, TCP", "pecan, shared memory"
AT_MOST_ONCE, EXACTLY_ONCE = "at most once, in memory", "exactly once, durable"
DETERMINISTIC = "deterministic, durable"
REFERENCE = (AT_MOST_ONCE, "images/s")


def _rate(dataset: tf.data.Dataset) -> float:
    """Returns elements per second, from the first element to the last."""
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
    element = tf.constant(np.random.default_rng(1).integers(0, 256, LARGE_BYTES, np.uint8))
    dataset = tf.data.Dataset.from_tensors(element).repeat(LARGE_COUNT)

    def contestant(service: systems.Service, **options: object) -> Callable[[], Sample]:
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
        STOCK: contestant(stock),
        PECAN_TCP: contestant(ours, compression=None, data_transfer_protocol="tcp"),
        PECAN_SHM: contestant(ours, compression=None, data_transfer_protocol="shm"),
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


FILES = 32


def _photographs(settings: Settings, files: int = FILES) -> tf.data.Dataset:
    """Returns the demo's training pipeline over its first files."""
    return demo_records.pipeline().training(demo_records.files(settings)[:files])


def _image_rate(distributed: tf.data.Dataset, service: systems.Service | None = None) -> Callable[[], Sample]:
    """Returns a function that measures one pass over a dataset of images and labels."""

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
        at_least("≥ 98 % of local tf.data on the same cores", 100 * ours / medians[LOCAL]["images/s"], 98, " %"),
    ]


def _guarantees(stack: contextlib.ExitStack, settings: Settings) -> Contestants:
    dataset = _photographs(settings)
    in_memory = stack.enter_context(systems.pecan_service(workers=2))
    work_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-", dir=ROOT / "build"))
    durable = stack.enter_context(systems.pecan_service(workers=2, work_dir=f"{work_dir}/state"))
    # In mode "off" each of the two workers returns the whole dataset. With half of the files, there are as many images
    # as for the other contestants.
    off = in_memory.through(_photographs(settings, FILES // 2), processing_mode="off")
    return {
        AT_MOST_ONCE: _image_rate(in_memory.through(dataset, processing_mode="at_most_once"), in_memory),
        "off, in memory": _image_rate(off, in_memory),
        "exactly once, in memory": _image_rate(in_memory.through(dataset), in_memory),
        EXACTLY_ONCE: _image_rate(durable.through(dataset), durable),
        DETERMINISTIC: _image_rate(durable.through(dataset, deterministic=True, seed=1), durable),
    }


GUARANTEES = """All modes are compared with at most once in memory: the weakest guarantee with which each image comes
once if nothing fails. In that mode the dispatcher writes nothing to disk, and workers save and recompute nothing. Mode
off guarantees less. With two workers it returns each image twice, so it reads half of the files and returns the same
number of images. *Durable* dispatchers have a work directory and write every decision to disk before it takes
effect. Percentages refer to the run at most once in the same turn, and every second turn runs in reverse order. The
speed of such a machine varies more from minute to minute than the cost of the guarantees; CPU per image varies less.
"""


def _judge_guarantees(medians: Medians) -> list[Mark]:
    of = percent_of(REFERENCE)
    return [
        at_least("exactly once: ≤ 3 % slower", medians[EXACTLY_ONCE][of], 97, " %"),
        at_least("deterministic: ≤ 10 % slower", medians[DETERMINISTIC][of], 90, " %"),
    ]


SHARED = """One trainer reads both jobs completely. A trainer with its own job receives small elements in blocks of
rows. A trainer that shares its job receives them one by one. If TensorFlow held a block, no other trainer could read
the rows that the training loop has not consumed yet.
"""
IMAGE_BYTES = 150_528


def _shared(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    ours = stack.enter_context(systems.pecan_service())
    image = tf.constant(np.random.default_rng(1).integers(0, 256, IMAGE_BYTES, np.uint8))
    datasets = {
        "scalars": tf.data.Dataset.range(40_000),
        "150 kB pictures": tf.data.Dataset.from_tensors(image).repeat(8_000),
    }

    def contestant(dataset: tf.data.Dataset, **options: object) -> Callable[[], Sample]:
        distributed = ours.through(dataset, **options)
        return lambda: {"elements/s": _rate(distributed)}

    contestants: Contestants = {}
    for name, dataset in datasets.items():
        contestants[f"{name}, a job of its own"] = contestant(dataset)
        contestants[f"{name}, shared by name"] = contestant(dataset, job_name=name.replace(" ", "-"))
    return contestants


ROWS: dict[str, Row] = {
    "scalars": Row("int64 scalars, one worker in another process over TCP loopback", _scalars, _judge_scalars),
    "large": Row("uncompressed uint8 elements of 9.6 MB that need no computation", _large, _judge_large),
    "images": Row("the demo's image pipeline, 2 workers", _images, _judge_images),
    "guarantees": Row(
        "the demo's image pipeline with each guarantee, 2 workers",
        _guarantees,
        _judge_guarantees,
        repetitions=9,
        references=(REFERENCE,),
        about=GUARANTEES,
    ),
    "shared-job": Row(
        "a job shared by name, compared with a job of one trainer", _shared, lambda _: [], about=SHARED
    ),
}
# Other names of rows: one measurement fills several lines of the table in the README.
ALIASES = {"large-tcp": "large", "large-shm": "large", "cpu": "large"}
