"""What automatic caches gain over epochs, jobs and tenants, and what reading and writing a cache costs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import mmap
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import demo_records
import meter
import pecan
import tensorflow as tf
from cache_sweep import COMPUTE, EPOCHS, SETTLING, remove_caches
from cluster import Cluster, running_cluster, wait
from medium import drop_pages
from row import Contestants, Mark, Medians, Row, Sample, Settings, at_least, at_most, percent_of

D = tf.data.Dataset

HEAD = f"""# What automatic caches gain and cost

`make bench-cache` writes this page from `cache.json`, and `make bench ROW=<name>` measures one row again. Figures are
medians, with the smallest and largest sample in brackets. Dispatcher and workers run on the trainer's machine.

*Sweep*: one worker reads record files, makes the elements 8 times larger, and then computes for a time that varies.
A random crop follows, which nothing can cache. *compute* caches nothing, *source* caches after the reading, *full*
caches before the crop, each by `pecan.cache()`. *automatic* is `cache="auto"`: the service measures and chooses. It
has an empty directory at each point. Each choice is a training of {EPOCHS} epochs, of which a part is read. The first
{SETTLING} ones of *automatic*, in which it decides and writes, do not count, and neither do those of its tries.
Then an epoch of each choice is read in each turn, and all files come from their medium, not from the page cache. In
every second turn, the files on the local disk move to other places of it: equal files are read up to 7 % faster at one
place than at another one. The brick of the GlusterFS volume lies on a tmpfs of this machine. Its files come through the
volume, whose own caches are empty, and not from a disk. The time of an epoch begins with its first element, because
only some of the choices have their epochs opened ahead.
Figures are medians. The percentages are medians of the ratios within each turn to the best fixed choice, which has
the lowest median. Points lie around the crossings that a coarse measurement finds beforehand.

*Photographs*: two workers read the demo's photographs with a default `list_files`, which is shuffled, and without a
seed. They decode and resize, then flip at random. The second job is the same program again. The other job changes the
brightness instead of flipping, so the service measures it before it decides.

*Tenants*: Cachew's experiment. The first tenant's job caches automatically. A second tenant reads the same dataset
for an epoch, which begins beside the first job's third one. Its trainer is twice as fast. *automatic* and *compute*
are what the second job's `cache=` says: `"auto"` and `"off"`. The first job reads epochs until the second one has
ended. An administrator shares caches (`--cache-shared`).

*Read*: elements of 1 MiB are read from files, and a step returns four bytes of each, in batches of 32, so that nothing
else costs. *Cold* files come from the medium, *warm* ones from the page cache, into which a thread has read them
before. Each is read twice in a turn, and the faster read counts. Two threads read the medium in blocks of 4 MiB, once
through the page cache and once around it. TensorFlow's own `save` and `snapshot` have the same elements without
compression. CPU seconds are those of all processes. Percentages are medians of the ratios within each turn.

*Put*: the demo's photographs with `pecan.cache()`, in two services. One computes each epoch (`--cache-mode compute`).
In the other one, each epoch is a first epoch, which computes and writes: the cache is removed before it. Epochs
alternate, and the percentage is the median of the ratios within each turn.
"""

AUTOMATIC = "automatic"
PATTERN, SEVERAL = "train-00[01]?.tfrecord", 20


@contextlib.contextmanager
def caching(workers: int, *flags: str) -> Iterator[Cluster]:
    """Runs a dispatcher with flags, and workers with a directory of caches, with the default times of the programs."""
    with tempfile.TemporaryDirectory(prefix="pecan-bench-") as name:
        directory = pathlib.Path(name)
        worker_flags = ("--cache-dir", str(directory / "cache"))
        with running_cluster(Cluster(directory, flags=flags, worker_flags=worker_flags, quick=False)) as cluster:
            cluster.add_all(workers)
            yield cluster


def _decoded(files: D) -> D:
    """Returns the demo's photographs, decoded and resized."""
    pipeline = demo_records.pipeline()
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=4)
    for step in (pipeline.parse, pipeline.decode, pipeline.resize, pipeline.cast):
        dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset


def _batches(dataset: D) -> D:
    pipeline = demo_records.pipeline()
    dataset = dataset.map(pipeline.normalise, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(pipeline.BATCH, drop_remainder=True)


def _flipped(dataset: D) -> D:
    return _batches(dataset.map(demo_records.pipeline().random_flip, num_parallel_calls=tf.data.AUTOTUNE))


def _brightened(dataset: D) -> D:
    def step(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.random_brightness(image, 20.0), label

    return _batches(dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE))


def _images_per_s(read: D, batch_s: float = 0.0) -> float:
    """Reads an epoch with a trainer that takes `batch_s` seconds for each batch."""
    began, images = time.perf_counter(), 0
    for _, labels in read:
        images += int(labels.shape[0])
        time.sleep(batch_s)
    return images / (time.perf_counter() - began)


def _photographs(_: contextlib.ExitStack, settings: Settings) -> Contestants:
    pattern = str(pathlib.Path(demo_records.files(settings)[0]).parent / PATTERN)

    def sample(cache: str) -> Sample:
        with caching(2) as cluster:

            def job(downstream: Callable[[D], D], epochs: int) -> list[float]:
                read = downstream(_decoded(D.list_files(pattern)))
                read = read.apply(pecan.distribute(cluster.target, cache=cache, order="off"))
                rates = [_images_per_s(read) for _ in range(epochs)]
                del read
                gc.collect()
                return rates

            first = job(_flipped, 3)
            figures = {f"epoch {number}: images/s": rate for number, rate in enumerate(first, start=1)}
            (figures["second job: images/s"],) = job(_flipped, 1)
            (figures["other job: images/s"],) = job(_brightened, 1)
            return figures

    return {COMPUTE: lambda: sample("off"), AUTOMATIC: lambda: sample("auto")}


def _judge_photographs(medians: Medians) -> list[Mark]:
    ours, base = medians[AUTOMATIC], medians[COMPUTE]["epoch 2: images/s"]
    wanted = {"epoch 2": 1.2, "epoch 3": 2, "second job": 2, "other job": 1.2}
    return [
        at_least(f"{what}: ≥ {limit} times the computed second epoch", ours[f"{what}: images/s"] / base, limit, "x")
        for what, limit in wanted.items()
    ]


# Seconds that the trainers take for a batch. The second one is twice as fast.
SLOW_S, FAST_S = 0.04, 0.02
JOB_1, JOB_2 = "first tenant", "second tenant"
BEGINNING, READ_RECORDS = f"{JOB_2}, epoch 1: images/s", f"{JOB_2}: records read"
COMPUTED = (COMPUTE, BEGINNING)


def _tenants(_: contextlib.ExitStack, settings: Settings) -> Contestants:
    files = demo_records.files(settings)[:SEVERAL]

    def sample(cache: str) -> Sample:
        with caching(2, "--cache-shared") as cluster:

            def job(tenant: str, cache: str) -> D:
                read = _flipped(_decoded(D.from_tensor_slices(files)))
                return read.apply(pecan.distribute(cluster.target, cache=cache, order="off", tenant=tenant))

            rates: dict[str, float] = {}
            half, over = threading.Event(), threading.Event()

            def first() -> None:
                read, epoch = job("one", "auto"), 0
                while epoch < 3 or not over.is_set():
                    epoch += 1
                    rate = _images_per_s(read, SLOW_S)
                    if epoch <= 3:
                        rates[f"{JOB_1}, epoch {epoch}: images/s"] = rate
                    if epoch == 2:
                        half.set()

            thread = threading.Thread(target=first, daemon=True)
            thread.start()
            assert half.wait(600), "the first job reads no second epoch"
            read = job("two", cache)
            second = _images_per_s(read, FAST_S)
            over.set()
            thread.join()
            # Workers report what they have read with their heartbeats.
            time.sleep(3)
            found = pecan.explain(read).job_id
            (status,) = [each for each in cluster.status()["jobs"] if each["job_id"] == found]
            read_records = sum(
                int(node["elements"]) for node in status.get("nodes", []) if "InterleaveDataset" in node["op"]
            )
            return rates | {BEGINNING: second, READ_RECORDS: read_records}

    return {COMPUTE: lambda: sample("off"), AUTOMATIC: lambda: sample("auto")}


def _judge_tenants(medians: Medians) -> list[Mark]:
    ours = medians[AUTOMATIC]
    faster = ours[percent_of(COMPUTED)] / 100
    return [
        at_least("the second tenant's first epoch: ≥ 2 times one that computes at the same place", faster, 2, "x"),
        at_most("records that it reads: none", ours[READ_RECORDS], 0),
    ]


# Values of an element of 1 MiB. The elements have parts of 32 MiB, as there are more than 16 * 128.
LARGE, NUMBER = 1 << 18, 72 * 32
SIZE_GB = 4 * LARGE * NUMBER / 1e9
BATCH = 32
MEDIUM, PECAN, SAVED, SNAPSHOT = "the medium, sequential", "pecan", "tf.data save and load", "tf.data snapshot"
COLD, WARM = "cold", "warm"
THREADS = 2


def _large() -> D:
    return D.range(NUMBER).map(lambda i: tf.random.stateless_uniform([LARGE], [i, 7], None, None, tf.int32))


def _little(dataset: D) -> D:
    """Returns little of each element, and many of them at once, because a trainer takes each element from Python."""
    return dataset.map(lambda element: element[:1]).batch(BATCH)


def _read_files(directory: pathlib.Path, threads: int, direct: bool) -> None:
    """Reads all files below a directory in blocks of 4 MiB, through the page cache or around it."""
    blocks = threading.local()

    def read(path: pathlib.Path) -> None:
        if not hasattr(blocks, "block"):
            blocks.block = mmap.mmap(-1, 4 << 20)
            blocks.block.madvise(mmap.MADV_HUGEPAGE)
        file = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        while os.readv(file, [blocks.block]) == 4 << 20:
            pass
        os.close(file)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, sorted(path for path in directory.rglob("*") if path.is_file())))


def _reading(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    cluster = stack.enter_context(caching(1))
    cached = _little(_large().apply(pecan.cache())).apply(pecan.distribute(cluster.target))
    local = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
    _large().save(str(local / "saved"))
    snapshot = _little(_large().snapshot(str(local / "snapshot"), compression=None))
    loaded = _little(D.load(str(local / "saved")))
    for dataset in (cached, snapshot):
        assert sum(1 for _ in dataset) == NUMBER // BATCH
    wait(lambda: pecan.explain(cached).cache.state == "committed", "the cache is complete")
    # Only pages that are on the medium can be dropped.
    os.sync()
    segments = cluster.directory / "cache"

    def sample(where: pathlib.Path, *ways: Callable[[], object]) -> Sample:
        """Reads cold and warm files in each way. The fastest way counts."""
        found: dict[str, list[tuple[float, float]]] = {COLD: [], WARM: []}
        for read in ways:
            drop_pages(where)
            for kind, measured in found.items():
                if kind == WARM:
                    _read_files(where, 1, direct=False)
                used, began = meter.all_cpu_seconds(), time.perf_counter()
                read()
                spent = time.perf_counter() - began
                measured.append((SIZE_GB / spent, (meter.all_cpu_seconds() - used) / SIZE_GB))
        best = {kind: max(measured) for kind, measured in found.items()}
        rates = {f"{kind}: GB/s": rate for kind, (rate, _) in best.items()}
        return rates | {f"{kind}: CPU s/GB": cpu for kind, (_, cpu) in best.items()}

    def through(dataset: D) -> Callable[[], object]:
        return lambda: sum(1 for _ in dataset)

    both = [functools.partial(_read_files, segments, THREADS, direct) for direct in (False, True)]
    return {
        MEDIUM: functools.partial(sample, segments, *both),
        PECAN: functools.partial(sample, segments, *[through(cached)] * 2),
        SAVED: functools.partial(sample, local / "saved", *[through(loaded)] * 2),
        SNAPSHOT: functools.partial(sample, local / "snapshot", *[through(snapshot)] * 2),
    }


READING = (MEDIUM, f"{COLD}: GB/s")
OTHERS = tuple((other, f"{kind}: GB/s") for kind in (COLD, WARM) for other in (SAVED, SNAPSHOT))


def _judge_reading(medians: Medians) -> list[Mark]:
    ours = medians[PECAN]
    marks = [at_least("pecan, cold: ≥ 80 % of the medium's bandwidth", ours[percent_of(READING)], 80, " %")]
    for other in OTHERS:
        kind = other[1].partition(":")[0]
        marks.append(at_least(f"pecan, {kind}: ≥ {other[0]}", ours[percent_of(other)] / 100, 1, "x"))
    return marks


PUT = "put"
WRITING = (COMPUTE, "s")


def _writing(stack: contextlib.ExitStack, settings: Settings) -> Contestants:
    files = D.from_tensor_slices(demo_records.files(settings)[:SEVERAL])

    def contestant(mode: str) -> Callable[[], Sample]:
        cluster = stack.enter_context(caching(2, "--cache-mode", mode))
        read = _flipped(_decoded(files).apply(pecan.cache())).apply(pecan.distribute(cluster.target, order="off"))

        def sample() -> Sample:
            remove_caches(cluster, cluster.directory / "cache")
            os.sync()
            used, began = meter.all_cpu_seconds(), time.perf_counter()
            for _ in read:
                pass
            figures = {"s": time.perf_counter() - began, "CPU s": meter.all_cpu_seconds() - used}
            if mode == "auto":
                wait(lambda: pecan.explain(read).cache.state == "committed", "the epoch has written the cache")
            return figures

        sample()
        return sample

    return {COMPUTE: contestant("compute"), PUT: contestant("auto")}


def _judge_writing(medians: Medians) -> list[Mark]:
    longer = medians[PUT][percent_of(WRITING)]
    return [at_most("an epoch that writes: ≤ 110 % of the time of one that computes", longer, 110, " %")]


DECISIONS = "1,000 fingerprints"


def _deciding(_: contextlib.ExitStack, __: Settings) -> Contestants:
    def sample() -> Sample:
        return {"ms": meter.go_benchmark("./policies/autocache", "BenchmarkDecideThousand/cost", "20x") / 1e6}

    return {DECISIONS: sample}


def _judge_deciding(medians: Medians) -> list[Mark]:
    return [at_most("decisions for 1,000 fingerprints: ≤ 100 ms", medians[DECISIONS]["ms"], 100, " ms")]


ROWS: dict[str, Row] = {
    "cache-photographs": Row(
        "the demo's photographs, over epochs and jobs", _photographs, _judge_photographs, repetitions=2
    ),
    "cache-tenants": Row(
        "a second tenant begins by reading", _tenants, _judge_tenants, repetitions=3, references=(COMPUTED,)
    ),
    "cache-read": Row("reading a cache", _reading, _judge_reading, repetitions=7, references=(READING, *OTHERS)),
    "cache-put": Row("writing a cache", _writing, _judge_writing, repetitions=9, references=(WRITING,)),
    "cache-decisions": Row("decisions on caches", _deciding, _judge_deciding, repetitions=3),
}
