"""Fixtures of the end-to-end tests: a cluster of real processes, files to read, and a deadline.

Each file tests one feature through the public API: `pecan.distribute()` in this process or in a script, against a
dispatcher and workers in separate processes. An independent `tf.data` run in this process gives the expected elements.

- Most tests use the fixture `cluster`, which they share. A test that ends or configures servers makes its own
  `pecan.LocalCluster`, or starts the programs with `test_commands.Program`.
- `script.Script` runs Python lines in another process, for tests that fork, exit or receive signals.
- `oracle.compare` compares a distributed run with a local run.
- `soak.cases` leaves cases to `make soak` that prove little more than the others.

To run one test: `make build`, then `.venv/bin/python -m pytest tests/e2e/test_cache.py -k name`.
"""

from __future__ import annotations

import os
import pathlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# A test that takes longer than this hangs.
DEADLINE_S = 600


@pytest.fixture(autouse=True)
def deadline(limit):
    """Ends the whole run when a single test hangs."""
    limit(DEADLINE_S)


@pytest.fixture(scope="session")
def cluster():
    """A dispatcher and two workers in separate processes."""
    import pecan

    cluster = pecan.LocalCluster(workers=2)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files of each kind that the pipelines read."""
    return Files(tmp_path_factory.mktemp("files"))


class Files:
    """Files whose records carry the ids 0, 1, 2 and so on: each file continues after the last id of the file before."""

    # The sizes differ, and one file is empty, because splits of a source must handle both.
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
        """Matches the record files only."""
        return str(self.root / "part-*.tfrecord")
