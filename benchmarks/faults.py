"""What a fault costs: how long the trainer waits, and what is computed again.

Every trial fails unless the fault happened, elements came before and after it, and each id came once.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Callable

import proxies
import tensorflow as tf
from cluster import Cluster, Program, wait
from row import Contestants, Mark, Medians, Row, Sample, Settings, at_most
from trial import ROOMY, STREAMS, TCP, Goodbye, Trial, costly, elements, revive, service

HEAD = """# What a fault costs

Written by `make bench-faults`, from `faults.json` beside it; `make bench ROW=<name>` measures one row again.
Dispatcher, workers and trainer are processes of one machine, with the default times of the programs: a
heartbeat each second, and a silent worker counts as dead after 10 s. An element takes about 1.5 ms of a core.
At most 4 KiB are in flight to the trainer, so it has almost no ready elements. A trainer that has some waits
that much less.

Every element carries the time of its production, so elements from before and after the fault can be
distinguished. Each trial checks that the fault happened, that streams were leased again, and that each element
came once. Seconds count from the fault. Values are medians, with the smallest and largest sample in brackets.
Limits are compared with the largest sample.

*To notice*: until the dispatcher counted the worker as lost. *To lease*: until it leased one of the worker's
streams again. *To the next element*: until the trainer had an element of such a stream that was produced after
the fault. *Longest gap*: between any two elements of any stream. If only the trainer has lost a worker, it
checks whether the worker lives after 3 s of silence, and reports to the dispatcher after 9 s to 12 s.

*Recomputed* counts elements that the trainer's process had already. *Taken* counts the elements of the lost
worker's streams that `next()` had returned. Elements that a worker had ready and had not sent are lost with it,
and are not counted. `SIGTERM` is a goodbye. Workers with checkpoints have `--checkpoint-interval 2s`, so that a
trial is short. While its reader waits, a worker delays a checkpoint by one more interval.
"""

TOTAL, STRIKE = 4000, 1000
FILES = 40
DEAD_AFTER = 10.0
LAST = "s to the next element"
Blow = Callable[[Program], object]


def _worker_dies(cluster: Cluster, blow: Blow) -> Sample:
    """A worker with many streams is struck while its trainer reads."""
    trial = Trial(cluster, elements(TOTAL))
    trial.until_element(STRIKE)
    victim, streams = trial.victim()
    trial.strike(lambda: blow(victim))
    trial.finish(range(TOTAL))
    figures = trial.gaps(streams)
    revive(cluster, victim)
    return figures


def _visible(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    roomy = stack.enter_context(service(3, *ROOMY))
    alone = stack.enter_context(service(1, *ROOMY))
    full = stack.enter_context(service(2))
    return {
        "SIGKILL, the others have room": lambda: _worker_dies(roomy, Program.kill),
        "SIGKILL, the other one is full": lambda: _worker_dies(full, Program.kill),
        "SIGKILL of the only one, with a standby": lambda: _standby(alone, Program.kill),
    }


def _standby(cluster: Cluster, blow: Blow) -> Sample:
    """All streams are with one worker; another one registers, gets none, and goes on when the first is struck."""
    total = 2 * TOTAL
    trial = Trial(cluster, elements(total))
    active = next(worker for worker in cluster.workers if worker.running)
    _joined(trial)
    assert set(trial.hosts().values()) == {active.address}, "the standby is none"
    trial.strike(lambda: blow(active))
    trial.finish(range(total))
    figures = trial.gaps()
    if active.running:
        active.kill()
    return figures


def _joined(trial: Trial) -> Program:
    """A second worker that joins while the trainer reads on: one that waits would have a store."""
    fresh = trial.cluster.add(wait=False)
    trial.until(lambda: fresh.said.read_text() and trial.cluster.states() == ["connected"] * 2, every=100)
    return fresh.ready()


def _judge_visible(slowest: Medians) -> list[Mark]:
    return [
        at_most(f"{who}: next element of its streams ≤ 2 s", figures[LAST], 2, " s")
        for who, figures in slowest.items()
        if "full" not in who
    ]


def _silent(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    roomy = stack.enter_context(service(3, *ROOMY))
    alone = stack.enter_context(service(1, *ROOMY))
    binary = proxies.build(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-"))))
    far = stack.enter_context(service(0, *ROOMY))
    control, data = proxies.Proxy(binary, far.target), proxies.Proxy(binary)
    stack.callback(control.close)
    stack.callback(data.close)
    lost = far.add("--advertise", data.address, dispatcher=control.address)
    data.tell("to", lost.address)
    return {
        "SIGSTOP": lambda: _worker_dies(roomy, Program.pause),
        "SIGSTOP of the only one, with a standby": lambda: _standby(alone, Program.pause),
        "packets are lost": lambda: _route_lost(far, lost, data, [control, data]),
        "packets are lost, but to and from the dispatcher": lambda: _route_lost(far, lost, data, [data]),
    }


def _route_lost(
    cluster: Cluster, lost: Program, data: proxies.Proxy, ways: list[proxies.Proxy]
) -> Sample:
    """Nothing comes through to a worker and from it any more, and nobody closes a connection; another one is there."""
    total = 2 * TOTAL
    trial = Trial(cluster, elements(total), **TCP)
    other = _joined(trial)
    assert set(trial.hosts().values()) == {data.address}, "the other worker is no mere standby"
    trial.strike(lambda: [way.tell("hold", "both") for way in ways])
    trial.finish(range(total))
    assert lost.running
    assert all(way.tell("count")[held] > 0 for way in ways for held in ("held_up", "held_down")), "nothing was lost"
    figures = trial.gaps(dies=len(ways) > 1)
    for way in ways:
        # What was held is as old as the connections, and goes with them.
        way.tell("cut")
        way.tell("pass")
    other.kill()
    wait(lambda: cluster.states() == ["connected"], "the worker is back, and its stand-in is gone")
    return figures


def _judge_silent(slowest: Medians) -> list[Mark]:
    return [
        at_most(f"{who}: next element of its streams ≤ {DEAD_AFTER:g} s + 2 s", figures[LAST], DEAD_AFTER + 2, " s")
        for who, figures in slowest.items()
        if "but" not in who
    ]


def _dispatcher(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    alone = stack.enter_context(service(2))
    everything = stack.enter_context(service(2))
    return {
        "the dispatcher": lambda: _killed(alone, [alone.dispatcher]),
        "the dispatcher and all workers": lambda: _killed(everything, [everything.dispatcher, *everything.workers]),
    }


def _killed(cluster: Cluster, victims: list[Program]) -> Sample:
    """Programs are killed and started again at once. Streams are short, so that some always wait for a lease."""
    trial = Trial(cluster, elements(TOTAL, 0.5), passes=3)
    trial.until_element(STRIKE)

    def blow() -> None:
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start(victim.address)

    trial.strike(blow)
    trial.finish(range(TOTAL))
    figures = {
        "s to have its state": trial.noted('msg="state ready"'),
        "s to have a worker": trial.noted('msg="worker registered"'),
        "s to lease": trial.noted('msg="lease granted"'),
        LAST: trial.next_of(),
        "s longest gap": trial.longest_gap(),
    }
    for victim in victims:
        victim.ready()
    wait(lambda: cluster.states() == ["connected"] * len(cluster.workers), "all workers are well")
    return figures


def _judge_dispatcher(_: Medians) -> list[Mark]:
    return []


def _again(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-"))
    plain = stack.enter_context(service(2, *ROOMY))
    saving = stack.enter_context(service(2, *ROOMY, "--checkpoint-dir", directory, "--checkpoint-interval", "2s"))
    files = _files(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-"))), TOTAL)
    kill, leave = Program.kill, Goodbye
    return {
        "arithmetic, SIGKILL": lambda: _made_again(plain, elements(TOTAL), kill, "START"),
        "in part, SIGKILL": lambda: _made_again(plain, files, kill, "PARTLY", stream_of=lambda i: i % FILES % STREAMS),
        "from the start, SIGKILL": lambda: _made_again(plain, _remembering(TOTAL, 1.5), kill, "RECOMPUTE"),
        "a checkpoint, SIGKILL": lambda: _made_again(saving, _remembering(TOTAL, 6), kill, "RECOMPUTE", seconds=6),
        "arithmetic, SIGTERM": lambda: _made_again(plain, elements(TOTAL), leave, "START"),
        "a checkpoint, SIGTERM": lambda: _made_again(saving, _remembering(TOTAL, 1.5), leave, "RECOMPUTE"),
    }


def _remembering(total: int, millis: float) -> tf.data.Dataset:
    """Elements whose work lies below a shuffle."""
    return elements(total, millis).shuffle(100)


def _files(directory: pathlib.Path, total: int) -> tf.data.Dataset:
    """Elements whose ids come from files that are read in turns."""
    names = []
    for number in range(FILES):
        names.append(str(directory / f"part-{number:02}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for i in range(number, total, FILES):
                writer.write(str(i).encode())
    files = tf.data.Dataset.from_tensor_slices(names)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
    return records.map(lambda record: tf.strings.to_number(record, tf.int64)).map(costly(1.5))


def _made_again(
    cluster: Cluster,
    dataset: tf.data.Dataset,
    blow: Blow,
    way: str,
    seconds: float = 0,
    stream_of: Callable[[int], int] = lambda number: number % STREAMS,
) -> Sample:
    """What is computed again when a worker goes, and how its streams begin."""
    begun = time.monotonic()
    trial = Trial(cluster, dataset)
    resume = trial.status()["plan"]["resume"]
    assert resume["way"] == way, resume
    trial.until_element(STRIKE)
    if seconds:
        trial.until(lambda: time.monotonic() - begun > seconds)
    victim, streams = trial.victim()
    had = sum(stream_of(each.id) in streams for each in trial.arrivals)
    left: list[object] = []
    trial.strike(lambda: left.append(blow(victim)))
    trial.finish(range(TOTAL))
    for each in left:
        if isinstance(each, Goodbye):
            each.check()
    trial.leased()
    # Workers tell of it with their heartbeats.
    time.sleep(1.5)
    recovery = trial.status()["recovery"]
    revive(cluster, victim)
    return {
        "taken of its streams": had,
        "recomputed": int(recovery["recomputed"]),
        "begun at an index": int(recovery["started"]),
        "begun from a checkpoint": int(recovery["restored"]),
        "s longest gap": trial.longest_gap(),
    }


def _judge_again(slowest: Medians) -> list[Mark]:
    return [
        at_most(f"{who}: nothing is recomputed", figures["recomputed"], 0)
        for who, figures in slowest.items()
        if "SIGTERM" in who
    ]


ROWS: dict[str, Row] = {
    "visible-death": Row("a worker is killed, and its connections break", _visible, _judge_visible, by=max),
    "silent-death": Row("a worker falls silent; its connections stay", _silent, _judge_silent, repetitions=3, by=max),
    "dispatcher-death": Row("SIGKILL and an immediate start", _dispatcher, _judge_dispatcher, by=max),
    "recomputed": Row("recomputed elements", _again, _judge_again, repetitions=3, by=max),
}
