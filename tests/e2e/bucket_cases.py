"""What the tests of mounted buckets run in namespaces of their own: python bucket_cases.py DIRECTORY CASE..."""

from __future__ import annotations

import logging
import pathlib
import sys

import cache_service
import tensorflow as tf
from bucket_mounts import Mounts
from cache_service import Service, nothing, numbers, rows, slow_numbers, until

logging.basicConfig(level=logging.DEBUG)


class Bucket(Service):
    """A service whose workers have a mount each. Segments are those in the bucket."""

    def __init__(self, directory: pathlib.Path, mounts: Mounts, workers: int = 2, **config) -> None:
        self.mounts = mounts
        self.at = 0
        super().__init__(directory, workers, **config)

    def add(self) -> None:
        """Starts a worker at the next mount."""
        self.config["cache_dir"] = self.mounts.caches[self.at]
        self.at = (self.at + 1) % len(self.mounts.caches)
        super().add()

    def segments(self) -> list[str]:
        return [name for name in self.mounts.bucket.names(".seg") if "-probe-" not in name]

    def swap(self) -> None:
        """Replaces the only worker by one that sees the segments through the other mount."""
        self.add()
        self.workers.pop(0).stop()

    def state(self) -> str:
        return self.job()["cache"]["state"]


def forced(directory: pathlib.Path, mounts: Mounts) -> None:
    """The second epoch and the second job read through one mount what was written through the other one."""
    names = cache_service.write_records(directory / "data")
    want = rows(numbers(names, nothing))
    with Bucket(directory, mounts, workers=1) as service:
        dataset = service.read(numbers(names), deterministic=True)
        computed = [batch.tolist() for batch in service.read(numbers(names), deterministic=True, cache="off").as_numpy_iterator()]
        first = [batch.tolist() for batch in dataset.as_numpy_iterator()]
        assert first == computed and sorted(x for batch in first for x in batch) == want
        written = service.segments()
        assert len(written) > 1 and service.state() == "committed", service.job()["plan"]["reasons"]
        produced = service.produced()
        service.swap()
        assert [batch.tolist() for batch in dataset.as_numpy_iterator()] == first
        assert service.state() == "used"
        assert service.produced().get("MapDataset", 0) <= produced["MapDataset"] + len(want), "the second epoch decodes records again"
        second = service.read(numbers(names).map(lambda x: x + 1), deterministic=True)
        assert [[x - 1 for x in batch.tolist()] for batch in second.as_numpy_iterator()] == first
        assert service.produced().get("InterleaveDataset", 0) == 0, "the second job reads the files"
        until(lambda: service.metric("bytes_read") >= 2 * 8 * len(want), "the other mount does not have the elements")
        assert service.metric("segments_invalid") == 0 and service.segments() == written


def automatic(directory: pathlib.Path, mounts: Mounts) -> None:
    """The service measures the mounts, and chooses what is stored in the bucket."""
    from test_cache_decision import STREAMS, build, bytes_of, decision

    local = sorted(bytes_of(build()))
    with Bucket(directory, mounts) as service:
        dataset = service.read(build(), cache="auto", streams=STREAMS)
        for _ in range(3):
            assert sorted(bytes_of(dataset)) == local
        assert decision(service)["node"], decision(service)
        until(lambda: service.metric("bytes_read") > 0, "nothing is read from the bucket")
        written = service.segments()
        second = service.read(build().map(lambda x: x + 1), cache="auto", streams=STREAMS)
        read = service.metric("bytes_read")
        assert sorted(bytes_of(second.map(lambda x: x - 1))) == local
        until(lambda: service.metric("bytes_read") > read, "the second job reads nothing from the bucket")
        assert service.segments() == written
        assert service.metric("segments_invalid") == 0 and service.metric("writes_dropped") == 0


def killed(directory: pathlib.Path, mounts: Mounts) -> None:
    """Workers that are killed while they write leave files that nobody reads, and that are collected."""
    names = cache_service.write_records(directory / "data")
    want = rows(slow_numbers(names).map(lambda x: x))
    with Bucket(directory, mounts, cache_orphan_after_ms=2_000) as service:
        dataset = service.read(slow_numbers(names), streams=8)
        got: list[int] = []
        kills = 0
        for batch in dataset:
            got += batch.numpy().tolist()
            if kills < 3 and len(got) > 30 * (kills + 1):
                service.kill(0)
                kills += 1
        assert kills == 3 and sorted(got) == want
        left = set(mounts.bucket.names(".tmp"))
        for _ in range(2):
            assert rows(dataset) == want
        assert service.state() == "used" and service.metric("segments_invalid") == 0
        parts = int(service.job()["plan"]["cache"]["parts"])
        until(lambda: not left & set(mounts.bucket.names(".tmp")) and len(service.segments()) == parts, "what dead workers left is not collected")
        assert left, "no worker died while it wrote"
        assert rows(dataset) == want and service.metric("segments_invalid") == 0


def vanished(directory: pathlib.Path, mounts: Mounts) -> None:
    """Epochs are complete without the mounts. Workers use mounts that have returned, and what was stored before."""
    names = cache_service.write_records(directory / "data")
    want = rows(slow_numbers(names).map(lambda x: x))
    with Bucket(directory, mounts) as service:
        dataset = service.read(slow_numbers(names), streams=8)
        got: list[int] = []
        for batch in dataset:
            got += batch.numpy().tolist()
            if service.segments() and all(process.poll() is None for process in mounts.processes.values()):
                mounts.kill_all()
        assert sorted(got) == want
        until(lambda: service.metric("writes_dropped") > 0, "no worker counts what it does not write")
        # What was stored before is computed now, and stays.
        before = service.segments()
        assert rows(dataset) == want
        assert service.metric("segments_invalid") == 0
        mounts.remount_all()
        until(lambda: rows(dataset) == want and service.state() == "used", "the mounts are not used again")
        assert set(before) <= set(service.segments())
        # While the bucket refuses the credentials, s3fs says that files which it knows are empty. It remembers that.
        before = service.segments()
        mounts.bucket.refusing = True
        assert rows(dataset) == want
        mounts.bucket.refusing = False
        mounts.remount_all()
        until(lambda: rows(dataset) == want and service.state() == "used", "the bucket is not used again")
        assert service.metric("segments_invalid") == 0 and before == service.segments()


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1])
    tf.get_logger().setLevel("ERROR")
    for case in sys.argv[2:]:
        at = directory / case
        at.mkdir()
        mounted = Mounts(at)
        {"forced": forced, "automatic": automatic, "killed": killed, "vanished": vanished}[case](at, mounted)
        mounted.close()
