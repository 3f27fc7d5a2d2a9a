"""The number of a job's streams follows its data."""

from __future__ import annotations

import pecan
import tensorflow as tf
from pecan._src.client import session

D = tf.data.Dataset
FILES, FILE_BYTES, RECORD_BYTES = 64, 16 << 20, 1 << 20


def test_the_sizes_of_the_files_decide_the_number_of_streams(cluster, tmp_path):
    names = [str(tmp_path / f"{k}.bin") for k in range(FILES)]
    for name in names:
        with open(name, "wb") as file:
            file.truncate(FILE_BYTES)
    dataset = D.from_tensor_slices(names).interleave(lambda name: tf.data.FixedLengthRecordDataset(name, RECORD_BYTES))
    # The job is created here, and nothing is read.
    dataset = dataset.apply(pecan.distribute(cluster.target, job_name="files"))
    (job,) = [job for job in session.connect(cluster.target, 10).status()["jobs"] if job.get("name") == "files"]
    # 32 MB make a stream worth opening. Without the sizes, each file would have a stream.
    assert job["plan"]["num_streams"] == FILES * FILE_BYTES >> 25, job["plan"]
    assert "the files have 1024 MB" in job["plan"]["streams_why"]
    del dataset
