"""The data of all scenarios: records with the ids 0, 1, 2 and so on, in files of different lengths, and the elements of a local run."""

from __future__ import annotations

import os
import pathlib
import random
import zlib

import numpy as np
import tensorflow as tf

# In full size the data has ten times as many elements. The number of elements in flight stays the same.
FULL = bool(os.environ.get("PECAN_FAULTS_FULL"))
TOTAL = 10_000 if FULL else 1_000
PAYLOAD = 8 << 10
GROUP = 16
# The least number of streams of a scenario whose victim must have some: with fewer, a worker may have none.
SPREAD = 10


class Records:
    """Files whose records carry the ids 0 to total-1. The id determines the bytes of a record.

    Attributes:
        sizes: The number of records in each file.
        files: The paths of the files.
        total: The number of records.
        streams: The option `streams` of jobs over them.
    """

    def __init__(
        self, root: pathlib.Path, total: int, files: int = 40, payload: int = PAYLOAD, streams: int | str = "auto"
    ) -> None:
        self.payload, self.total, self.streams = payload, total, streams
        self.sizes = uneven(total, files)
        self.files = []
        first = 0
        for k, size in enumerate(self.sizes):
            self.files.append(str(root / f"part-{k:02}.tfrecord"))
            with tf.io.TFRecordWriter(self.files[-1]) as writer:
                for i in range(first, first + size):
                    writer.write(i.to_bytes(8, "little") + random.Random(i).randbytes(payload))
            first += size

    def file_of(self, number: int) -> str:
        """The file that holds a record."""
        for path, size in zip(self.files, self.sizes):
            if number < size:
                return path
            number -= size
        raise IndexError(number)

    def files_of(self, stream: int, streams: int) -> list[str]:
        """The files that a stream reads. Each group of 16 streams has a contiguous part of the files, and takes them in turn."""
        first, step, stop = stream, streams, len(self.files)
        if streams > GROUP:
            group = stream // GROUP * GROUP
            below = min(group + GROUP, streams)
            begins = [stop // streams * s + min(s, stop % streams) for s in (group, below)]
            first, step, stop = begins[0] + stream - group, below - group, begins[1]
        return self.files[first:stop:step]

    def dataset(self) -> tf.data.Dataset:
        """Elements of three components: the id, the bytes, and a number computed from both."""
        files = tf.data.Dataset.from_tensor_slices(self.files)
        return files.interleave(tf.data.TFRecordDataset, cycle_length=2).map(self._parse)

    def _parse(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        number = tf.io.decode_raw(tf.strings.substr(record, 0, 8), tf.int64)[0]
        payload = tf.ensure_shape(tf.io.decode_raw(tf.strings.substr(record, 8, self.payload), tf.uint8), [self.payload])
        return number, payload, tf.reduce_sum(tf.cast(payload, tf.int64)) * (number + 1)

    def truth(self) -> dict[int, int]:
        """The CRC of each element of an independent local run, by id."""
        found = {int(element[0]): crc(element) for element in self.dataset().as_numpy_iterator()}
        assert sorted(found) == list(range(self.total))
        return found


def uneven(total: int, files: int) -> list[int]:
    """Sizes of files: some are empty, some have one or two records, and the others are near a mean."""
    mean = total // (files // 2)
    sizes = [(0, 1, 2, mean - 1, mean, mean + 1)[k % 6] for k in range(files)]
    short = total - sum(sizes)
    sizes[-1] += max(short, 0)
    for k in range(files):
        cut = min(max(-short, 0), sizes[k])
        sizes[k], short = sizes[k] - cut, short + cut
    assert sum(sizes) == total and {0, 1, 2} <= set(sizes)
    return sizes


def crc(element: tuple) -> int:
    """CRC over the bytes of all components of an element, which are tensors or arrays."""
    value = 0
    for part in element:
        value = zlib.crc32(np.ascontiguousarray(part), value)
    return value
