"""The metrics of `pecanctl nodes` are exact for jobs that are read to the end without a failure."""

from __future__ import annotations

import collections
import re
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from soak import SOAK
from test_epochs import PATIENCE_S, Heartbeats, _until

D = tf.data.Dataset
EPOCHS = 2
ROUNDS = 2 if SOAK else 1


def _some(x: tf.Tensor) -> D:
    return D.range(x % 3)


def _third(x: tf.Tensor) -> tf.Tensor:
    return x % 3 != 0


def _twice(x: tf.Tensor) -> tf.Tensor:
    return x * 2


# A pipeline of n source elements, and the number of elements that its steps produce in one epoch. The numbers are written
# as formulas, so that neither Pecan nor TensorFlow decides what is right.
PIPELINES = {
    "scalars": (lambda n: D.range(n).map(_twice), lambda n: {"Range": n, "Map": n}),
    "batch": (lambda n: D.range(n).map(_twice).batch(10), lambda n: {"Range": n, "Map": n, "Batch": -(-n // 10)}),
    # The closing stream batches the partial batches of streams again.
    "remainder": (
        lambda n: D.range(n).filter(_third).batch(10),
        lambda n: {"Range": n, "Filter": n - -(-n // 3), "Batch": -(-(n - -(-n // 3)) // 10)},
    ),
    "closing": (
        lambda n: D.range(n).filter(_third).batch(10).map(_twice),
        lambda n: {"Range": n, "Filter": n - -(-n // 3), "Batch": -(-(n - -(-n // 3)) // 10), "Map": -(-(n - -(-n // 3)) // 10)},
    ),
    "dropped": (
        lambda n: D.range(n).filter(_third).batch(10, drop_remainder=True).map(_twice),
        lambda n: {"Range": n, "Filter": n - -(-n // 3), "Batch": (n - -(-n // 3)) // 10, "Map": (n - -(-n // 3)) // 10},
    ),
    "flat_map": (
        lambda n: D.range(n).flat_map(_some).shuffle(16).batch(8, drop_remainder=True).prefetch(2),
        lambda n: {"Range": n, "FlatMap": n, "Shuffle": n, "Batch": n // 8, "Prefetch": n // 8},
    ),
}


def _elements_by_op(job: dict) -> dict[str, int]:
    """Elements by op. Each pipeline has at most one step of each op."""
    sums: collections.Counter[str] = collections.Counter()
    for node in job.get("nodes", []):
        sums[re.sub(r"Dataset(V\d)?$", "", node["op"])] += int(node.get("elements", 0))
    return dict(sums)


@pytest.mark.parametrize("n", [93, 2_400], ids=["small", "large"])
def test_metrics_of_steps_are_exact_over_epochs(cluster, n):
    link = session.connect(cluster.target, 10)

    def jobs() -> dict[str, dict]:
        return {job["job_id"]: job for job in link.status().get("jobs", [])}

    expected, datasets = {}, []
    for name, (make, counts) in PIPELINES.items():
        for _ in range(ROUNDS):
            before = set(jobs())
            # After the last pass of a repeat no epoch is prefetched, so no elements are produced without a reader.
            dataset = make(n).repeat(EPOCHS).apply(pecan.distribute(cluster.target))
            for _element in dataset:
                pass
            (job,) = set(jobs()) - before
            expected[job] = (name, {op: EPOCHS * count for op, count in counts(n).items()})
            datasets.append(dataset)

    def measured() -> dict[str, tuple[str, dict[str, int]]]:
        now = jobs()
        return {job: (name, _elements_by_op(now[job])) for job, (name, _) in expected.items()}

    # Heartbeats carry metrics and the data plane carries elements, so the last metrics may come late. Later heartbeats change nothing.
    end = time.monotonic() + PATIENCE_S
    while measured() != expected and time.monotonic() < end:
        time.sleep(0.05)
    assert measured() == expected
    _until("workers send more heartbeats", Heartbeats(link).three)
    assert measured() == expected
    assert all(node["node"] and node["op"] for job in jobs().values() for node in job.get("nodes", []))
