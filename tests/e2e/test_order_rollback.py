"""An order that production contradicts is rolled back, and the explanation says so at each stage."""

from __future__ import annotations

import itertools
import os
import pathlib
import time
from collections.abc import Iterator

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from soak import cases
from test_commands import Program, run_command
from test_epochs import PATIENCE_S
from test_metrics import free_port, scrape
from test_outages import programs  # noqa: F401

D = tf.data.Dataset
# A stream gets every 16th element. One element of KEPT is kept in each stream, because 5 and 16 have no common divisor.
N, LONG, ROUNDS, KEPT = 60_000, 60_000, 24, 5
NAME = "judged"


class Images:
    """A dataset with two filters: one is expensive and drops nothing, and the other is cheap and drops most elements.

    A file decides which filter is expensive, so that this can change after a trial. The elements do not change.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._file = directory / "which"
        self.set_expensive("first")

    def set_expensive(self, which: str) -> None:
        """Makes a filter the expensive one from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(which)
        os.replace(new, self._file)

    def dataset(self) -> tf.data.Dataset:
        """The dataset. It asserts its cardinality, because the number of elements limits the cost of a trial."""
        dataset = D.range(N).map(self._read).filter(_first).filter(_second).map(lambda i, *_: i)
        return dataset.apply(tf.data.experimental.assert_cardinality(N // KEPT))

    def _read(self, i: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first = tf.io.read_file(str(self._file)) == "first"
        kept, sizes = i % KEPT == 0, tf.where(first, [LONG, 1], [1, LONG])
        x, y = (tf.fill([sizes[k]], tf.cast(i, tf.float32)) for k in range(2))
        return i, x, tf.logical_or(first, kept), y, tf.logical_or(tf.logical_not(first), kept)


def _of_value(x: tf.Tensor) -> tf.Tensor:
    for _ in range(ROUNDS):
        x = tf.sqrt(tf.square(x) + 1.0)
    return tf.reduce_sum(x) > 0.0


def _first(_i: tf.Tensor, x: tf.Tensor, kept: tf.Tensor, _y: tf.Tensor, _other: tf.Tensor) -> tf.Tensor:
    return tf.logical_and(_of_value(x), kept)


def _second(_i: tf.Tensor, _x: tf.Tensor, _other: tf.Tensor, y: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    return tf.logical_and(_of_value(y), kept)


class Service:
    """A dispatcher with a work directory and two workers, all with metrics."""

    def __init__(self, programs, directory: pathlib.Path) -> None:  # noqa: F811
        self._programs, self._directory = programs, str(directory / "work")
        self._ports = [free_port() for _ in range(3)]
        self._begin("127.0.0.1:0")
        self.address = self._dispatcher.address
        for port in self._ports[1:]:
            programs("pecan-worker", "--dispatcher", self.address, "--metrics-listen", f"127.0.0.1:{port}")
        self._link = session.connect(self.address, 60)

    def _begin(self, address: str) -> None:
        flags = ("--work-dir", self._directory, "--metrics-listen", f"127.0.0.1:{self._ports[0]}")
        self._dispatcher: Program = self._programs("pecan-dispatcher", "--listen", address, *flags)

    def restart_dispatcher(self) -> None:
        """Kills the dispatcher, and starts another one at its address."""
        self._dispatcher.process.kill()
        self._dispatcher.process.wait()
        self._begin(self.address)

    def job(self) -> dict:
        (job,) = self._link.status()["jobs"]
        return job

    def state(self) -> str:
        return self.job()["order"]["state"]

    def is_trying(self) -> bool:
        return "is trying the order" in self.job()["order"]["why"]

    def ordered(self) -> list[tuple[int, ...] | None]:
        """For each epoch the streams with the new order, or None if the epoch has the registered order."""
        streams = {int(e.get("epoch", 0)): tuple(e.get("ordered_streams", ())) if e.get("ordered") else None for e in self.job()["epochs"]}
        return [streams[number] for number in range(len(streams))]

    def explained(self) -> tuple[pecan.Explanation, str]:
        """The result of `pecan.explain`, and the equal text of `pecanctl explain`. Both stop changing when nobody reads."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found, shown = pecan.explain(NAME, self.address), run_command("pecanctl", "explain", NAME, "--dispatcher", self.address)
            assert shown.returncode == 0, shown.stderr
            if shown.stdout == found.text(120) + "\n":
                return found, " ".join(shown.stdout.split())
            assert time.monotonic() < end, (found.text(120), shown.stdout)

    def jobs_by_order(self) -> dict[str, float]:
        """The dispatcher's metric of jobs by state of their order, without zeros."""
        name = "pecan_dispatcher_jobs_by_order"
        return {key.split('"')[1]: n for key, n in scrape(self._ports[0]).items() if key.startswith(name) and n}

    def at_workers(self, name: str) -> float:
        return sum(scrape(port).get(name, 0) for port in self._ports[1:])


class Epoch:
    """Reads an epoch, and checks that each element comes once and is one of those that the filters keep."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.seen: set[int] = set()
        self._elements = iter(dataset)

    def __iter__(self) -> Iterator[int]:
        for element in self._elements:
            i = int(element)
            assert i % KEPT == 0
            assert i not in self.seen
            self.seen.add(i)
            yield i

    def rest(self) -> None:
        """Reads the rest, and checks that the epoch is complete."""
        for _ in self:
            pass
        assert self.seen == set(range(0, N, KEPT))


def _read_until(service: Service, dataset: tf.data.Dataset, *states: str) -> None:
    """Reads one epoch until the order is in one of the states."""
    end = time.monotonic() + PATIENCE_S
    for n, _ in enumerate(Epoch(dataset)):
        # The test does not read during a trial, because that would slow the trial down.
        while service.is_trying() and time.monotonic() < end:
            time.sleep(0.05)
        if n % 20 == 0 and service.state() in states:
            return
        assert time.monotonic() < end, service.job()["order"]
    raise AssertionError(service.job()["order"])


def _check_trial_explanation(service: Service, found: pecan.Explanation, text: str) -> None:
    """Checks that an explanation and its text name the step that moved, and the gains by prediction and trial."""
    assert [(step.operation, step.registered_position, step.planned_position) for step in found.moved] == [("FilterDataset", 2, 1)]
    assert "_second (FilterDataset) (was 3)" in text
    assert found.predicted_gain is not None and 0.3 < found.predicted_gain < 1
    assert f"in the planned order: {100 * found.predicted_gain:.1f} % less" in text
    assert found.measured_gain is not None and found.measured_interval is not None
    assert 0 < found.measured_interval[0] < found.measured_gain < found.measured_interval[1]
    assert f"over {found.response['trial']['elements']} elements: {100 * found.measured_gain:.1f} % less" in text
    assert [(one.component, one.max_difference, one.bound) for one in found.differences] == [(k, 0, 0) for k in range(5)]
    assert text.count("within its bound") == 5 and "MAX DIFFERENCE" in text
    assert service.at_workers('pecan_worker_orders_tried_total{outcome="passed"}') == 1
    assert service.at_workers("pecan_worker_order_trials_cpu_seconds_total") >= 0.99 * found.response["trial"]["cpu_s"]


# The case with a restart includes all states of the case without one.
@pytest.mark.parametrize(
    "restarts",
    cases([False, True], soak=[False]),
    ids=lambda restarts: "the dispatcher restarts during the pilot" if restarts else "no restart",
)
def test_an_order_that_production_contradicts_is_rolled_back(programs, tmp_path, restarts):  # noqa: F811
    """O5: production contradicts the trial. The order is rolled back in the stream that has it, and every element comes once."""
    service, images = Service(programs, tmp_path), Images(tmp_path)
    dataset = images.dataset().apply(
        pecan.distribute(service.address, job_name=NAME, order="auto", order_tolerance="exact", streams=16, max_outstanding_bytes=1 << 12)
    )
    _read_until(service, dataset, "piloted", "refused", "kept")
    found, text = service.explained()
    assert (found.state, found.production_gain) == ("piloted", None), found.why
    assert "state piloted" in text
    _check_trial_explanation(service, found, text)
    assert service.jobs_by_order() == {"piloted": 1}
    images.set_expensive("second")
    # Epochs that were opened before the pilot have the registered order.
    epoch = Epoch(dataset)
    next(iter(epoch))
    while service.ordered()[-1] is None:
        epoch = Epoch(dataset)
        next(iter(epoch))
    if restarts:
        service.restart_dispatcher()
        assert service.state() == "piloted"
        assert 0 in (service.ordered()[-1] or ())
    epoch.rest()
    if service.state() == "piloted":
        _read_until(service, dataset, "rolled back", "adopted")
    found, text = service.explained()
    assert (found.state, found.production_gain is not None and found.production_gain < -0.2) == ("rolled back", True), found.why
    assert "state rolled back" in text
    assert f"{-100 * found.production_gain:.1f} % more" in text and "in other streams of the same epochs" in text
    assert found.response["production"]["same_epochs"]
    # The prediction stays as the decision made it, also after a restart, although newer epochs contradict it.
    _check_trial_explanation(service, found, text)
    assert service.jobs_by_order() == {"rolled_back": 1}
    # Epochs had the registered order first, then the new order in one stream each, and new epochs have the registered order again.
    opened = service.ordered()
    while len(service.ordered()) < len(opened) + 2:
        next(iter(Epoch(dataset)))
    # The epoch that was open at the decision may have it too, in a stream that had not begun.
    kinds = [kind for kind, _ in itertools.groupby(streams is not None for streams in service.ordered())]
    assert kinds in ([False, True, False], [True, False]), service.ordered()
    assert service.state() == "rolled back"
