"""One job, read element by element, with faults between elements, and the checks at its end."""

from __future__ import annotations

import gc
import pathlib
import time
from collections.abc import Sequence

import ledger
import pecan
import tensorflow as tf
from cluster import Cluster, Observer, wait
from records import Records

# Few elements are in flight to the trainer, so that workers still have to send most of an epoch when a fault happens.
MAX_OUTSTANDING_BYTES = 256 << 10


class Run:
    """A job over the records, read in this process and written to a ledger.

    Attributes:
        delivered: The number of elements so far, over all epochs.
    """

    def __init__(
        self,
        cluster: Cluster,
        data: Records,
        mode: str,
        passes: int,
        dataset: tf.data.Dataset | None = None,
        **options: object,
    ) -> None:
        self.cluster, self.data, self.mode, self.passes = cluster, data, mode, passes
        options = {"max_outstanding_bytes": MAX_OUTSTANDING_BYTES, "seed": 7, "streams": data.streams, **options}
        target = str(options.pop("target", cluster.target))
        plain = data.dataset() if dataset is None else dataset
        self.dataset = plain.apply(pecan.distribute(target, processing_mode=mode, **options))
        self.path: pathlib.Path = cluster.directory / "ledger"
        self.ledger = ledger.Ledger(self.path)
        self.observer = Observer(cluster)
        self.delivered = self.epoch = self.position = 0
        self.slowest = 0.0
        self._iterator = None
        # The faults as (description, epoch, position).
        self.faults: list[tuple[str, int, int]] = []

    def __enter__(self) -> Run:
        self.observer.__enter__()
        return self

    def __exit__(self, *wrong: object) -> None:
        self._iterator = None
        self.ledger.close()
        self.observer.__exit__(*wrong)

    def read_until(self, epoch: int, position: int) -> None:
        """Reads up to a later position."""
        assert (self.epoch, self.position) <= (epoch, position), f"already at {self.epoch}, {self.position}"
        while (self.epoch, self.position) < (epoch, position):
            self._step()

    def finish(self) -> None:
        """Reads all remaining elements."""
        while self.epoch < self.passes:
            self._step()

    def note_fault(self, what: str) -> None:
        """Records that a fault happened at the current position."""
        self.faults.append((what, self.epoch, self.position))

    def _step(self) -> None:
        if self._iterator is None:
            self._iterator = iter(self.dataset)
        began = time.monotonic()
        try:
            element = next(self._iterator)
        except StopIteration:
            self._iterator, self.epoch, self.position = None, self.epoch + 1, 0
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.ledger.write(self.epoch, self.position, element)
        self.position += 1
        self.delivered += 1

    def check(self, truth: dict[int, int], golden: Sequence[int] | None, *, moved: int) -> None:
        """Checks the elements, and that the faults happened within an epoch.

        Args:
            truth: The elements of a local run.
            golden: The order of every epoch of a run without faults, used in mode deterministic.
            moved: The minimum number of lease changes.
        """
        for what, epoch, position in self.faults:
            assert 0 < position < self.data.total, f"{what}: no element came before it or after it in epoch {epoch}"
        entries = ledger.lines(self.path)
        assert len(entries) == self.delivered
        ledger.check(entries, truth, self.passes, golden if self.mode == "deterministic" else None)
        # The dispatcher learns of the end of the last pass with a delay.
        wait(lambda: self._counted() == [self.data.total] * self.passes, f"epochs of {self.data.total} in {self._counted()}")
        assert self.observer.moved() >= moved, f"{self.observer.moved()} leases changed, expected {moved}: the fault had no effect"

    def _counted(self) -> list[int]:
        """The dispatcher's count of delivered elements for each epoch of this run, which has more epochs than other jobs."""
        counts = [
            [int(epoch["elements"]) for epoch in job["epochs"] if epoch["state"] == "delivered"][: self.passes]
            for job in self.cluster.status()["jobs"]
        ]
        return max(counts, key=len, default=[])

    def release(self) -> None:
        """Drops the dataset, as a trainer does at its end."""
        self._iterator = self.dataset = None
        gc.collect()
