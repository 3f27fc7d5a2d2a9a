"""The number of a job's streams follows its data."""

from __future__ import annotations

import math

import numpy as np
import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from tensorflow.python.data.experimental.ops import testing

D = tf.data.Dataset
FILES, FILE_BYTES, RECORD_BYTES = 64, 16 << 20, 1 << 20
# Records of each file whose mixing is measured, and the buffer of the shuffle.
PER_FILE, BUFFER = 100, 100
# Records of this size make files that are worth eight open streams.
WIDE_BYTES = 64 << 10


def test_the_sizes_of_the_files_decide_the_number_of_streams(cluster, tmp_path):
    names = [str(tmp_path / f"{k}.bin") for k in range(FILES)]
    for name in names:
        with open(name, "wb") as file:
            file.truncate(FILE_BYTES)
    dataset = D.from_tensor_slices(names).interleave(lambda name: tf.data.FixedLengthRecordDataset(name, RECORD_BYTES))
    # The job is created here, and nothing is read.
    dataset = dataset.apply(pecan.distribute(cluster.target, job_name="files"))
    plan = plan_of(cluster, "files")
    # 32 MB make a stream worth opening. Without the sizes, each file would have a stream.
    assert plan["num_streams"] == FILES * FILE_BYTES >> 25, plan
    assert "the files have 1024 MB" in plan["streams_why"]
    del dataset


def test_few_large_files_have_a_stream_each(cluster, tmp_path):
    names = sparse_records(tmp_path, 20, 4 * FILE_BYTES)
    dataset = D.from_tensor_slices(names).interleave(lambda name: tf.data.TFRecordDataset(name).map(tf.strings.length))
    dataset = dataset.apply(pecan.distribute(cluster.target, job_name="few"))
    plan = plan_of(cluster, "few")
    # One for every four files would be 5 streams.
    assert plan["num_streams"] == 20, plan
    assert "each of the 20 splits has a stream" in plan["streams_why"]
    del dataset


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_shuffle_of_records_that_nobody_has_counted_has_many_streams(cluster, tmp_path, deterministic):
    names = sparse_records(tmp_path, FILES, FILE_BYTES)
    dataset = D.from_tensor_slices(names).interleave(lambda name: tf.data.TFRecordDataset(name).map(tf.strings.length))
    dataset = dataset.shuffle(64).batch(2)
    options = {"deterministic": True} if deterministic else {}
    for name in "first", "second":
        read = dataset.apply(pecan.distribute(cluster.target, job_name=name, **options))
        plan = plan_of(cluster, name)
        # A stream has eight times its 16th of the buffer: 33 of 1,024 records. Without the estimate, S would be 16.
        assert plan["num_streams"] == FILES * FILE_BYTES // RECORD_BYTES // (8 * 64 // 16 + 1), plan
        assert "about 1024 elements (estimated from the sizes of sampled records)" in plan["streams_why"]
        assert plan["streams_why"] in " ".join(plan["reasons"])
        del read


def plan_of(cluster, name):
    (job,) = [job for job in session.connect(cluster.target, 10).status()["jobs"] if job.get("name") == name]
    return job["plan"]


def sparse_records(directory, files, size):
    """Writes files of records whose data are holes, so that they have the index and the size of real records."""
    whole = directory / "one"
    with tf.io.TFRecordWriter(str(whole)) as writer:
        writer.write(bytes(RECORD_BYTES - 16))
    header = whole.read_bytes()[:12]
    names = [str(directory / f"{k}.tfrecord") for k in range(files)]
    for name in names:
        with open(name, "wb") as file:
            for offset in range(0, size, RECORD_BYTES):
                file.seek(offset)
                file.write(header)
            file.truncate(size)
    return names


def mixing(output: np.ndarray) -> tuple[float, float, float]:
    """Measures how well an epoch mixes its source, in windows of 256 elements.

    Returns:
        The spread of source positions in a window, relative to a uniform permutation. The mean distance of an element
        from its position, relative to the source. The number of files in a window. The first and the last are medians.
    """
    windows = output[: len(output) // 256 * 256].reshape(-1, 256)
    spread = np.median(windows.std(axis=1)) * math.sqrt(12) / len(output)
    distance = np.abs(output - np.arange(len(output))).mean() / len(output)
    return float(spread), float(distance), float(np.median([len(np.unique(w // PER_FILE)) for w in windows]))


@pytest.mark.parametrize("streams", ["auto", FILES])
def test_a_worker_of_two_slots_mixes_at_least_as_well_as_a_local_run(tmp_path, streams):
    names = [str(tmp_path / f"{k}.bin") for k in range(FILES)]
    for k, name in enumerate(names):
        with open(name, "wb") as file:
            for record in range(PER_FILE):
                file.seek(record * WIDE_BYTES)
                file.write(np.int64(k * PER_FILE + record).tobytes())
            file.truncate(PER_FILE * WIDE_BYTES)
    dataset = D.from_tensor_slices(names).flat_map(lambda name: tf.data.FixedLengthRecordDataset(name, WIDE_BYTES))
    dataset = dataset.map(lambda record: tf.io.decode_raw(record, tf.int64)[0]).shuffle(BUFFER)
    with pecan.LocalCluster(1, worker=pecan.WorkerConfig("127.0.0.1:1", max_streams=2)) as cluster:
        # Elements that cost nothing come in runs, because a worker sends those that are ready together.
        ours = dataset.apply(testing.sleep(1_000)).apply(pecan.distribute(cluster.target, streams=streams))
        output = np.concatenate(list(ours.batch(100).as_numpy_iterator()))
    local = np.concatenate(list(dataset.batch(100).as_numpy_iterator()))
    assert sorted(output) == sorted(local) == list(range(FILES * PER_FILE))
    found, wanted = mixing(output), mixing(local)
    assert all(a >= b for a, b in zip(found, wanted, strict=True)), (found, wanted)
