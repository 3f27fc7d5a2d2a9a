"""One job, read element by element, with faults between two elements, and what has to hold at its end."""

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

# So little is on its way to the trainer that most of an epoch is still to come from workers when a fault strikes.
ON_THE_WAY = 256 << 10


class Run:
    """A job over the records, read in this process and written into a ledger.

    Attributes:
        delivered: Elements so far, over all epochs.
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
        options = {"max_outstanding_bytes": ON_THE_WAY, "seed": 7, **options}
        target = str(options.pop("target", cluster.target))
        plain = data.dataset() if dataset is None else dataset
        self.dataset = plain.apply(pecan.distribute(target, processing_mode=mode, **options))
        self.path: pathlib.Path = cluster.directory / "ledger"
        self.ledger = ledger.Ledger(self.path)
        self.observer = Observer(cluster)
        self.delivered = self.epoch = self.position = 0
        self.slowest = 0.0
        self._iterator = None
        # Faults as (what, epoch, position).
        self.struck: list[tuple[str, int, int]] = []

    def __enter__(self) -> Run:
        self.observer.__enter__()
        return self

    def __exit__(self, *wrong: object) -> None:
        self._iterator = None
        self.ledger.close()
        self.observer.__exit__(*wrong)

    def until(self, epoch: int, position: int) -> None:
        """Reads up to a place, which lies ahead."""
        assert (self.epoch, self.position) <= (epoch, position), f"at {self.epoch}, {self.position} already"
        while (self.epoch, self.position) < (epoch, position):
            self._step()

    def finish(self) -> None:
        """Reads all that is left."""
        while self.epoch < self.passes:
            self._step()

    def struck_by(self, what: str) -> None:
        """Notes that a fault happened at this place."""
        self.struck.append((what, self.epoch, self.position))

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

    def check(self, truth: dict[int, int], golden: Sequence[list[int]] | None, *, moved: int) -> None:
        """The oracle, and that this run was no idle one.

        Args:
            truth: What a local run gave.
            golden: The order of a run without faults; used in mode deterministic.
            moved: How many times at least a stream's lease must have changed.
        """
        for what, epoch, position in self.struck:
            assert 0 < position < self.data.total, f"{what}: nothing came before it or after it in epoch {epoch}"
        entries = ledger.lines(self.path)
        assert len(entries) == self.delivered
        ledger.check(entries, truth, self.passes, golden if self.mode == "deterministic" else None)
        # The last pass is noted when the dispatcher has heard of its end.
        wait(lambda: self._counted() == [self.data.total] * self.passes, f"epochs of {self.data.total} in {self._counted()}")
        assert self.observer.moved() >= moved, f"{self.observer.moved()} leases changed, wanted {moved}: the fault did nothing"

    def _counted(self) -> list[int]:
        """What the dispatcher says that it had delivered in each epoch of this run, which has more of them than another job."""
        counts = [
            [int(epoch["elements"]) for epoch in job["epochs"] if epoch["state"] == "delivered"][: self.passes]
            for job in self.cluster.status()["jobs"]
        ]
        return max(counts, key=len, default=[])

    def forget(self) -> None:
        """Drops the dataset, as a trainer does that is done with it."""
        self._iterator = self.dataset = None
        gc.collect()
