"""Trains a small CNN on real photographs: once through Pecan's private cluster, once with local tf.data.

    make demo                 # about three minutes on two cores after installation
    make demo SIZE=small      # a smoke test
    make demo SIZE=large      # more photographs and more crops

The two runs differ in one line: `dataset.apply(pecan.distribute())`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import build
import keras
import pipeline
import progress
import tensorflow as tf

EPOCHS = 2


@dataclasses.dataclass
class Stopwatch:
    """Measures the time of a training loop, and its waits for the next batch.

    It does not run between epochs. TensorFlow sometimes takes up to ten seconds to delete a finished iterator, because
    a thread of its autotuning sleeps. That happens with and without Pecan.

    Attributes:
        spent_s: Seconds in the loop.
        waited_s: Seconds in `next()`.
        first_s: Seconds until the first batch.
    """

    spent_s: float = 0.0
    waited_s: float = 0.0
    first_s: float = 0.0

    def over(self, batches: Iterable) -> Iterator:
        """Yields the batches, and measures the time."""
        asked = time.perf_counter()
        iterator = iter(batches)
        while True:
            batch = next(iterator, None)
            came = time.perf_counter()
            self.waited_s += came - asked
            self.spent_s += came - asked
            if batch is None:
                return
            self.first_s = self.first_s or self.waited_s
            yield batch
            asked = time.perf_counter()
            self.spent_s += asked - came


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of one run. Times are in seconds; `waited` is the share of time in `next()`."""

    name: str
    accuracy: float
    images_per_s: float
    waited: float
    first_batch_s: float
    seconds: float


def small_cnn(labels: int) -> keras.Model:
    """Returns a small model. Preparing an image costs more than a training step, as with a fast accelerator."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((pipeline.PIXELS, pipeline.PIXELS, 3)),
            keras.layers.Conv2D(16, 5, strides=4, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(48, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(labels),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(name: str, dataset: tf.data.Dataset, data: build.Records, evaluation: tf.data.Dataset) -> Result:
    """Trains a new model on the dataset for two epochs, and evaluates it."""
    print(f"\n{name}")
    model = small_cnn(len(data.labels))
    warm_up(model)
    watch, images, per_epoch = Stopwatch(), 0, data.examples // pipeline.BATCH
    for epoch in range(EPOCHS):
        line = progress.Line()
        for step, (batch, labels) in enumerate(watch.over(dataset), start=1):
            seen = model.train_on_batch(batch, labels, return_dict=True)
            images += int(labels.shape[0])
            line.show(
                min(1.0, step / per_epoch),
                f"epoch {epoch + 1}/{EPOCHS}  batch {step}/{per_epoch}  loss {float(seen['loss']):.2f}"
                f"  {images / watch.spent_s:.0f} images/s  waiting {watch.waited_s / watch.spent_s:.0%}",
            )
        model.reset_metrics()
    accuracy = model.evaluate(evaluation, verbose=0, return_dict=True)["accuracy"]
    spent, waited = watch.spent_s, watch.waited_s
    return Result(name, float(accuracy), images / spent, waited / spent, watch.first_s, spent)


def warm_up(model: keras.Model) -> None:
    """Traces the training step before the measurement. A step with learning rate 0 does not change the weights."""
    rate = float(model.optimizer.learning_rate)
    model.optimizer.learning_rate = 0.0
    shape = (pipeline.BATCH, pipeline.PIXELS, pipeline.PIXELS, 3)
    model.train_on_batch(tf.zeros(shape, tf.float16), tf.zeros([pipeline.BATCH], tf.int64))
    model.optimizer.learning_rate = rate
    model.reset_metrics()


def table(results: list[Result], labels: int) -> str:
    """Returns the results as a table with one column per run."""
    rows = [
        ("accuracy on unseen crops", lambda r: f"{r.accuracy:.1%}"),
        ("images/s", lambda r: f"{r.images_per_s:,.0f}"),
        ("time the trainer waited", lambda r: f"{r.waited:.1%}"),
        ("first batch after", lambda r: f"{r.first_batch_s:.2f} s"),
        ("two epochs took", lambda r: f"{r.seconds:.1f} s"),
    ]
    lines = ["".ljust(28) + "".join(r.name.rjust(24) for r in results)]
    lines += [title.ljust(28) + "".join(show(r).rjust(24) for r in results) for title, show in rows]
    return "\n".join([*lines, f"({labels} photographs: guessing gives {1 / labels:.1%})"])


def main() -> None:
    """Builds the records, trains twice, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(build.SIZES), default="medium", help="how much to build and train on")
    parser.add_argument(
        "--data", type=pathlib.Path, default=pathlib.Path("demo-data"), help="directory of the records"
    )
    parser.add_argument("--only", choices=("pecan", "local"), help="do only one of the two runs")
    arguments = parser.parse_args()

    data = build.records(arguments.size, arguments.data)
    print(
        f"{data.examples:,} training crops of {len(data.labels)} photographs in {len(data.training)} files;"
        f" {data.bytes / 1e6:,.0f} MB on disk under {arguments.data / arguments.size}"
    )
    evaluation = pipeline.evaluation(data.evaluation, data.evaluation_examples).cache()
    results = []
    if arguments.only != "local":
        import pecan

        dataset = pipeline.training(data.training)
        dataset = dataset.apply(pecan.distribute())
        results.append(train("pecan.distribute()", dataset, data, evaluation))
    if arguments.only != "pecan":
        dataset = pipeline.training(data.training)
        results.append(train("local tf.data", dataset, data, evaluation))
    print("\n" + table(results, len(data.labels)))


if __name__ == "__main__":
    main()
