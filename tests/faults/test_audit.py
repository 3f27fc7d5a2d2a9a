"""Every element of some epochs comes once while a worker is killed every two seconds."""

from __future__ import annotations

import collections
import threading
import time

import pecan
import pytest
import records
from cluster import Cluster, Observer, running_cluster

# The interval between deaths, and the rate of rows. Each epoch lasts for more than one death.
EVERY_S = 2.0
EPOCHS = 5 if records.FULL else 3
# Fewer rows are larger, so that the workers' windows hold the same share of an epoch.
ROWS = 10_007 if records.FULL else 3_015
ROWS_PER_S = ROWS / (12.0 if records.FULL else 3.5)


class Killer:
    """Kills a random worker at each interval, and starts it again."""

    def __init__(self, cluster: Cluster, rng) -> None:
        self.cluster, self.rng = cluster, rng
        self.kills: list[float] = []
        self._over = threading.Event()
        self._wrong: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._over.wait(EVERY_S):
                victim = self.rng.choice([worker for worker in self.cluster.workers if worker.running])
                victim.kill()
                self.kills.append(time.monotonic())
                victim.start().ready()
        except BaseException as error:  # noqa: BLE001 __exit__ reports it to the test
            self._wrong.append(error)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._wrong, self._wrong


@pytest.fixture
def audited(tmp_path, streams):
    # A stream has at least one file.
    (tmp_path / "audited").mkdir()
    payload = (1 << 10) if records.FULL else (3 << 10)
    return records.Records(tmp_path / "audited", ROWS, files=max(40, streams), payload=payload, streams=streams)


@pytest.mark.streams(least=records.SPREAD)
@pytest.mark.parametrize(
    "mode, drop_remainder",
    [("exactly_once", False), ("deterministic", True)] + [("exactly_once", True), ("deterministic", False)] * records.FULL,
)
def test_every_id_comes_once_per_epoch_while_workers_are_killed(tmp_path, audited, mode, rng, drop_remainder):
    plain = audited.dataset().batch(64, drop_remainder=drop_remainder)
    rows = {int(element[0]): records.crc(element) for element in audited.dataset().as_numpy_iterator()}
    batches = sum(1 for _ in plain)
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        ours = plain.apply(pecan.distribute(cluster.target, processing_mode=mode, seed=1, streams=audited.streams, max_outstanding_bytes=256 << 10))
        with Observer(cluster) as observer, Killer(cluster, rng) as killer:
            for epoch in range(EPOCHS):
                began, seen, sizes = time.monotonic(), collections.Counter(), collections.Counter()
                for batch in ours:
                    parts = [part.numpy() for part in batch]
                    seen.update(parts[0].tolist())
                    sizes[len(parts[0])] += 1
                    for row in zip(*parts):
                        assert records.crc(row) == rows[int(row[0])]
                    # The trainer is slowed down. At full speed it would finish an epoch between two deaths.
                    time.sleep(max(0.0, began + seen.total() / ROWS_PER_S - time.monotonic()))
                short = audited.total % 64
                assert sum(sizes.values()) == batches and sizes[64] == audited.total // 64, sizes
                assert not seen - collections.Counter(rows.keys()), f"epoch {epoch}: some ids came twice"
                assert seen.total() == audited.total - (short if drop_remainder else 0), f"epoch {epoch}: some ids were lost"
                died = sum(1 for at in killer.kills if began <= at <= time.monotonic())
                assert died >= 1, f"no worker died in epoch {epoch}"
        assert observer.moved() >= EPOCHS
        status = cluster.status()
        (job,) = status["jobs"]
        assert [epoch["state"] for epoch in job["epochs"][:EPOCHS]] == ["delivered"] * EPOCHS
        del ours
