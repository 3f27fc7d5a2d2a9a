"""What checkpoints of streams and the cache of `pecan.cache()` cost."""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import re
import tempfile
import time

import demo_records
import meter
import pecan
import tensorflow as tf
from cluster import Cluster, wait
from row import Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most, percent_of
from trial import expensive, service

HEAD = """# What checkpoints and caches cost

`make bench-recovery` writes this page from `recovery.json`, and `make bench ROW=<name>` measures one row again.
One run samples all contestants in turns. Figures are medians, with the smallest and largest sample in brackets. Two
workers run on the trainer's machine, with files on its local disk.

*Checkpoints*: four streams, each with a quarter of a shuffle of 4,000 elements of 8 KiB after the expensive step.
Another worker cannot start such a stream at an index. Workers may take a checkpoint each second, ten times as often as
by default, so `--checkpoint-share` (1 %) is the bound. The streams of a worker share its cores and this percentage. A
stream takes its next checkpoint when the last one, with its write, took no more than the stream's part of the time
since then. The first checkpoint of a stream has no bound, because its cost is unknown. A stream is *paused* until its
iterator has saved its state; another thread writes the state to disk.

*Caches*: the demo's photographs, decoded and resized, followed by `pecan.cache()`. Each sample has its own service and
directory. Workers compute the first epoch, and write it to the cache if there is one. They read the second epoch
from the cache. *automatic* has no `pecan.cache()`, but `cache="auto"`: the service decides in the first epoch what to
store, after it has measured some hundred images. The third epoch reads the rest.
"""

STREAMS, EACH, BUFFER, PAYLOAD = 4, 10_000, 4000, 8 << 10
SHARE = 0.01
OFF, ON = "no checkpoints", "checkpoints"
REFERENCE = (OFF, "elements/s")


def _large_shuffles() -> tf.data.Dataset:
    """Returns a dataset with four streams. Each has a large shuffle after its expensive step."""
    work = expensive(0.7)

    def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        noise = tf.random.stateless_uniform([PAYLOAD // 4], [number, 2], 0, 1 << 30, tf.int32)
        return *work(number), noise

    files = tf.data.Dataset.from_tensor_slices(tf.range(STREAMS, dtype=tf.int64))
    return files.flat_map(lambda f: tf.data.Dataset.range(f * EACH, (f + 1) * EACH)).map(step).shuffle(BUFFER)


def _checkpoints(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-"))
    flags = ("--checkpoint-dir", directory, "--checkpoint-interval", "1s", "--log-level", "debug")
    without, saving = stack.enter_context(service(2)), stack.enter_context(service(2, *flags))
    return {OFF: lambda: _shuffled(without), ON: lambda: _shuffled(saving)}


def _shuffled(cluster: Cluster) -> Sample:
    """Measures one pass, and the checkpoints in the workers' logs."""
    logged = [len(worker.log.read_text()) for worker in cluster.workers]
    began, count = time.perf_counter(), 0
    for _ in _large_shuffles().apply(pecan.distribute(cluster.target)):
        count += 1
    spent = time.perf_counter() - began
    assert count == STREAMS * EACH
    figures = {"elements/s": count / spent}
    lines = [line for worker, at in zip(cluster.workers, logged) for line in worker.log.read_text()[at:].splitlines()]
    taken = [line for line in lines if ' msg="a checkpoint was saved" ' in line]
    if "--checkpoint-dir" in cluster.worker_flags:
        assert taken, "no checkpoint was taken"
        ran = _stream_seconds(lines)
        stalled, took = (sum(_seconds(line, key) for line in taken) for key in ("stalled", "took"))
        figures |= {
            "checkpoints": len(taken),
            "MB of the largest": max(int(_field(line, "bytes")) for line in taken) / 1e6,
            "ms paused": 1e3 * stalled / len(taken),
            "ms until written": 1e3 * took / len(taken),
            "% paused": 100 * stalled / ran,
            "% until written": 100 * took / ran,
        }
    return figures


def _field(line: str, key: str) -> str:
    return re.search(rf" {key}=(\S+)", line)[1]


def _seconds(line: str, key: str) -> float:
    """Returns the seconds of a duration in Go's format."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([a-zµ]+)", _field(line, key)))


def _stream_seconds(lines: list[str]) -> float:
    """Returns the seconds from the start of each stream to its last element, summed over streams."""
    begun, total = {}, 0.0
    for line in lines:
        if 'msg="the stream starts"' in line or 'msg="the stream ended"' in line:
            stream = tuple(_field(line, key) for key in ("job", "epoch", "stream"))
            when = datetime.datetime.fromisoformat(re.match(r"time=(\S+)", line)[1].replace("Z", "+00:00")).timestamp()
            if "starts" in line:
                begun[stream] = when
            else:
                total += when - begun.pop(stream)
    return total


def _judge_checkpoints(medians: Medians) -> list[Mark]:
    on = medians[ON]
    return [
        at_most("streams are paused for ≤ --checkpoint-share (1 %)", on["% paused"], 100 * SHARE, " %"),
        at_least("throughput with checkpoints: ≥ 97 %", on[percent_of(REFERENCE)], 97, " %"),
    ]


FILES = 12


def _photographs(settings: Settings) -> tf.data.Dataset:
    """Returns the demo's pipeline without its random steps: photographs, decoded and resized."""
    names, pipeline = demo_records.files(settings)[:FILES], demo_records.pipeline()
    dataset = tf.data.Dataset.from_tensor_slices(names).interleave(tf.data.TFRecordDataset, cycle_length=4)
    for step in (pipeline.parse, pipeline.decode, pipeline.resize, pipeline.normalise, pipeline.cast):
        dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset


def _caches(_: contextlib.ExitStack, settings: Settings) -> Contestants:
    dataset = _photographs(settings)
    return {
        "computed": lambda: _twice(dataset, None),
        "cached": lambda: _twice(dataset.apply(pecan.cache()), ()),
        "cached, compressed": lambda: _twice(dataset.apply(pecan.cache()), ("--cache-compress",)),
        "automatic": lambda: _decided(dataset),
    }


def _twice(dataset: tf.data.Dataset, flags: tuple[str, ...] | None) -> Sample:
    """Measures two passes with a new service. It has a cache, with the given flags, unless `flags` is None."""
    with tempfile.TemporaryDirectory(prefix="pecan-bench-") as directory, contextlib.ExitStack() as stack:
        cached = flags is not None
        cluster = stack.enter_context(service(2, *(("--cache-dir", directory, *flags) if cached else ())))
        distributed = dataset.apply(pecan.distribute(cluster.target))
        count, rate, cpu = _pass(cluster, distributed)
        figures = {"first: images/s": rate, "first: CPU ms/image": cpu}
        if cached:
            wait(lambda: _cache_state(cluster) == "committed", "the cache is complete")
            sizes = [os.stat(path).st_size for path in pathlib.Path(directory).glob("*.seg")]
            figures["kB cached/image"] = sum(sizes) / count / 1e3
        again, rate, cpu = _pass(cluster, distributed)
        assert again == count
        assert not cached or _cache_state(cluster) == "used", "the cache was not read"
        return figures | {"second: images/s": rate, "second: CPU ms/image": cpu}


def _decided(dataset: tf.data.Dataset) -> Sample:
    """Measures three passes with a new service that decides what it caches."""
    with tempfile.TemporaryDirectory(prefix="pecan-bench-") as directory, contextlib.ExitStack() as stack:
        cluster = stack.enter_context(service(2, "--cache-dir", directory))
        distributed = dataset.apply(pecan.distribute(cluster.target, cache="auto"))
        figures = {}
        for name in ("first", "second", "third"):
            count, rate, cpu = _pass(cluster, distributed)
            figures |= {f"{name}: images/s": rate, f"{name}: CPU ms/image": cpu}
        assert pecan.explain(distributed).cache.state, "nothing was cached"
        sizes = [os.stat(path).st_size for path in pathlib.Path(directory).glob("*.seg") if "-probe-" not in path.name]
        return figures | {"kB cached/image": sum(sizes) / count / 1e3}


def _cache_state(cluster: Cluster) -> str:
    (job,) = cluster.status()["jobs"]
    return job["cache"]["state"]


def _pass(cluster: Cluster, distributed: tf.data.Dataset) -> tuple[int, float, float]:
    """Returns the images of one pass, images per second, and milliseconds of CPU per image of trainer and service."""

    def cpu() -> float:
        return meter.own_cpu_seconds() + meter.cpu_seconds(each.pid for each in (cluster.dispatcher, *cluster.workers))

    used, count, began = cpu(), 0, time.perf_counter()
    for _ in distributed:
        count += 1
    spent = time.perf_counter() - began
    return count, count / spent, 1e3 * (cpu() - used) / count


ROWS: dict[str, Row] = {
    "checkpoints": Row(
        "a large shuffle with and without checkpoints", _checkpoints, _judge_checkpoints, references=(REFERENCE,)
    ),
    "caches": Row("photographs computed, cached and read", _caches, lambda _: []),
}
