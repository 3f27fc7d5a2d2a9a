"""What each mode promises where workers come and go, and where the dispatcher dies: one cluster, a job of every kind, the same faults for all."""

from __future__ import annotations

import collections
import gc
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, Program, cleared, wait

D = tf.data.Dataset
SHARES, EACH = 16, 40
TOTAL = SHARES * EACH
# With little room on the way, most of a job is still to be made when a fault strikes.
ON_THE_WAY = 128 << 10
ROOMY = ("--max-streams", "128", "--drain-timeout", "20s")


def _large(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return i, tf.fill([2048], i)


def _numbers(share: tf.Tensor) -> D:
    return D.range(share * EACH, (share + 1) * EACH)


def _fixed() -> D:
    """An index says which element it is; what lies before it is run again."""
    return D.range(SHARES).flat_map(_numbers).map(_large)


def _direct() -> D:
    """A stream can begin at any index with nothing run again."""
    return D.range(TOTAL).map(_large)


def _free() -> D:
    """Elements come as they get ready: an index says nothing. The number of elements is known."""
    return D.range(TOTAL).map(_large, num_parallel_calls=2, deterministic=False)


KINDS = {
    "exactly_once": ("exactly_once", _fixed),
    "deterministic": ("deterministic", _fixed),
    "at_least_once": ("at_least_once", _fixed),
    "at_least_once, free": ("at_least_once", _free),
    "at_most_once, direct": ("at_most_once", _direct),
    "at_most_once, free": ("at_most_once", _free),
    "off": ("off", _fixed),
    "off, free": ("off", _free),
}


# The job that loses what a killed worker had begun.
FREE = "at_most_once, free"


class Reader:
    """One job, read element by element."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.kind, self.cluster = kind, cluster
        mode, build = KINDS[kind]
        before = {job["job_id"] for job in cluster.status()["jobs"]}
        self._dataset = build().apply(
            pecan.distribute(cluster.target, processing_mode=mode, seed=7, max_outstanding_bytes=ON_THE_WAY)
        )
        self._iterator = iter(self._dataset)
        (self.id,) = {job["job_id"] for job in cluster.status()["jobs"]} - before
        self.found: list[int] = []
        self.over = False

    def read(self, elements: int) -> None:
        """So many more, or all that are left."""
        for _ in range(elements):
            element = next(self._iterator, None)
            if element is None:
                self.over = True
                return
            self.found.append(int(element[0]))
            assert int(element[1][-1]) == self.found[-1]

    def finish(self) -> None:
        while not self.over:
            self.read(TOTAL)

    def close(self) -> None:
        self._iterator = self._dataset = None

    @property
    def times(self) -> collections.Counter[int]:
        return collections.Counter(self.found)

    def job(self) -> dict:
        """What the dispatcher says of it."""
        return next(job for job in self.cluster.status()["jobs"] if job["job_id"] == self.id)

    def epoch(self) -> dict:
        """What the dispatcher says of the one that is read."""
        return self.job()["epochs"][0]

    def recomputed(self) -> int:
        """How many elements workers made again although the trainer had them."""
        return int(self.job()["recovery"].get("recomputed", 0))

    def moves(self) -> int:
        """How often a stream of it got a new lease, by the dispatcher's log."""
        log = self.cluster.dispatcher.log.read_text()
        granted = collections.Counter(re.findall(rf'msg="lease granted" job={self.id} epoch=0 stream=(\d+) ', log))
        return sum(granted.values()) - len(granted)


class Readers(dict[str, Reader]):
    """A job of every kind, read in turn."""

    def read(self, elements: int) -> None:
        for _ in range(elements // 20):
            for reader in self.values():
                reader.read(20)

    def read_while(self, holds: Callable[[], bool]) -> None:
        """Reads on for as long as something holds."""
        while holds():
            self.read(20)

    def under_way(self) -> set[str]:
        """The kinds of jobs that are not over."""
        return {kind for kind, reader in self.items() if not reader.over}

    def finish(self) -> None:
        for reader in self.values():
            reader.finish()

    def once(self, kinds: Iterable[str]) -> None:
        """Each element has come exactly once."""
        for kind in kinds:
            assert self[kind].times == collections.Counter(range(TOTAL)), kind


@pytest.fixture
def readers(tmp_path):
    """Starts a cluster with so many workers, and a job of every kind in it."""
    with cleared(Cluster(tmp_path, worker_flags=("--window-bytes", str(1 << 20)))) as cluster:
        jobs = Readers()

        def start(workers: int) -> tuple[Cluster, Readers]:
            cluster.add_all(workers, *ROOMY)
            quiet = Reader(cluster, "deterministic")
            quiet.finish()
            jobs.update({kind: Reader(cluster, kind) for kind in KINDS})
            jobs.order = quiet.found
            quiet.close()
            return cluster, jobs

        yield start
        for reader in jobs.values():
            reader.close()


def _streams_of(cluster: Cluster, reader: Reader) -> int:
    return len([key for key in cluster.leases() if key[0] == reader.id and key[1] == 0])


def _held_by(cluster: Cluster, worker: Program) -> set[str]:
    """The jobs that have a stream on a worker."""
    return {job for (job, _, _), (_, address) in cluster.leases().items() if address == worker.address}


def test_without_a_failure_a_stream_costs_a_few_records(readers):
    """In the dispatcher's journal, in every mode; and nothing is made twice."""
    cluster, jobs = readers(2)
    jobs.finish()
    told = {kind: reader.job() for kind, reader in jobs.items()}
    assert all(reader.recomputed() == 0 for reader in jobs.values())
    cluster.dispatcher.kill()
    records: dict[str, dict[int, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in cluster.journal():
        stream = record["value"].get("id")
        if isinstance(stream, dict) and int(stream.get("epoch", 0)) == 0:
            records[stream["job_id"]][int(stream.get("stream", 0))].append(record["kind"])
    for kind, job in told.items():
        written = records[job["job_id"]]
        off = kind.startswith("off")
        assert len(written) == (2 if off else int(job["plan"]["num_streams"])), kind
        for kinds in written.values():
            # A trainer may say that it took the last element before the worker's heartbeat says that it was made.
            assert kinds.count("stream_produced") <= 1, (kind, written)
            assert len(kinds) - kinds.count("stream_produced") == (4 if off else 3), (kind, written)


def test_workers_come_and_go(readers):
    """Two workers begin; one comes, one is killed, one more comes, and one is asked to go."""
    cluster, jobs = readers(2)
    first, second = cluster.workers
    jobs.read(40)
    cluster.add(*ROOMY)
    for kind in ("off", "off, free"):
        wait(lambda kind=kind: _streams_of(cluster, jobs[kind]) == 3, "the third worker has a pass of its own")
    jobs.read(40)
    second.kill()
    cluster.add(*ROOMY)
    jobs.read(40)
    killed = {kind: reader.moves() for kind, reader in jobs.items()}
    assert jobs.under_way() == set(KINDS), "a job was over before the next fault"
    first.lives[-1].send_signal(signal.SIGTERM)
    # It goes when its readers have what it made; what nobody could go on with is made to its end.
    jobs.read_while(lambda: _held_by(cluster, first) - {jobs[FREE].id})
    assert jobs.under_way() == set(KINDS), "a job was over before its streams were handed over"
    jobs[FREE].finish()
    wait(lambda: not first.running, "the worker has gone")
    assert first.lives[-1].returncode == 0 and "drained=true" in first.words(), first.words()
    cut_off = int(jobs[FREE].epoch()["streams_truncated"])
    jobs.finish()
    for kind in set(KINDS) - {FREE}:
        assert 0 < killed[kind] < jobs[kind].moves(), f"{kind}: streams did not move"
    jobs.once(["exactly_once", "deterministic", "at_least_once", "at_most_once, direct"])
    assert jobs["deterministic"].found == jobs.order
    assert set(jobs["at_least_once, free"].found) == set(range(TOTAL))
    # A pass for each worker that was there at once; that of a lost one is taken over.
    assert jobs["off"].times == collections.Counter({i: 3 for i in range(TOTAL)})
    assert min(jobs["off, free"].times[i] for i in range(TOTAL)) >= 3
    _lost(jobs[FREE])
    assert int(jobs[FREE].epoch()["streams_truncated"]) == cut_off


def _lost(reader: Reader) -> None:
    """Nothing came twice, and what did not come is counted."""
    assert max(reader.times.values()) == 1
    wait(lambda: reader.epoch()["state"] == "delivered", "the dispatcher knows of the end")
    epoch = reader.epoch()
    assert int(epoch["streams_truncated"]) > 0
    assert int(epoch["lost"]) == TOTAL - len(reader.found) > 0


def test_the_dispatcher_dies_alone(readers):
    """It is killed and away while trainers read on; workers serve what they hold, and nothing is run again or lost in any mode."""
    cluster, jobs = readers(3)
    jobs.read(40)
    before = cluster.leases()
    cluster.dispatcher.kill()
    # More than what can have been on its way or ready: it is made while nobody is there to ask.
    jobs.read(200)
    # On a busy machine a worker takes its time to come back.
    cluster.dispatcher.flags += ("--worker-suspect-after", "30s", "--worker-dead-after", "60s", "--worker-return-grace", "30s")
    cluster.restart_dispatcher()
    wait(lambda: cluster.states() == ["connected"] * 3, "all workers are back")
    assert cluster.leases().items() <= before.items(), "streams changed hands"
    jobs.finish()
    assert not any(reader.moves() for reader in jobs.values()), "streams moved"
    jobs.once(kind for kind in KINDS if not kind.startswith("off"))
    assert jobs["deterministic"].found == jobs.order
    for kind in ("off", "off, free"):
        assert jobs[kind].times == collections.Counter({i: 3 for i in range(TOTAL)}), kind


def test_the_dispatcher_dies_with_all_workers(readers):
    """Everything but the trainer is killed and started again."""
    cluster, jobs = readers(3)
    jobs.read(40)
    for program in (cluster.dispatcher, *cluster.workers):
        program.kill()
    for program in (cluster.dispatcher, *cluster.workers):
        program.start(program.address)
    for program in (cluster.dispatcher, *cluster.workers):
        program.ready()
    jobs.finish()
    assert all(reader.moves() > 0 for kind, reader in jobs.items() if kind != FREE), "streams did not move"
    jobs.once(["exactly_once", "deterministic", "at_least_once", "at_most_once, direct"])
    assert jobs["deterministic"].found == jobs.order
    again = {kind for kind, reader in jobs.items() if reader.recomputed() > 0}
    assert again >= {"exactly_once", "deterministic", "at_least_once", "off"} and FREE not in again
    for kind, times in (("at_least_once, free", 1), ("off", 3), ("off, free", 3)):
        assert min(jobs[kind].times[i] for i in range(TOTAL)) >= times, kind
    assert len(jobs["off"].found) == 3 * TOTAL
    _lost(jobs[FREE])


MODES = ("exactly_once", "deterministic", "at_least_once", "at_most_once", "off")
BEGINS = """
import sys, pecan, tensorflow as tf
for mode in sys.argv[2:]:
    dataset = tf.data.Dataset.range(400).shuffle(50).apply(pecan.distribute(sys.argv[1], processing_mode=mode, seed=7))
    globals()[mode] = iter(dataset)
    print(mode, *(int(next(globals()[mode])) for _ in range(30)), flush=True)
sys.stdin.read()
"""


def test_the_trainer_dies(tmp_path):
    """Without a saved position the next one reads an epoch from its start, and in deterministic mode in the same order."""
    with cleared(Cluster(tmp_path)) as cluster:
        cluster.add_all(2)
        first = subprocess.Popen(
            [sys.executable, "-c", BEGINS, cluster.target, *MODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        begun = {}
        for _ in MODES:
            mode, *numbers = first.stdout.readline().split()
            begun[mode] = [int(number) for number in numbers]
        first.kill()
        assert first.wait(60) == -signal.SIGKILL and set(begun) == set(MODES)
        first.stdin.close(), first.stdout.close()
        for mode in MODES:
            dataset = D.range(400).shuffle(50).apply(pecan.distribute(cluster.target, processing_mode=mode, seed=7))
            found = [int(i) for i in dataset]
            assert collections.Counter(found) == {i: 2 if mode == "off" else 1 for i in range(400)}, mode
            if mode == "deterministic":
                assert found[:30] == begun[mode]
            del dataset
        gc.collect()
