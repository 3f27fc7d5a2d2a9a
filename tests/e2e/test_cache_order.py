"""The steps upstream of a cached step are ordered before their elements are stored."""

from __future__ import annotations

import pecan
import pytest
import tensorflow as tf
from cache_service import Service, until
from pecan._src.client import session

D = tf.data.Dataset
# A busy host needs several trials, and all of them cost at most 2 % of an epoch in the registered order.
ELEMENTS, STREAMS, SIDE, LEFT, ROUNDS = 16_000, 60, 96, 8, 96


def image(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return i, tf.reshape(tf.range(SIDE * SIDE * 3, dtype=tf.float32), [SIDE, SIDE, 3]) + tf.cast(i, tf.float32)


def expensive(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    for _ in range(ROUNDS):
        x = tf.sqrt(x * x + 1.0)
    return i, x


def cropped(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return i, x[:LEFT, :LEFT]


def read(dataset: D) -> list[tuple[int, bytes]]:
    return [(int(i), x.numpy().tobytes()) for i, x in dataset]


def explained(service: Service) -> dict:
    return session.connect(service.dispatcher.target, 10).explain(service.job()["job_id"])


def computed(service: Service) -> int:
    """Elements that maps have computed for the newest job, in all orders."""
    return sum(n for op, n in service.produced().items() if "Map" in op)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_badly_ordered_prefix_is_ordered_before_it_is_stored(tmp_path, deterministic):
    """The expensive step runs on whole images, and a later step drops most of its result."""
    local = read(D.range(ELEMENTS).map(image).map(cropped).map(expensive, num_parallel_calls=2))
    with Service(tmp_path, workers=1) as service:
        def badly_ordered() -> D:
            dataset = D.range(ELEMENTS).map(image).map(expensive).map(cropped)
            return service.read(dataset, cache="auto", order_tolerance="exact", streams=STREAMS, deterministic=deterministic, seed=1)

        def check_epoch(dataset: D) -> None:
            got = read(dataset)
            assert (got if deterministic else sorted(got)) == local

        dataset = badly_ordered()
        for n, (i, x) in enumerate(dataset):
            assert x.numpy().tobytes() == local[int(i)][1]
            if n % 50 == 0:
                # The test does not read during a trial, because that would slow the trial down.
                until(lambda: "is trying the order" not in service.job()["order"]["why"], "the trial does not end")
                if explained(service).get("cache_decision"):
                    break
        found = explained(service)
        decision = found["cache_decision"]
        *_, registered, last = [step["node"] for step in found["steps"]]
        assert decision["node"] == last, decision
        assert decision["order"].index(last) < decision["order"].index(registered), decision
        assert "the steps have the decided order, because the registered one would" in decision["why"], decision
        assert "the steps have the decided order" in " ".join(str(pecan.explain(dataset).cache).split())
        # This epoch runs in the order of the cache, and stores it.
        check_epoch(dataset)
        status = service.job()["cache"]
        assert status["segments"] == status["streams"], status
        (planned,) = [one["plan"]["key"] for one in found["cache_candidates"] if one["node"] == last]
        assert status["key"] != planned
        assert {path.name.split("-")[1] for path in service.segments()} == {status["key"]}
        before = computed(service)
        check_epoch(dataset)
        assert computed(service) == before, "an epoch computes what is stored"
        # Another job of the same dataset begins in this order, and reads.
        check_epoch(badly_ordered())
        assert explained(service)["cache_decision"]["order"] == decision["order"]
        assert computed(service) == 0, "another job computes what is stored"
