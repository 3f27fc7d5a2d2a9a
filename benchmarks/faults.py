"""What a fault costs: how long the trainer waits, and how many elements are recomputed.

A trial fails unless the fault happened, elements came before and after it, and each id came once.
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
from trial import ROOMY, STREAMS, TCP, Goodbye, Trial, elements, expensive, revive, service

HEAD = """# What a fault costs

`make bench-faults` writes this page from `faults.json`, and `make bench ROW=<name>` measures one row again.
Dispatcher, workers and trainer are processes on one machine. They use the default times of the programs: a
heartbeat each second, and a worker without heartbeats counts as dead after 10 s. An element takes about 1.5 ms
of a core. The trainer requests at most 4 KiB ahead, so it has almost no buffered elements. A trainer with a larger
buffer waits less.

Every element carries the time of its computation. It shows whether a worker computed the element after the fault.
Each trial checks that the fault happened, that the dispatcher leased streams again, and that each element came once.
Seconds count from the fault. Figures are medians, with the smallest and largest sample in brackets. Marks apply to the
largest sample.

*To notice*: until the dispatcher counts the worker as lost. *To lease*: until it leases one of the worker's streams
again. *To the next element*: until the trainer has an element of such a stream that was computed after the fault.
*Longest gap*: the longest time between two elements of any streams. If only the trainer has lost a worker, the trainer
probes it after 3 s of silence. It reports the loss to the dispatcher after 9 s to 12 s.

*Recomputed* counts elements that the trainer's process had already received. *Consumed of its streams* counts the
elements from `next()` that belong to streams of the stopped worker. Elements that a worker has computed and not sent
are lost with it and not counted. `SIGTERM` is a planned departure. Workers with checkpoints use `--checkpoint-interval
2s`, so that a trial is short. While its reader waits, a worker delays a checkpoint by one more interval.
"""

TOTAL, STRIKE = 4000, 1000
FILES = 40
DEAD_AFTER = 10.0
NEXT = "s to the next element"
RECOMPUTED = "recomputed"
Fault = Callable[[Program], object]


def _worker_dies(cluster: Cluster, fault: Fault) -> Sample:
    """The fault hits the worker with the most streams while the trainer reads."""
    trial = Trial(cluster, elements(TOTAL))
    trial.until_element(STRIKE)
    victim, streams = trial.victim()
    trial.inject(lambda: fault(victim))
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


def _standby(cluster: Cluster, fault: Fault) -> Sample:
    """One worker has all streams. A second one registers and takes over after the fault of the first."""
    total = 2 * TOTAL
    trial = Trial(cluster, elements(total))
    active = next(worker for worker in cluster.workers if worker.running)
    _joined(trial)
    assert set(trial.hosts().values()) == {active.address}, "the standby has streams before the fault"
    trial.inject(lambda: fault(active))
    trial.finish(range(total))
    figures = trial.gaps()
    if active.running:
        active.kill()
    return figures


def _joined(trial: Trial) -> Program:
    """Adds a second worker. The trainer reads meanwhile; otherwise elements would be buffered for it."""
    fresh = trial.cluster.add(wait=False)
    trial.until(lambda: fresh.output_path.read_text() and trial.cluster.states() == ["connected"] * 2, every=100)
    return fresh.ready()


def _judge_visible(slowest: Medians) -> list[Mark]:
    return [
        at_most(f"{who}: next element of its streams ≤ 2 s", figures[NEXT], 2, " s")
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
    data.send("to", lost.address)
    return {
        "SIGSTOP": lambda: _worker_dies(roomy, Program.pause),
        "SIGSTOP of the only one, with a standby": lambda: _standby(alone, Program.pause),
        "packets are lost": lambda: _packets_lost(far, lost, data, [control, data]),
        "packets are lost, except those of the dispatcher": lambda: _packets_lost(far, lost, data, [data]),
    }


def _packets_lost(cluster: Cluster, lost: Program, data: proxies.Proxy, routes: list[proxies.Proxy]) -> Sample:
    """Proxies hold all data on some routes of a worker and keep connections open. A second worker takes over."""
    total = 2 * TOTAL
    trial = Trial(cluster, elements(total), **TCP)
    other = _joined(trial)
    assert set(trial.hosts().values()) == {data.address}, "the standby has streams before the fault"
    trial.inject(lambda: [route.send("hold", "both") for route in routes])
    trial.finish(range(total))
    assert lost.running
    held = [route.send("count")[way] for route in routes for way in ("held_up", "held_down")]
    assert min(held) > 0, "nothing was lost"
    figures = trial.gaps(lost=len(routes) > 1)
    for route in routes:
        # Closing the connections also drops the data that the proxy holds.
        route.send("cut")
        route.send("forward")
    other.kill()
    wait(lambda: cluster.states() == ["connected"], "the worker is connected and the standby is gone")
    return figures


def _judge_silent(slowest: Medians) -> list[Mark]:
    return [
        at_most(f"{who}: next element of its streams ≤ {DEAD_AFTER:g} s + 2 s", figures[NEXT], DEAD_AFTER + 2, " s")
        for who, figures in slowest.items()
        if "except" not in who
    ]


def _dispatcher(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    alone = stack.enter_context(service(2))
    everything = stack.enter_context(service(2))
    return {
        "the dispatcher": lambda: _killed(alone, [alone.dispatcher]),
        "the dispatcher and all workers": lambda: _killed(everything, [everything.dispatcher, *everything.workers]),
    }


def _killed(cluster: Cluster, victims: list[Program]) -> Sample:
    """Kills programs and restarts them immediately. Streams are short, so that some always wait for a lease."""
    trial = Trial(cluster, elements(TOTAL, 0.5), passes=3)
    trial.until_element(STRIKE)

    def kill_and_restart() -> None:
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start(victim.address)

    trial.inject(kill_and_restart)
    trial.finish(range(TOTAL))
    figures = {
        "s to have its state": trial.logged('msg="the dispatcher has loaded its state"'),
        "s to have a worker": trial.logged('msg="worker registered"'),
        "s to lease": trial.logged('msg="lease granted"'),
        NEXT: trial.next_of(),
        "s longest gap": trial.longest_gap(),
    }
    for victim in victims:
        victim.ready()
    wait(lambda: cluster.states() == ["connected"] * len(cluster.workers), "all workers are connected")
    return figures


def _recomputed(stack: contextlib.ExitStack, _: Settings) -> Contestants:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-"))
    plain = stack.enter_context(service(2, *ROOMY))
    saving = stack.enter_context(service(2, *ROOMY, "--checkpoint-dir", directory, "--checkpoint-interval", "2s"))
    files = _files(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pecan-bench-"))), TOTAL)
    kill, leave = Program.kill, Goodbye

    def stream_of(number: int) -> int:
        return number % FILES % STREAMS

    return {
        "seek, SIGKILL": lambda: _resumed(plain, elements(TOTAL), kill, "SEEK"),
        "partial seek, SIGKILL": lambda: _resumed(plain, files, kill, "PARTIAL", stream_of=stream_of),
        "from the start, SIGKILL": lambda: _resumed(plain, _shuffled(TOTAL, 1.5), kill, "RECOMPUTE"),
        "a checkpoint, SIGKILL": lambda: _resumed(saving, _shuffled(TOTAL, 6), kill, "RECOMPUTE", seconds=6),
        "seek, SIGTERM": lambda: _resumed(plain, elements(TOTAL), leave, "SEEK"),
        "a checkpoint, SIGTERM": lambda: _resumed(saving, _shuffled(TOTAL, 1.5), leave, "RECOMPUTE"),
    }


def _shuffled(total: int, millis: float) -> tf.data.Dataset:
    """Returns elements with a shuffle after the expensive step."""
    return elements(total, millis).shuffle(100)


def _files(directory: pathlib.Path, total: int) -> tf.data.Dataset:
    """Returns elements whose ids come from interleaved files."""
    names = []
    for number in range(FILES):
        names.append(str(directory / f"part-{number:02}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for i in range(number, total, FILES):
                writer.write(str(i).encode())
    files = tf.data.Dataset.from_tensor_slices(names)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
    return records.map(lambda record: tf.strings.to_number(record, tf.int64)).map(expensive(1.5))


def _resumed(
    cluster: Cluster,
    dataset: tf.data.Dataset,
    fault: Fault,
    strategy: str,
    seconds: float = 0,
    stream_of: Callable[[int], int] = lambda number: number % STREAMS,
) -> Sample:
    """Counts the elements that are recomputed after a worker's end, and how its streams resume."""
    begun = time.monotonic()
    trial = Trial(cluster, dataset)
    resume = trial.status()["plan"]["resume"]
    assert resume["strategy"] == strategy, resume
    trial.until_element(STRIKE)
    if seconds:
        trial.until(lambda: time.monotonic() - begun > seconds)
    victim, streams = trial.victim()
    consumed = sum(stream_of(each.id) in streams for each in trial.arrivals)
    results: list[object] = []
    trial.inject(lambda: results.append(fault(victim)))
    trial.finish(range(TOTAL))
    for each in results:
        if isinstance(each, Goodbye):
            each.check()
    trial.leased()
    # The dispatcher learns the counters with the next heartbeats.
    time.sleep(1.5)
    recovery = trial.status()["recovery"]
    revive(cluster, victim)
    return {
        "consumed of its streams": consumed,
        RECOMPUTED: int(recovery["recomputed"]),
        "started at an index": int(recovery["started"]),
        "restored from a checkpoint": int(recovery["restored"]),
        "s longest gap": trial.longest_gap(),
    }


def _judge_recomputed(slowest: Medians) -> list[Mark]:
    return [
        at_most(f"{who}: nothing is recomputed", figures[RECOMPUTED], 0)
        for who, figures in slowest.items()
        if "SIGTERM" in who
    ]


ROWS: dict[str, Row] = {
    "visible-death": Row("a worker is killed, and its connections break", _visible, _judge_visible, by=max),
    "silent-death": Row("a worker hangs, and its connections stay", _silent, _judge_silent, repetitions=3, by=max),
    "dispatcher-death": Row("SIGKILL and an immediate restart", _dispatcher, lambda _: [], by=max),
    "recomputed": Row("recomputed elements", _recomputed, _judge_recomputed, repetitions=3, by=max),
}
