"""Jobs share the slots of a service by weight, and a trainer that stops reading keeps nothing from the others."""

from __future__ import annotations

import json
import pathlib
import threading
import time

import pecan
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing
from test_commands import Program, run_command

# The sleep of an element, and the elements of a stream.
ELEMENT_S, ELEMENTS_PER_STREAM, STREAMS = 0.02, 20, 60


def service(tmp_path: pathlib.Path, *flags: str) -> list[Program]:
    """A dispatcher and two workers of four slots."""
    programs = [Program("pecan-dispatcher", "--listen", "127.0.0.1:0", *flags)]
    for _ in range(2):
        programs.append(Program("pecan-worker", "--dispatcher", programs[0].address, "--max-streams", "4"))
    return programs


def sleepy(elements: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(elements).apply(testing.sleep(int(1e6 * ELEMENT_S)))


class Reader(threading.Thread):
    """Reads a dataset to its end. It takes no more than `stop_at` elements before `go_on` is set."""

    def __init__(self, dataset: tf.data.Dataset, stop_at: int | None = None) -> None:
        super().__init__(daemon=True)
        self.dataset, self.stop_at, self.taken, self.failure = dataset, stop_at, [], None
        self.go_on = threading.Event()

    def run(self) -> None:
        try:
            for element in self.dataset:
                self.taken.append(int(element))
                if len(self.taken) == self.stop_at:
                    self.go_on.wait()
        except (tf.errors.OpError, pecan.PecanError) as error:
            self.failure = error


def jobs(target: str) -> list[dict]:
    shown = run_command("pecanctl", "jobs", "--json", "--dispatcher", target)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def running(target: str) -> dict[float, int]:
    """The running streams of each job, by its weight."""
    return {job["options"]["weight"]: job.get("running", 0) for job in jobs(target)}


def wait_for(what: str, holds, seconds: float = 60) -> None:
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > seconds:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def test_jobs_share_the_slots_by_weight(tmp_path: pathlib.Path):
    table = tmp_path / "tenants.yaml"
    table.write_text("tenants: {team: {weight: 1}, bounded: {max_slots: 1}}\n")
    programs = service(tmp_path, "--tenants", str(table))
    target = programs[0].address
    readers = []
    try:
        with pytest.raises(pecan.PecanError, match="TENANT_UNKNOWN"):
            sleepy(8).apply(pecan.distribute(target, tenant="others"))
        for weight in (1, 3):
            distributed = pecan.distribute(target, streams=STREAMS, weight=weight, tenant="team", order="off")
            readers.append(Reader(sleepy(STREAMS * ELEMENTS_PER_STREAM).apply(distributed)))
            readers[-1].start()

        # At any time, two of eight slots and six.
        wait_for("the jobs run 2 and 6 streams", lambda: running(target) == {1.0: 2, 3.0: 6})
        before = [len(reader.taken) for reader in readers]
        wait_for("both are read", lambda: len(readers[1].taken) - before[1] >= 300)
        light, heavy = (len(reader.taken) - n for reader, n in zip(readers, before, strict=True))
        assert 2 < heavy / light < 4.5, (light, heavy)
        for reader in readers:
            reader.join(120)
            assert reader.failure is None and not reader.is_alive(), reader.failure
            assert sorted(reader.taken) == list(range(STREAMS * ELEMENTS_PER_STREAM))
    finally:
        for program in programs:
            program.stop()


def test_a_late_job_gets_its_slots_although_no_stream_ends(tmp_path: pathlib.Path):
    """Streams of the early job move, and each element of both jobs comes once."""
    programs = service(tmp_path)
    target = programs[0].address
    # An early stream takes 20 s.
    sizes = {1.0: (8, 8000), 1.5: (16, 800)}
    readers = {}
    try:
        for weight, (streams, elements) in sizes.items():
            distributed = pecan.distribute(target, streams=streams, weight=weight, order="off")
            readers[weight] = Reader(sleepy(elements).apply(distributed))
            readers[weight].start()
            wait_for("the job runs", lambda weight=weight: weight in running(target))
        # The early job keeps what 1.5 times its number would exceed: 4 of 8 slots, not 3.
        wait_for("the slots are shared", lambda: running(target) == {1.0: 4, 1.5: 4})
        (early,) = (job for job in jobs(target) if job["options"]["weight"] == 1.0)
        assert not any(epoch.get("streams_done") for epoch in early["epochs"]), early
        for weight, (_, elements) in sizes.items():
            readers[weight].join(120)
            assert readers[weight].failure is None and not readers[weight].is_alive(), readers[weight].failure
            assert sorted(readers[weight].taken) == list(range(elements))
    finally:
        for program in programs:
            program.stop()


def test_a_trainer_that_stops_reading_keeps_nothing_from_the_other(tmp_path: pathlib.Path):
    """G10: the second trainer of a shared job finishes it, and each element comes once."""
    elements = 400
    programs = service(tmp_path)
    target = programs[0].address
    try:
        distributed = pecan.distribute(target, streams=16, job_name="team", order="off")
        stops, reads = (
            Reader(sleepy(elements).apply(distributed), stop_at=7),
            Reader(sleepy(elements).apply(distributed)),
        )
        stops.start()
        wait_for("the first trainer has stopped", lambda: len(stops.taken) == 7)
        reads.start()
        reads.join(90)
        assert reads.failure is None and not reads.is_alive(), reads.failure or "the second trainer still waits"
        # The first one has what TensorFlow had taken for it, and no more.
        assert len(stops.taken) == 7 and not stops.go_on.is_set()
        stops.go_on.set()
        stops.join(60)
        assert stops.failure is None and not stops.is_alive(), stops.failure
        assert sorted(stops.taken + reads.taken) == list(range(elements))
    finally:
        for program in programs:
            program.stop()
