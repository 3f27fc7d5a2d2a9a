"""Runs the Python blocks of a page, in order and in one namespace, against a private service.

    python tests/docs/run_page.py docs/guides/resume.md DIRECTORY

A page names the service dispatcher.example:5050 and its files /data/.... This script replaces both. The first pages leave
out the function that parses a record, and the model. This script defines them.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SERVICE, FILES = "dispatcher.example:5050", "/data/"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[int, str]]:
    """The line and the text of each Python block."""
    return [(page.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(page)]


def write_records(directory: pathlib.Path) -> None:
    """Writes 48 small labelled images into four TFRecord files for the pages to read."""
    import numpy as np
    import tensorflow as tf

    directory.mkdir(parents=True)
    values = np.random.default_rng(1)
    for number in range(4):
        with tf.io.TFRecordWriter(str(directory / f"part-{number}.tfrecord")) as writer:
            for label in range(12):
                image = tf.io.encode_jpeg(values.integers(0, 256, (48, 48, 3), dtype=np.uint8)).numpy()
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label % 10])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def left_out() -> dict[str, object]:
    """What the first pages leave out: the function `parse`, and `model`."""
    import tensorflow as tf

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        example = tf.io.parse_single_example(record, features)
        return tf.ensure_shape(tf.io.decode_jpeg(example["image"], channels=3), [48, 48, 3]) / 255, example["label"]

    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {"parse": parse, "model": model}


def run(page: pathlib.Path, directory: pathlib.Path) -> None:
    """Runs the blocks of one page. An exception names the line of the page."""
    import pecan

    files = directory / "data"
    write_records(files / "photographs")
    os.chdir(directory)
    text, names = page.read_text(), {"__name__": "__main__"}
    if page.stem in ("README", "index"):
        names |= left_out()
    with pecan.LocalCluster(workers=2) as cluster:
        for line, source in blocks(text):
            source = source.replace(SERVICE, cluster.target).replace(FILES, f"{files}/")
            # TensorFlow converts functions to graphs from their source, which `inspect` finds under the file's name.
            block = directory / f"{page.stem}_line_{line + 1}.py"
            block.write_text("\n" * line + source)
            exec(compile(block.read_text(), str(block), "exec"), names)


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve())
