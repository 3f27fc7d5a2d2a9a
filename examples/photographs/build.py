"""Builds the demo's records: labelled crops of real photographs, JPEG-encoded, in many TFRecord files.

The label of a crop is the number of its photograph. The crops, their order and their encoding depend only on the size
and on the bytes of the photographs. A complete set has a file `complete.json` with the size and the photographs'
hashes. Later runs use the set if these are the same, and else build it again.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import shutil
import sys
import time

import numpy as np
import progress
import sources
import tensorflow as tf
from PIL import Image

MARKER = "complete.json"
# Increase this number when the contents of a record change. It makes existing sets invalid.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the demo builds: `files` training files with `per_file` crops of `pixels` x `pixels` each."""

    files: int
    per_file: int
    evaluation_files: int
    pixels: int
    wallpapers: bool = False


SIZES = {
    "small": Size(files=8, per_file=96, evaluation_files=1, pixels=160),
    "medium": Size(files=96, per_file=160, evaluation_files=4, pixels=512),
    "large": Size(files=192, per_file=192, evaluation_files=8, pixels=512, wallpapers=True),
}


@dataclasses.dataclass(frozen=True)
class Records:
    """A complete set of records."""

    training: list[str]
    evaluation: list[str]
    labels: list[str]
    examples: int
    evaluation_examples: int
    bytes: int


def records(size_name: str, root: pathlib.Path) -> Records:
    """Returns the records of a size under `root`. Builds them if the set is incomplete."""
    size = SIZES[size_name]
    photographs = list(sources.built_in())
    if size.wallpapers:
        photographs += sources.wallpapers(root / "wallpapers")
    if len(photographs) < 2:
        sys.exit("found fewer than two photographs: install scikit-learn and scikit-image (make demo does)")
    recipe = {
        "format": FORMAT,
        "size": dataclasses.asdict(size),
        "photographs": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in photographs},
    }
    directory = root / size_name
    if not _is_complete(directory, recipe):
        _build(directory, size, photographs, recipe)
    marker = json.loads((directory / MARKER).read_text())
    names = sorted(marker["files"])
    return Records(
        training=[str(directory / name) for name in names if name.startswith("train")],
        evaluation=[str(directory / name) for name in names if name.startswith("eval")],
        labels=[name for name, _ in photographs],
        examples=size.files * size.per_file,
        evaluation_examples=size.evaluation_files * size.per_file,
        bytes=sum(marker["files"].values()),
    )


def _is_complete(directory: pathlib.Path, recipe: dict) -> bool:
    try:
        marker = json.loads((directory / MARKER).read_text())
        return marker["recipe"] == recipe and all(
            (directory / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _build(directory: pathlib.Path, size: Size, photographs: list[tuple[str, pathlib.Path]], recipe: dict) -> None:
    """Writes all files, and the marker last. A set from an interrupted run has no marker and is built again."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    pictures = [np.asarray(Image.open(path).convert("RGB")) for _, path in photographs]
    names = [f"train-{i:04d}.tfrecord" for i in range(size.files)]
    names += [f"eval-{i:04d}.tfrecord" for i in range(size.evaluation_files)]
    print(f"building {len(names) * size.per_file:,} crops of {len(pictures)} photographs in {directory}")
    started = time.monotonic()
    line = progress.Line()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = [pool.submit(_write_file, directory / name, size, pictures) for name in names]
        for done, _ in enumerate(concurrent.futures.as_completed(tasks), start=1):
            line.show(done / len(tasks), f"{done}/{len(tasks)} files, {time.monotonic() - started:.0f} s")
        files = {name: task.result() for name, task in zip(names, tasks, strict=True)}
    marker = directory / (MARKER + ".part")
    marker.write_text(json.dumps({"recipe": recipe, "files": files}, indent=1))
    marker.rename(directory / MARKER)


def _write_file(path: pathlib.Path, size: Size, pictures: list[np.ndarray]) -> int:
    """Writes one file of crops. Returns its size in bytes."""
    chance = random.Random(f"{FORMAT}/{path.name}")
    labels = [i % len(pictures) for i in range(size.per_file)]
    chance.shuffle(labels)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in labels:
            writer.write(_example(_crop(pictures[label], size.pixels, chance), label))
    return path.stat().st_size


def _crop(picture: np.ndarray, pixels: int, chance: random.Random) -> np.ndarray:
    """Returns a random square of 30-80 % of the shorter side, resized to `pixels` x `pixels`."""
    height, width = picture.shape[:2]
    side = int(min(height, width) * chance.uniform(0.3, 0.8))
    top, left = chance.randint(0, height - side), chance.randint(0, width - side)
    square = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(square.resize((pixels, pixels), Image.Resampling.BICUBIC))


def _example(pixels: np.ndarray, label: int) -> bytes:
    encoded = tf.io.encode_jpeg(pixels, quality=92).numpy()
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
        )
    ).SerializeToString()
