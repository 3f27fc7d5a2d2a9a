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
from test_commands import Program, said
from test_epochs import PATIENCE_S
from test_metrics import free_port, scrape
from test_outages import programs  # noqa: F401

D = tf.data.Dataset
# Streams get every 16th element, so that one in KEPT is kept in each of them.
N, LONG, ROUNDS, KEPT = 40_000, 60_000, 24, 5
NAME = "judged"


class Pictures:
    """A dataset with two filters: one is expensive and drops nothing, and the other is cheap and drops most elements.

    Which of them is which stands in a file, so it may change behind a trial. The elements that come out do not.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._file = directory / "which"
        self.costly("first")

    def costly(self, which: str) -> None:
        """Says which filter costs much from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(which)
        os.replace(new, self._file)

    def dataset(self) -> tf.data.Dataset:
        """Few know how much is left out, so it is said how many come: what a trial may cost goes by that."""
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
    """A dispatcher that keeps what it decides, and two workers, all with metrics."""

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

    def dies(self) -> None:
        """Kills the dispatcher and starts another one in its place."""
        self._dispatcher.process.kill()
        self._dispatcher.process.wait()
        self._begin(self.address)

    def job(self) -> dict:
        (job,) = self._link.status()["jobs"]
        return job

    def state(self) -> str:
        return self.job()["order"]["state"]

    def tries(self) -> bool:
        return "is trying the order" in self.job()["order"]["why"]

    def ordered(self) -> list[tuple[int, ...] | None]:
        """In which streams epochs have the order, by their numbers; none at all where they have the registered one."""
        streams = {int(e.get("epoch", 0)): tuple(e.get("ordered_streams", ())) if e.get("ordered") else None for e in self.job()["epochs"]}
        return [streams[number] for number in range(len(streams))]

    def explained(self) -> tuple[pecan.OrderExplanation, str]:
        """What `pecan.explain` says and, in the same words, `pecanctl explain`; while nobody reads it settles soon."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found, shown = pecan.explain(NAME, self.address), said("pecanctl", "explain", NAME, "--dispatcher", self.address)
            assert shown.returncode == 0, shown.stderr
            if shown.stdout == found.text(120) + "\n":
                return found, " ".join(shown.stdout.split())
            assert time.monotonic() < end, (found.text(120), shown.stdout)

    def jobs_by_order(self) -> dict[str, float]:
        """As the dispatcher's metrics have it, without what there is none of."""
        name = "pecan_dispatcher_jobs_by_order"
        return {key.split('"')[1]: n for key, n in scrape(self._ports[0]).items() if key.startswith(name) and n}

    def at_workers(self, name: str) -> float:
        return sum(scrape(port).get(name, 0) for port in self._ports[1:])


class Epoch:
    """Elements of an epoch that is read; each comes once, and is one of those that are kept."""

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
        """Reads what is left, which is all that has not come."""
        for _ in self:
            pass
        assert self.seen == set(range(0, N, KEPT))


def _read_until(service: Service, dataset: tf.data.Dataset, *states: str) -> None:
    """Reads one epoch until the order is in one of some states."""
    end = time.monotonic() + PATIENCE_S
    for n, _ in enumerate(Epoch(dataset)):
        # A read during a trial would only slow the trial down.
        while service.tries() and time.monotonic() < end:
            time.sleep(0.05)
        if n % 20 == 0 and service.state() in states:
            return
        assert time.monotonic() < end, service.job()["order"]
    raise AssertionError(service.job()["order"])


def _says_what_a_trial_said(service: Service, found: pecan.OrderExplanation, text: str) -> None:
    """An explanation, and its text, name what moved and what that saves by prediction and trial."""
    assert [(step.operation, step.registered_position, step.planned_position) for step in found.moved] == [("FilterDataset", 2, 1)]
    assert "_second (FilterDataset) (was 3)" in text
    assert found.predicted_gain is not None and 0.3 < found.predicted_gain < 1
    assert found.measured_gain is not None and found.measured_interval is not None
    assert 0 < found.measured_interval[0] < found.measured_gain < found.measured_interval[1]
    assert f"in the planned order: {100 * found.predicted_gain:.1f} % less" in text
    assert f"over {found.response['trial']['elements']} elements: {100 * found.measured_gain:.1f} % less" in text
    assert [(one.component, one.max_difference, one.bound) for one in found.differences] == [(k, 0, 0) for k in range(5)]
    assert text.count("within its bound") == 5 and "MAX DIFFERENCE" in text
    assert service.at_workers('pecan_worker_orders_tried_total{outcome="passed"}') == 1
    assert service.at_workers("pecan_worker_order_trials_cpu_seconds_total") >= 0.99 * found.response["trial"]["cpu_s"]


# The case with a death goes through all states of the other one.
@pytest.mark.parametrize("dies", cases([False, True], soak=[False]), ids=lambda dies: "it dies while the order is piloted" if dies else "the dispatcher lives")
def test_an_order_that_production_contradicts_is_rolled_back(programs, tmp_path, dies):  # noqa: F811
    """O5: what its trial saw is not what comes later. It is rolled back in the one stream that has it, and every element comes once."""
    service, pictures = Service(programs, tmp_path), Pictures(tmp_path)
    dataset = pictures.dataset().apply(
        pecan.distribute(service.address, job_name=NAME, order="auto", order_tolerance="exact", max_outstanding_bytes=1 << 12)
    )
    _read_until(service, dataset, "piloted", "refused", "kept")
    found, text = service.explained()
    assert (found.state, found.production_gain) == ("piloted", None), found.why
    assert "state piloted" in text
    _says_what_a_trial_said(service, found, text)
    assert service.jobs_by_order() == {"piloted": 1}
    pictures.costly("second")
    # Epochs that were opened before have the registered order.
    epoch = Epoch(dataset)
    next(iter(epoch))
    while service.ordered()[-1] is None:
        epoch = Epoch(dataset)
        next(iter(epoch))
    if dies:
        service.dies()
        assert service.state() == "piloted"
        assert service.ordered()[-1] == (0,)
    epoch.rest()
    if service.state() == "piloted":
        _read_until(service, dataset, "rolled back", "adopted")
    found, text = service.explained()
    assert (found.state, found.production_gain is not None and found.production_gain < -0.2) == ("rolled back", True), found.why
    assert "state rolled back" in text
    assert f"{-100 * found.production_gain:.1f} % more" in text and "in other streams of the same epochs" in text
    assert found.response["production"]["same_epochs"]
    _says_what_a_trial_said(service, found, text)
    assert service.jobs_by_order() == {"rolled_back": 1}
    # Epochs had the registered order, then one stream of each the other, and those that are opened now have the registered one.
    opened = service.ordered()
    while len(service.ordered()) < len(opened) + 2:
        next(iter(Epoch(dataset)))
    words = [list(group) for _, group in itertools.groupby(service.ordered())]
    assert [group[0] for group in words] == [None, (0,), None], words
    assert service.state() == "rolled back"
