"""What every end-to-end test stands on: a cluster of real processes, files to read, and a deadline."""

from __future__ import annotations

import os
import pathlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# A test that has not ended by then has found a hang.
DEADLINE_S = 600


@pytest.fixture(autouse=True)
def deadline(limit):
    """Ends the whole run when a single test hangs."""
    limit(DEADLINE_S)


@pytest.fixture(scope="session")
def cluster():
    """A dispatcher and two workers in processes of their own."""
    import pecan

    cluster = pecan.LocalCluster(workers=2)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files of every kind that the pipelines read."""
    return Files(tmp_path_factory.mktemp("files"))


class Files:
    """Files whose records carry dense ids: file k of n holds those from sum of the sizes before it."""

    # Uneven on purpose, with an empty one.
    SIZES = (7, 0, 13, 1, 20, 9)

    def __init__(self, root: pathlib.Path) -> None:
        import tensorflow as tf

        self.root = root
        self.records, self.lines, self.fixed = [], [], []
        first = 0
        for k, size in enumerate(self.SIZES):
            ids = range(first, first + size)
            first += size
            self.records.append(str(root / f"part-{k}.tfrecord"))
            with tf.io.TFRecordWriter(self.records[-1]) as writer:
                for i in ids:
                    writer.write(f"record {i} ".encode() + b"x" * (i % 5))
            self.lines.append(str(root / f"part-{k}.csv"))
            pathlib.Path(self.lines[-1]).write_text("id,square\n" + "".join(f"{i},{i * i}\n" for i in ids))
            self.fixed.append(str(root / f"part-{k}.bin"))
            pathlib.Path(self.fixed[-1]).write_bytes(b"".join(b"%08d" % i for i in ids))
        self.total = first
        self.one_record_file = str(root / "all.tfrecord")
        with tf.io.TFRecordWriter(self.one_record_file) as writer:
            for i in range(self.total):
                writer.write(f"record {i}".encode())

    @property
    def pattern(self) -> str:
        """Matches the record files and no others."""
        return str(self.root / "part-*.tfrecord")
