"""Cachew's sweep with real files: which step should be cached, as the work after the source grows.

The published sweep (Graur et al., "Cachew", USENIX ATC 2022) has three stages. One reads, one makes elements 2.5
times larger, and the time of one varies. Here elements become 8 times larger. A local disk reads faster than the
published store, and a full cache of smaller elements is the best choice at every point. The last stage computes,
because TensorFlow does not count the time of its own sleeping dataset. A random crop follows, as in most training
jobs. No choice can cache it, and it keeps the way to the trainer from hiding what reading costs. Run as a program,
the module sweeps in directories of the caller, and prints the samples as JSON.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import gluster_volume
import numpy as np
import pecan
import plot
import tensorflow as tf
from cluster import Cluster, wait
from medium import drop_pages, move_files
from row import Contestants, Mark, Medians, Row, Sample, Settings, Unavailable, at_most
from trial import service

D = tf.data.Dataset
# Files of the source, records of each, bytes of a record, and how many times larger the last elements are.
FILES, RECORDS, BYTES, INFLATION = 32, 64, 128 << 10, 8.0
SOURCE, FULL = "source", "full"
COMPUTE, AUTOMATIC = "compute", "automatic"
FIXED = (COMPUTE, SOURCE, FULL)
# Bytes of the random crop.
CROP = 16 << 10
# A turn has an epoch of each choice. A point has turns for so many seconds, but at least and at most so many turns.
POINT_S, LEAST, MOST = 60, 5, 41
# Epochs of a training. The fixed choices are compared without the time of writing, so that must count little over all.
EPOCHS = 400
# The automatic choice decides and writes in its first epochs, and tries choices that are close. After the least number
# of epochs, a training is compared as soon as it tries nothing.
SETTLING, LONGEST = 60, 100
# Milliseconds of the variable stage at which a few epochs of the fixed choices show where their lines cross.
PROBED, PROBES = (0.0, 1.0, 4.0), 2
# Points around the only crossing or each of two, as multiples of it, and points beyond the last one.
AROUND_ONE, AROUND_EACH, BEYOND = (0.5, 0.75, 0.9, 1.1, 1.3, 1.7), (0.75, 0.9, 1.1, 1.3), (2.5,)
# Points if no choices cross.
SPREAD = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# How much longer an epoch takes than with the best fixed choice: the automatic one, and the fixed one that it chose.
ABOVE, CHOSEN = "automatic, % above the best", "its fixed choice, % above the best"
COLOURS = {COMPUTE: "#d55e00", SOURCE: "#0072b2", FULL: "#777", AUTOMATIC: "#00695c"}


def write_source(directory: pathlib.Path) -> list[str]:
    """Writes record files, and returns their names.

    They are not compressed. To read a record then costs less than to read the larger element of a full cache. So the
    best choice changes as the variable stage grows.
    """
    directory.mkdir()
    random, names = np.random.default_rng(17), []
    for number in range(FILES):
        names.append(str(directory / f"part-{number:02}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for _ in range(RECORDS):
                writer.write(random.bytes(BYTES))
    return names


def _read(record: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [BYTES])


def _inflate(block: tf.Tensor) -> tf.Tensor:
    whole = int(INFLATION)
    return tf.concat([block] * whole + [block[: int(BYTES * (INFLATION - whole))]], axis=0)


def _varied(rounds: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a stage that multiplies matrices `rounds` times, and does not change its element."""

    def step(block: tf.Tensor) -> tf.Tensor:
        matrix = tf.fill([64, 64], tf.cast(block[0], tf.float32) * 1e-6)
        _, product = tf.while_loop(
            lambda i, _: i < rounds,
            lambda i, m: (i + 1, tf.linalg.matmul(m, matrix)),
            (0, matrix),
            parallel_iterations=1,
        )
        with tf.control_dependencies([tf.debugging.assert_less(product[0, 0], 2.0)]):
            return tf.identity(block)

    return step


def _crop(block: tf.Tensor) -> tf.Tensor:
    begin = tf.random.uniform([], 0, tf.size(block) - CROP, tf.int32)
    return block[begin : begin + CROP]


def rounds_per_ms() -> float:
    """Returns how often the variable stage multiplies in a millisecond of one core."""
    step, rounds = tf.function(_varied(2000)), 2000
    block = tf.zeros([16], tf.uint8)
    step(block)
    began = time.perf_counter()
    step(block)
    return rounds / (1e3 * (time.perf_counter() - began))


def dataset(files: list[str], rounds: int, mark: Callable[[str], Callable[[D], D] | None]) -> D:
    """Returns the stages. `mark` returns the step at a place that may be cached, or None."""
    built = D.from_tensor_slices(files).interleave(tf.data.TFRecordDataset, cycle_length=2).map(_read)
    for place, stages in ((SOURCE, (_inflate, _varied(rounds))), (FULL, ())):
        if step := mark(place):
            built = built.apply(step)
        for stage in stages:
            built = built.map(stage)
    return built.map(_crop).repeat(EPOCHS)


def remove_caches(cluster: Cluster, directory: pathlib.Path) -> None:
    """Removes what a service has cached in a directory. No job may read it."""
    for cache in json.loads(cluster.control("cache", "list", "--json").stdout).get("caches", ()):
        # An epoch that has ended may be open for a moment.
        remove = functools.partial(cluster.control, "cache", "rm", cache["key"])
        wait(lambda remove=remove: remove().returncode == 0, "the cache is removed")
    wait(lambda: all("-probe-" in path.name for path in directory.glob("*.seg")), "the files of the cache are gone")


class Reader:
    """A training that reads a dataset, as many epochs as the dataset has."""

    def __init__(self, dataset: D) -> None:
        self._dataset, self.elements = dataset, iter(dataset)

    def cache(self) -> pecan.CacheExplanation:
        """Returns what is cached for the dataset."""
        return pecan.explain(self._dataset).cache


class Sweep:
    """The sources and the caches of one sweep.

    Args:
        stack: Ends the services.
        directory: Directory of the source.
        caches: Directory of the caches.
        moves: Whether the files move to other places of their medium in every second turn.

    Attributes:
        crossings: Milliseconds of the variable stage at which another fixed choice becomes the best.
        chosen: What the service chose at each point.
    """

    def __init__(
        self, stack: contextlib.ExitStack, directory: pathlib.Path, caches: pathlib.Path, moves: bool = False
    ) -> None:
        self._files, self._moved = write_source(directory / "source"), directory / "moved" if moves else None
        # A prefetched epoch holds a slot of its worker, so each choice has a service of its own.
        self._kept, self._fresh = {choice: caches / choice for choice in FIXED}, caches / AUTOMATIC
        self._cold = (directory / "source", *self._kept.values(), self._fresh)
        self._services = {
            choice: stack.enter_context(service(1, "--cache-dir", str(kept))) for choice, kept in self._kept.items()
        }
        self._speed = rounds_per_ms()
        self.chosen: dict[float, str] = {}
        self.crossings: list[float] = []

    def _rounds(self, millis: float) -> int:
        return round(millis * self._speed)

    def _epoch(self, read: Iterator[tf.Tensor]) -> float:
        """Returns the seconds from the first element of an epoch to its last one. Its files come from their medium.

        The client opens the next epoch ahead, except over `pecan.cache()`. So the time to open an epoch does not count.
        """
        drop_pages(*(directory for directory in self._cold if directory.exists()))
        next(read)
        began = time.perf_counter()
        for _ in range(FILES * RECORDS - 1):
            next(read)
        return time.perf_counter() - began

    def _fixed_choice(self, millis: float, choice: str) -> Reader:
        """Returns a reader that caches at a place, or nowhere. What it caches is complete."""
        built = dataset(self._files, self._rounds(millis), lambda place: pecan.cache() if place == choice else None)
        read = Reader(built.apply(pecan.distribute(self._services[choice].target, order="off")))
        self._epoch(read.elements)
        if choice != COMPUTE:
            wait(lambda: read.cache().state in ("committed", "used"), "the cache is complete")
        return read

    def _automatic_choice(self, millis: float, cluster: Cluster) -> Reader:
        """Returns a reader for which the service has chosen."""
        built = dataset(self._files, self._rounds(millis), pecan.cache_candidate)
        read = Reader(built.apply(pecan.distribute(cluster.target, order="off", cache="auto")))
        for number in range(LONGEST):
            self._epoch(read.elements)
            if number >= SETTLING and not read.cache().response.get("cache_decision", {}).get("tried"):
                break
        return read

    def _turns(self, choices: dict[str, Reader]) -> list[Sample]:
        """Reads an epoch of each choice in each turn. Every second turn runs in reverse."""
        turns, spent = [], 0.0
        while len(turns) < LEAST or (len(turns) < MOST and spent < POINT_S):
            if self._moved and len(turns) % 2 == 0:
                move_files(self._moved, *self._cold)
            began = time.perf_counter()
            order = list(choices)[:: 1 if len(turns) % 2 == 0 else -1]
            turns.append({choice: self._epoch(choices[choice].elements) for choice in order})
            spent += time.perf_counter() - began
        return turns

    def points(self) -> list[float]:
        """Measures the fixed choices coarsely, and returns points: around the crossings, and beyond."""

        def probe(millis: float, choice: str) -> float:
            read = self._fixed_choice(millis, choice)
            spent = min(self._epoch(read.elements) for _ in range(PROBES))
            # The job ends, so that it opens no epoch beside those of the next one.
            del read
            gc.collect()
            return spent

        curves = {choice: [probe(at, choice) for at in PROBED] for choice in (COMPUTE, SOURCE)}
        curves[FULL] = [probe(0, FULL)] * len(PROBED)
        self.crossings = crossings(PROBED, curves)
        around = AROUND_ONE if len(self.crossings) == 1 else AROUND_EACH
        points = [near * at for at in self.crossings for near in around]
        points += [beyond * at for at in self.crossings[-1:] for beyond in BEYOND]
        return sorted({0.0, *(round(at, 3) for at in points or SPREAD)})

    def sample(self, millis: float) -> Sample:
        """Measures all choices at a point."""
        try:
            with service(1, "--cache-dir", str(self._fresh)) as cluster:
                choices = {choice: self._fixed_choice(millis, choice) for choice in FIXED}
                choices[AUTOMATIC] = self._automatic_choice(millis, cluster)
                turns = self._turns(choices)
                stored = [c.name or c.step for c in choices[AUTOMATIC].cache().candidates if c.stored]
                del choices
                gc.collect()
        finally:
            shutil.rmtree(self._fresh, ignore_errors=True)
        for choice, cluster in self._services.items():
            remove_caches(cluster, self._kept[choice])
        self.chosen[millis] = chosen = stored[0] if stored else COMPUTE
        figures = {f"{choice} s": statistics.median(turn[choice] for turn in turns) for choice in (*FIXED, AUTOMATIC)}
        best = best_of(figures)

        def above(choice: str) -> float:
            return 100 * (statistics.median(turn[choice] / turn[best] for turn in turns) - 1)

        figures |= {"turns": len(turns), ABOVE: above(AUTOMATIC)}
        return figures | {CHOSEN: above(chosen)} if chosen in FIXED else figures

    def about(self) -> str:
        """Returns what was chosen where."""
        chosen = ", ".join(f"*{name}* at {at:g} ms" for at, name in sorted(self.chosen.items()))
        crossed = " and ".join(f"{at:.3g} ms" for at in self.crossings) or f"no point up to {4 * PROBED[-1]:g} ms"
        return f"In a coarse measurement, the best fixed choice changes at {crossed}. The service chose {chosen}.\n"


def best_of(figures: Sample) -> str:
    """Returns the fixed choice with the shortest epoch."""
    return min(FIXED, key=lambda choice: figures[f"{choice} s"])


def crossings(at: tuple[float, ...], curves: dict[str, list[float]]) -> list[float]:
    """Returns the points up to four times the last one at which another curve becomes the lowest."""

    def value(curve: list[float], x: float) -> float:
        # The last line goes on beyond the last point.
        i = min(max(bisect.bisect(at, x), 1), len(at) - 1)
        share = (x - at[i - 1]) / (at[i] - at[i - 1])
        return curve[i - 1] + share * (curve[i] - curve[i - 1])

    def lowest(x: float) -> str:
        return min(curves, key=lambda choice: value(curves[choice], x))

    steps = [4 * at[-1] * i / 640 for i in range(641)]
    found = [(a + b) / 2 for a, b in itertools.pairwise(steps) if lowest(a) != lowest(b)]
    # Where two choices cost the same, noise makes them cross often.
    return found[-2:]


@dataclasses.dataclass
class Medium:
    """The sweep on one medium.

    Attributes:
        name: Name of the medium.
        begin: Begins the sweep. Returns what samples each point, and what explains the choices afterwards.
    """

    name: str
    begin: Callable[[contextlib.ExitStack], tuple[dict[float, Callable[[], Sample]], Callable[[], str]]]
    explain: Callable[[], str] = str

    def prepare(self, stack: contextlib.ExitStack, _: Settings) -> Contestants:
        """Finds the points, and returns a contestant for each."""
        samples, self.explain = self.begin(stack)
        return {f"{at:g} ms": sample for at, sample in samples.items()}

    def row(self) -> Row:
        """Returns the row."""
        title = f"Cachew's sweep on {self.name}"
        return Row(
            title, self.prepare, _judge, repetitions=1, about=lambda: self.explain(), plot=lambda s: _plot(title, s)
        )


def _plot(title: str, samples: dict[str, list[Sample]]) -> str:
    drawn = []
    for choice in (*FIXED, AUTOMATIC):
        points = [(float(name.split()[0]), values[0][f"{choice} s"]) for name, values in samples.items()]
        drawn.append(plot.Line(choice, points, COLOURS[choice], dots=choice == AUTOMATIC))
    size = f"{FILES * RECORDS} elements of {BYTES * INFLATION / 1e3:.0f} kB"
    subtitle = f"{size}; medians of epochs in turns, whose files come from their medium"
    return plot.lines(title, subtitle, "ms of the variable stage for an element", "seconds of an epoch", drawn)


def _judge(medians: Medians) -> list[Mark]:
    name, worst = max(((name, figures[ABOVE]) for name, figures in medians.items()), key=lambda each: each[1])
    best = list(dict.fromkeys(best_of(figures) for figures in medians.values()))
    return [
        at_most(f"the automatic choice: ≤ 5 % above the best at every point (worst at {name})", worst, 5, " %"),
        Mark(f"the best fixed choice changes, to *{FULL}* or from it", ", ".join(best), FULL in best and len(best) > 1),
        Mark("at least 8 points", str(len(medians)), len(medians) >= 8),
    ]


def _local(stack: contextlib.ExitStack) -> tuple[dict[float, Callable[[], Sample]], Callable[[], str]]:
    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
    sweep = Sweep(stack, directory, directory, moves=True)
    return {at: functools.partial(sweep.sample, at) for at in sweep.points()}, sweep.about


def _glusterfs(stack: contextlib.ExitStack) -> tuple[dict[float, Callable[[], Sample]], Callable[[], str]]:
    """Sweeps in the namespaces of a volume. All points are measured before the first one is returned."""
    if why := gluster_volume.missing():
        raise Unavailable(why)
    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
    command = gluster_volume.around(directory, [sys.executable, __file__, gluster_volume.mounts(directory)[0]])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=7200, check=True, env=environment)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return {float(at): functools.partial(dict, figures) for at, figures in found["samples"].items()}, lambda: found[
        "about"
    ]


def main() -> None:
    """Sweeps with caches in the directory of the command line."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-")))
        sweep = Sweep(stack, directory, pathlib.Path(sys.argv[1]))
        samples = {at: sweep.sample(at) for at in sweep.points()}
    print(json.dumps({"samples": samples, "about": sweep.about()}))


ROWS: dict[str, Row] = {
    "cache-sweep": Medium("the local disk", _local).row(),
    "cache-sweep-glusterfs": Medium("a GlusterFS volume", _glusterfs).row(),
}

if __name__ == "__main__":
    main()
