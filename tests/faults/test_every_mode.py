"""What each mode promises when workers come and go, and when the dispatcher dies.

Each test has one cluster and one job of every kind, and all jobs meet the same faults.
"""

from __future__ import annotations

import collections
import gc
import itertools
import re
import signal
from collections.abc import Callable, Iterable

import pecan
import pytest
import tensorflow as tf
from cluster import Cluster, Program, running_cluster, wait
from script import Script

D = tf.data.Dataset
SHARES, EACH = 16, 40
TOTAL = SHARES * EACH
# Few elements are in flight, so that workers still have to produce most of a job when a fault happens.
MAX_OUTSTANDING_BYTES = 128 << 10
MANY_STREAMS = ("--max-streams", "128", "--drain-timeout", "20s")


def _large(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return i, tf.fill([2048], i)


def _numbers(share: tf.Tensor) -> D:
    return D.range(share * EACH, (share + 1) * EACH)


def _ordered() -> D:
    """An index identifies an element. To resume, a stream recomputes the elements before the index."""
    return D.range(SHARES).flat_map(_numbers).map(_large)


def _seekable() -> D:
    """A stream can start at any index and recomputes nothing."""
    return D.range(TOTAL).map(_large)


def _unordered() -> D:
    """Elements come in the order in which they are ready, so an index identifies nothing. The number of elements is known."""
    return D.range(TOTAL).map(_large, num_parallel_calls=2, deterministic=False)


KINDS = {
    "exactly_once": ("exactly_once", _ordered),
    "deterministic": ("deterministic", _ordered),
    "at_least_once": ("at_least_once", _ordered),
    "at_least_once, unordered": ("at_least_once", _unordered),
    "at_most_once, seekable": ("at_most_once", _seekable),
    "at_most_once, unordered": ("at_most_once", _unordered),
    "off": ("off", _ordered),
    "off, unordered": ("off", _unordered),
}


# The job that loses the rest of a stream when its worker is killed.
UNORDERED = "at_most_once, unordered"


class Reader:
    """One job, read element by element."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.kind, self.cluster = kind, cluster
        mode, build = KINDS[kind]
        before = {job["job_id"] for job in cluster.status()["jobs"]}
        self._dataset = build().apply(
            pecan.distribute(cluster.target, processing_mode=mode, seed=7, max_outstanding_bytes=MAX_OUTSTANDING_BYTES)
        )
        self._iterator = iter(self._dataset)
        (self.id,) = {job["job_id"] for job in cluster.status()["jobs"]} - before
        self.found: list[int] = []
        self.ended = False

    def read(self, elements: int) -> None:
        """Reads this many elements, or all that remain."""
        for _ in range(elements):
            element = next(self._iterator, None)
            if element is None:
                self.ended = True
                return
            self.found.append(int(element[0]))
            assert int(element[1][-1]) == self.found[-1]

    def finish(self) -> None:
        while not self.ended:
            self.read(TOTAL)

    def close(self) -> None:
        self._iterator = self._dataset = None

    @property
    def times(self) -> collections.Counter[int]:
        return collections.Counter(self.found)

    def job(self) -> dict:
        """The dispatcher's status of the job."""
        return next(job for job in self.cluster.status()["jobs"] if job["job_id"] == self.id)

    def epoch(self) -> dict:
        """The dispatcher's status of the epoch."""
        return self.job()["epochs"][0]

    def recomputed(self) -> int:
        """The number of elements that workers recomputed although the trainer had them."""
        return int(self.job()["recovery"].get("recomputed", 0))

    def moves(self) -> int:
        """How often the job's streams got another lease, from the dispatcher's log."""
        log = self.cluster.dispatcher.log.read_text()
        granted = collections.Counter(re.findall(rf'msg="lease granted" job={self.id} epoch=0 stream=(\d+) ', log))
        return sum(granted.values()) - len(granted)


class Readers(dict[str, Reader]):
    """A job of every kind. The jobs are read in turn."""

    def read(self, elements: int) -> None:
        for _ in range(elements // 20):
            for reader in self.values():
                reader.read(20)

    def read_while(self, holds: Callable[[], bool]) -> None:
        """Reads while a condition holds."""
        while holds():
            self.read(20)

    def running(self) -> set[str]:
        """The kinds whose jobs have not ended."""
        return {kind for kind, reader in self.items() if not reader.ended}

    def finish(self) -> None:
        for reader in self.values():
            reader.finish()

    def check_once(self, kinds: Iterable[str]) -> None:
        """Checks that each element came exactly once."""
        for kind in kinds:
            assert self[kind].times == collections.Counter(range(TOTAL)), kind


@pytest.fixture
def readers(tmp_path):
    """Starts a cluster with a number of workers, and a job of every kind in it."""
    with running_cluster(Cluster(tmp_path, worker_flags=("--window-bytes", str(1 << 20)))) as cluster:
        jobs = Readers()

        def start(workers: int) -> tuple[Cluster, Readers]:
            cluster.add_all(workers, *MANY_STREAMS)
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


def test_without_failures_a_stream_needs_few_records(readers):
    """Counts the entries of records in the dispatcher's journal for every mode. No element is recomputed."""
    cluster, jobs = readers(2)
    jobs.finish()
    status = {kind: reader.job() for kind, reader in jobs.items()}
    assert all(reader.recomputed() == 0 for reader in jobs.values())
    cluster.dispatcher.kill()
    records: dict[str, dict[int, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    opened = {}
    for record in cluster.journal():
        value = record["value"]
        if record["kind"] == "epoch_opened":
            opened[int(record["number"])] = (value["job_id"], int(value.get("epoch", 0)))
        if "opened" in value and opened[int(value["opened"])][1] == 0:
            for stream in itertools.accumulate(int(difference) for difference in value["streams"]):
                records[opened[int(value["opened"])][0]][stream].append(record["kind"])
        stream = value.get("id")
        if isinstance(stream, dict) and int(stream.get("epoch", 0)) == 0:
            records[stream["job_id"]][int(stream.get("stream", 0))].append(record["kind"])
    for kind, job in status.items():
        written = records[job["job_id"]]
        off = kind.startswith("off")
        assert len(written) == (2 if off else int(job["plan"]["num_streams"])), kind
        for kinds in written.values():
            # A trainer can report the last element as dequeued before the worker's heartbeat reports it as produced.
            assert kinds.count("streams_produced") <= 1, (kind, written)
            assert len(kinds) - kinds.count("streams_produced") == (3 if off else 2), (kind, written)


def test_workers_that_join_and_leave_cost_what_each_mode_allows(readers):
    """Two workers start. One is added, one is killed, one more is added, and one receives SIGTERM."""
    cluster, jobs = readers(2)
    first, second = cluster.workers
    jobs.read(40)
    cluster.add(*MANY_STREAMS)
    for kind in ("off", "off, unordered"):
        wait(lambda kind=kind: _streams_of(cluster, jobs[kind]) == 3, "the third worker has its own stream")
    jobs.read(40)
    second.kill()
    cluster.add(*MANY_STREAMS)
    jobs.read(40)
    killed = {kind: reader.moves() for kind, reader in jobs.items()}
    assert jobs.running() == set(KINDS), "a job ended before the next fault"
    first.processes[-1].send_signal(signal.SIGTERM)
    # The worker ends when its readers have what it produced. It runs a stream to its end if no other worker can continue it.
    jobs.read_while(lambda: _held_by(cluster, first) - {jobs[UNORDERED].id})
    assert jobs.running() == set(KINDS), "a job ended before its streams were handed over"
    jobs[UNORDERED].finish()
    wait(lambda: not first.running, "the worker has ended")
    assert first.processes[-1].returncode == 0 and "drained=true" in first.log_tail(), first.log_tail()
    truncated = int(jobs[UNORDERED].epoch()["streams_truncated"])
    jobs.finish()
    for kind in set(KINDS) - {UNORDERED}:
        assert 0 < killed[kind] < jobs[kind].moves(), f"{kind}: streams did not move"
    jobs.check_once(["exactly_once", "deterministic", "at_least_once", "at_most_once, seekable"])
    assert jobs["deterministic"].found == jobs.order
    assert set(jobs["at_least_once, unordered"].found) == set(range(TOTAL))
    # One pass for each worker that ran at the same time. Another worker takes over the pass of a lost one.
    assert jobs["off"].times == collections.Counter({i: 3 for i in range(TOTAL)})
    assert min(jobs["off, unordered"].times[i] for i in range(TOTAL)) >= 3
    _check_lost(jobs[UNORDERED])
    assert int(jobs[UNORDERED].epoch()["streams_truncated"]) == truncated


def _check_lost(reader: Reader) -> None:
    """Checks that no element came twice, and that the dispatcher counts those that did not come."""
    assert max(reader.times.values()) == 1
    wait(lambda: reader.epoch()["state"] == "delivered", "the dispatcher knows that the epoch ended")
    epoch = reader.epoch()
    assert int(epoch["streams_truncated"]) > 0
    assert int(epoch["lost"]) == TOTAL - len(reader.found) > 0


def test_the_dispatcher_dies_alone(readers):
    """Trainers continue to read while the dispatcher is down. In every mode nothing is recomputed and nothing is lost."""
    cluster, jobs = readers(3)
    jobs.read(40)
    before = cluster.leases()
    cluster.dispatcher.kill()
    # More elements than can have been ready or in flight, so workers produce some of them without a dispatcher.
    jobs.read(200)
    # On a busy machine a worker reconnects late.
    cluster.dispatcher.flags += ("--worker-suspect-after", "30s", "--worker-dead-after", "60s", "--worker-return-grace", "30s")
    cluster.restart_dispatcher()
    wait(lambda: cluster.states() == ["connected"] * 3, "all workers are back")
    assert cluster.leases().items() <= before.items(), "streams moved"
    jobs.finish()
    assert not any(reader.moves() for reader in jobs.values()), "streams moved"
    jobs.check_once(kind for kind in KINDS if not kind.startswith("off"))
    assert jobs["deterministic"].found == jobs.order
    for kind in ("off", "off, unordered"):
        assert jobs[kind].times == collections.Counter({i: 3 for i in range(TOTAL)}), kind


def test_the_dispatcher_dies_with_all_workers(readers):
    """All processes except the trainer are killed and started again."""
    cluster, jobs = readers(3)
    jobs.read(40)
    for program in (cluster.dispatcher, *cluster.workers):
        program.kill()
    for program in (cluster.dispatcher, *cluster.workers):
        program.start(program.address)
    for program in (cluster.dispatcher, *cluster.workers):
        program.ready()
    jobs.finish()
    assert all(reader.moves() > 0 for kind, reader in jobs.items() if kind != UNORDERED), "streams did not move"
    jobs.check_once(["exactly_once", "deterministic", "at_least_once", "at_most_once, seekable"])
    assert jobs["deterministic"].found == jobs.order
    again = {kind for kind, reader in jobs.items() if reader.recomputed() > 0}
    assert again >= {"exactly_once", "deterministic", "at_least_once", "off"} and UNORDERED not in again
    for kind, times in (("at_least_once, unordered", 1), ("off", 3), ("off, unordered", 3)):
        assert min(jobs[kind].times[i] for i in range(TOTAL)) >= times, kind
    assert len(jobs["off"].found) == 3 * TOTAL
    _check_lost(jobs[UNORDERED])


MODES = ("exactly_once", "deterministic", "at_least_once", "at_most_once", "off")
TRAINER = """
for mode in sys.argv[2:]:
    dataset = tf.data.Dataset.range(400).shuffle(50).apply(pecan.distribute(sys.argv[1], processing_mode=mode, seed=7))
    globals()[mode] = iter(dataset)
    print(mode, *(int(next(globals()[mode])) for _ in range(30)), flush=True)
sys.stdin.read()
"""


def test_the_next_trainer_reads_from_the_start(tmp_path):
    """Without a saved position the next trainer reads an epoch from its start, and in mode deterministic in the same order."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(2)
        begun = {}
        with Script(TRAINER, cluster.target, *MODES) as first:
            for _ in MODES:
                mode, *numbers = first.line().split()
                begun[mode] = [int(number) for number in numbers]
            first.process.kill()
            assert first.process.wait(60) == -signal.SIGKILL and set(begun) == set(MODES)
        for mode in MODES:
            dataset = D.range(400).shuffle(50).apply(pecan.distribute(cluster.target, processing_mode=mode, seed=7))
            found = [int(i) for i in dataset]
            assert collections.Counter(found) == {i: 2 if mode == "off" else 1 for i in range(400)}, mode
            if mode == "deterministic":
                assert found[:30] == begun[mode]
            del dataset
        gc.collect()
