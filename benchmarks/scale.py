"""How small datasets compare with a local run, how one job spreads over workers, and what many streams cost."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable

import meter
import pecan
import systems
import tensorflow as tf
from row import ROOT, Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most
from systems import LOCAL, PECAN
from tensorflow.python.data.experimental.ops import testing

HEAD = """# How one job scales

`make bench-scale` writes this page from `scale.json`, and `make bench ROW=<name>` measures one row again.
One run samples all contestants in turns. Figures are medians, with the smallest and largest sample in brackets.

*small*: a chain of six image maps and a batch of 32, and a light map, in the private cluster. The first pass is not
counted. A sample is the mean of several passes; its CPU is that of this process and of the private cluster. By default,
the cluster also searches for a cheaper order of the steps. While it compares costs, no steps run inline.

*opening*: the CPU of a further stream of a job, in a worker and its reader (`BenchmarkOpenStream`), without the CPU of
its batch. *light* is `range.map.batch`, *images* six image maps and a batch, *records* parse, decode and augment over
TFRecord files.

*workers*: every element sleeps for 20 ms, and N worker processes of one slot run one job of one trainer on this host.
With two slots, 32 workers need more than the two cores: an element that comes alone costs all processes 0.8 ms of CPU.
Most of that is Go's monitor thread in the workers, which polls while a call into TensorFlow waits. In mode
deterministic, workers open all streams of the group that is read, whatever their slots. So that fewer than 16 workers
do not sleep for more elements at a time than they have slots, the job has as many streams as workers there.

*fleet*, *jobs*: a dispatcher with its store on disk. The program `benchmarks/fleet` plays 1,000 workers of 8
slots and the trainers over real connections. Nobody computes or sends elements. The CPU is that of the dispatcher and
of the program together, from the creation of the job to the end of the epoch, heartbeats included. *Utilisation* is the
work done divided by the work that all slots could have done while streams were left.
In two contestants of *fleet*, 20 workers disappear at half of the time of the streams that they run. *Moved in* is the
longest time until such a stream runs on another worker. While all slots are full, it waits for a slot. *Of that with a
free slot* is the rest of that time, without the time in which all slots of the other workers are full. The fake
trainer never connects to workers and reports no lost one, so the dispatcher waits for `--worker-return-grace`, 1 s.
The mark is the one that [What a fault costs](faults.md) has for a killed worker beside workers with room.

*decisions*: 10,000 workers of 4 slots and 1,000 jobs, through the real core of a dispatcher, without connections and
store (`BenchmarkFleet`). Every second job has an objective. Each second has 10,000 heartbeats of workers, 1,000 of
trainers and 10 ticks. The other contestant is the policy that chooses the workers of 1,000 jobs, each with up to 10,000
remote and 8 local ones (`BenchmarkDecide`). Figures are CPU times of the deciding thread, without garbage collection in
the background. A *decision on workers* is its effect in the core, a *decision of a search* the choice of the policy.
[Fair shares](../design/0014-fair-shares.md#cost) has more of these benchmarks.
"""

D = tf.data.Dataset
SIDE, BATCH = 128, 32
IMAGES = (64, 256, 1024, 4096)
LIGHT = 1024
# What a small dataset is read with. By default, orders of the steps are compared.
SMALL = {PECAN: {}, f'{PECAN}, order="off"': {"order": "off"}}
# Seconds of passes per sample, so that CPU counters of 10 ms are exact enough.
SAMPLE_S = 2.0


def _image(i: tf.Tensor) -> tf.Tensor:
    pixels = tf.reshape(tf.range(SIDE * SIDE * 3) % 251, [SIDE, SIDE, 3])
    return tf.cast(pixels, tf.float32) + tf.cast(i % 7, tf.float32)


def images(number: int) -> tf.data.Dataset:
    """Returns `number` images of shape [128, 128, 3] after six maps, in batches of 32 float32 images."""
    dataset = D.range(number).map(_image)
    dataset = dataset.map(lambda x: x / 255.0)
    dataset = dataset.map(lambda x: tf.image.resize(x, [96, 96]))
    dataset = dataset.map(lambda x: tf.image.adjust_contrast(x, 1.2))
    dataset = dataset.map(tf.image.flip_left_right)
    dataset = dataset.map(lambda x: x[8:88, 8:88])
    return dataset.batch(BATCH)


def light(number: int) -> tf.data.Dataset:
    """Returns `number` int64 scalars after one map, in batches of 32."""
    return D.range(number).map(lambda i: i * 2).batch(BATCH)


def _passes(dataset: tf.data.Dataset) -> Callable[[], Sample]:
    """Returns a contestant that reads a dataset repeatedly."""

    def sample() -> Sample:
        for _ in dataset:
            pass
        pids, passes = {os.getpid(), *meter.descendants()}, 0
        began, cpu = time.perf_counter(), meter.cpu_seconds(pids)
        while passes < 2 or time.perf_counter() - began < SAMPLE_S:
            for _ in dataset:
                pass
            passes += 1
        took = time.perf_counter() - began
        return {"ms": 1e3 * took / passes, "CPU ms": 1e3 * (meter.cpu_seconds(pids) - cpu) / passes}

    return sample


def _small(_: contextlib.ExitStack, __: Settings) -> Contestants:
    made = {f"{number:,} images": images(number) for number in IMAGES} | {f"range({LIGHT})": light(LIGHT)}
    found: Contestants = {}
    for name, dataset in made.items():
        found[f"{name}, {LOCAL}"] = _passes(dataset)
        for ours, arguments in SMALL.items():
            found[f"{name}, {ours}"] = _passes(dataset.apply(pecan.distribute(**arguments)))
    return found


def _judge_small(medians: Medians) -> list[Mark]:
    marks = []
    for name in SMALL:
        ours, local = medians[f"1,024 images, {name}"], medians[f"1,024 images, {LOCAL}"]
        more = medians[f"range({LIGHT}), {name}"]["ms"] - medians[f"range({LIGHT}), {LOCAL}"]["ms"]
        marks += [
            at_most(f"1,024 images, {name}: ≤ 1.15 times the local wall time", ours["ms"] / local["ms"], 1.15, "x"),
            at_most(f"1,024 images, {name}: ≤ 1.15 times the local CPU", ours["CPU ms"] / local["CPU ms"], 1.15, "x"),
            at_most(f"range({LIGHT}), {name}: ≤ 20 ms more than local", more, 20, " ms"),
        ]
    return marks


# Pipelines with the most milliseconds of CPU that a further stream of them may cost.
OPENINGS = {"light": 1, "images": 3, "records": 5}


def _opening(_: contextlib.ExitStack, __: Settings) -> Contestants:
    def contestant(name: str) -> Callable[[], Sample]:
        def sample() -> Sample:
            return {
                "CPU ms": meter.go_benchmark(
                    "./service/worker", f"BenchmarkOpenStream/{name}", "1000x", "cpu-ms/opening"
                )
            }

        return sample

    return {name: contestant(name) for name in OPENINGS}


def _judge_opening(medians: Medians) -> list[Mark]:
    return [
        at_most(f"{name}: ≤ {limit} ms of CPU for a further stream", medians[name]["CPU ms"], limit, " ms")
        for name, limit in OPENINGS.items()
    ]


# Worker processes, and elements per worker and sample.
WORKERS, PER_WORKER = (1, 2, 4, 8, 16, 32), 640
# Streams of a group.
GROUP = 16
ORDERS = {"exactly once": False, "deterministic": True}


def _workers(_: contextlib.ExitStack, __: Settings) -> Contestants:
    def contestant(number: int, deterministic: bool) -> Callable[[], Sample]:
        def sample() -> Sample:
            dataset = D.range(PER_WORKER * number).apply(testing.sleep(20_000))
            with systems.pecan_service(workers=number, max_streams=1) as service:
                few = deterministic and number < GROUP
                ours = service.through(dataset, deterministic=deterministic, streams=number if few else "auto")
                for _ in ours.take(1):
                    pass
                began = time.perf_counter()
                count = sum(1 for _ in ours)
                assert count == PER_WORKER * number, count
                return {"elements/s": count / (time.perf_counter() - began)}

        return sample

    return {
        f"{number} workers, {name}": contestant(number, deterministic)
        for name, deterministic in ORDERS.items()
        for number in WORKERS
    }


def _judge_workers(medians: Medians) -> list[Mark]:
    def rate(number: int, name: str) -> float:
        return medians[f"{number} workers, {name}"]["elements/s"]

    once, ordered = ORDERS
    marks = []
    for name in ORDERS:
        for number in WORKERS[1:]:
            limit = 95 if number <= 16 else 90
            share = 100 * rate(number, name) / (number * rate(1, name))
            marks.append(at_least(f"{number} workers, {name}: ≥ {limit} % of linear", share, limit, " %"))
    for number in WORKERS:
        share = 100 * rate(number, ordered) / rate(number, once)
        marks.append(at_least(f"{number} workers, deterministic: ≥ 95 % of exactly once", share, 95, " %"))
    return marks


# Workers of the fleet, slots of each, and seconds that a stream takes.
FLEET, SLOTS, WORK_S = 1000, 8, 3
STREAMS = 65_536
JOBS, STREAMS_OF_JOB = 100, 1000


@functools.cache
def _fleet_program() -> str:
    """Builds the program that plays workers and trainers, once. Returns its path."""
    binary = ROOT / "build" / "fleet"
    subprocess.run(["go", "build", "-o", str(binary), "./benchmarks/fleet"], cwd=ROOT, check=True, timeout=600)
    return str(binary)


def _play(jobs: int, streams: int, kill: int = 0) -> Sample:
    """Plays one epoch of each job, with a new dispatcher. Returns the figures of the fleet and of the dispatcher."""
    with tempfile.TemporaryDirectory() as work_dir, systems.pecan_service(workers=0, work_dir=work_dir) as service:
        name = pecan.register_dataset(service.target, D.range(16 * STREAMS)).numpy().decode()
        words = [_fleet_program(), "--dispatcher", service.target.removeprefix("pecan://"), "--dataset", name]
        words += [f"--workers={FLEET}", f"--slots={SLOTS}", f"--work={WORK_S}s"]
        words += [f"--jobs={jobs}", f"--streams={streams}", f"--kill={kill}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fakes:
            fakes.stdout.readline()  # The workers are registered.
            before = service.cpu_seconds()
            report, errors = fakes.communicate(timeout=900)
        if fakes.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {errors}")
        found, cpu = json.loads(report), service.cpu_seconds() - before
        journal = sum(entry.stat().st_size for entry in os.scandir(work_dir) if entry.is_file())
        return {
            "opens in s": found["open_s"],
            "first stream after s": found["first_stream_s"],
            "all slots busy after s": found["busy_s"],
            "total s": found["total_s"],
            "utilisation %": 100 * found["utilisation"],
            "CPU s/10,000 streams": 1e4 * (cpu + found["fleet_cpu_s"]) / (jobs * streams),
            "of the dispatcher": 1e4 * cpu / (jobs * streams),
            "streams lost": found["lost"],
            "moved in s": found["moved_s"],
            "of that with a free slot": found["moved_free_s"],
            "dispatcher MB": sum(meter.resident_mb(pid)[0] for pid in service.pids),
            "store MB": journal / 1e6,
            "largest message KiB": max(value for key, value in found.items() if key.startswith("largest")) / 1024,
        }


ONE_JOB = f"one job of {STREAMS:,} streams"
# Workers that disappear while all slots are full, and while half of them are free.
KILLED = 20
WITH_DEATHS = {
    f"{KILLED} workers disappear, the others are full": STREAMS,
    f"{KILLED} workers disappear, the others have room": FLEET * SLOTS // 2,
}


def _one_job(_: contextlib.ExitStack, __: Settings) -> Contestants:
    deaths = {name: functools.partial(_play, 1, streams, kill=KILLED) for name, streams in WITH_DEATHS.items()}
    return {ONE_JOB: functools.partial(_play, 1, STREAMS)} | deaths


def _judge_one_job(medians: Medians) -> list[Mark]:
    ours = medians[ONE_JOB]
    return [
        at_most("opens in ≤ 1 s", ours["opens in s"], 1, " s"),
        at_most("≤ 1 CPU second per 10,000 streams, in all processes", ours["CPU s/10,000 streams"], 1, " s"),
        at_most("no message above 1 MiB", ours["largest message KiB"], 1024, " KiB"),
    ] + [
        at_most(f"{name}: streams of dead workers move in ≤ 2 s", medians[name]["of that with a free slot"], 2, " s")
        for name in WITH_DEATHS
    ]


def _many_jobs(_: contextlib.ExitStack, __: Settings) -> Contestants:
    return {f"{JOBS} jobs of {STREAMS_OF_JOB:,} streams": lambda: _play(JOBS, STREAMS_OF_JOB)}


def _judge_many_jobs(medians: Medians) -> list[Mark]:
    (ours,) = medians.values()
    return [at_least("no job waits while a slot is free: ≥ 95 % utilisation", ours["utilisation %"], 95, " %")]


# Kinds of decisions of the core, by their names in BenchmarkFleet.
DECISIONS = {
    "heartbeat": "a heartbeat",
    "tick": "a tick",
    "started": "a stream opened",
    "ended": "a stream is produced",
    "finish": "a stream is finished",
    "open": "an epoch is opened",
    "placed": "a decision on workers",
}
CORE, SEARCHES = "10,000 workers, 1,000 jobs", "the policy, 1,000 jobs"


def _decisions(_: contextlib.ExitStack, __: Settings) -> Contestants:
    def core() -> Sample:
        found = meter.go_figures("./service/dispatcher/core", "BenchmarkFleet/10000_workers_1000_jobs", "10x")
        kinds = {f"{name}: ms": found[f"p99-ms/{kind}"] for kind, name in DECISIONS.items()}
        return kinds | {"heartbeats: cores": found["cores/heartbeats"], "MB": found["MB"]}

    def searches() -> Sample:
        found = meter.go_figures("./service/dispatcher/placing", "BenchmarkDecide/1000_jobs_10000_remote_8_local", "1x")
        return {"a decision of a search: ms": found["search-ms/p99"]}

    return {CORE: core, SEARCHES: searches}


def _judge_decisions(medians: Medians) -> list[Mark]:
    times = {key: value for sample in medians.values() for key, value in sample.items() if key.endswith(": ms")}
    marks = [at_most(f"{key[:-4]}: ≤ 100 ms in 99 % of cases", value, 100, " ms") for key, value in times.items()]
    return [
        *marks,
        at_most("heartbeats: ≤ 1 core", medians[CORE]["heartbeats: cores"], 1, " cores"),
        at_most("memory: ≤ 250 MB", medians[CORE]["MB"], 250, " MB"),
    ]


ROWS: dict[str, Row] = {
    "small": Row("small datasets, beside a local run", _small, _judge_small),
    "opening": Row("CPU to open a further stream of a job", _opening, _judge_opening, repetitions=9),
    "workers": Row("one job over 1 to 32 worker processes", _workers, _judge_workers, repetitions=3),
    "fleet": Row("one job over 1,000 workers", _one_job, _judge_one_job, repetitions=3),
    "jobs": Row("100 jobs over 1,000 workers", _many_jobs, _judge_many_jobs, repetitions=3),
    "decisions": Row("99th percentile of the decisions of a dispatcher", _decisions, _judge_decisions, repetitions=1),
}
