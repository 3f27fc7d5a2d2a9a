"""The steps upstream of a cached step are ordered before their elements are stored."""

from __future__ import annotations

import pecan
import pytest
import tensorflow as tf
from cache_service import Service, until
from pecan._src.client import session

D = tf.data.Dataset
ELEMENTS, STREAMS, SIDE, LEFT, ROUNDS = 5_000, 60, 96, 8, 96
# Epochs that are opened before the order is decided keep the registered one.
MOST_EPOCHS = 6


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
    """Elements of the steps of the newest job, in all orders."""
    return sum(service.produced().values())


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_badly_ordered_prefix_is_ordered_before_it_is_stored(tmp_path, deterministic):
    """The expensive step runs on whole images, and a later step drops most of its result."""
    local = read(D.range(ELEMENTS).map(image).map(cropped).map(expensive))
    with Service(tmp_path, workers=1) as service:
        dataset = service.read(
            D.range(ELEMENTS).map(image).map(expensive).map(cropped), cache="auto", order_tolerance="exact", streams=STREAMS,
            deterministic=deterministic, seed=1,
        )

        def check_epoch() -> None:
            got = read(dataset)
            assert (got if deterministic else sorted(got)) == local

        check_epoch()
        until(lambda: explained(service).get("cache_decision"), "nothing is decided about a cache")
        found = explained(service)
        *_, registered, last = [step["node"] for step in found["steps"]]
        decision = found["cache_decision"]
        assert decision["node"] == last, decision
        assert decision["order"].index(last) < decision["order"].index(registered), decision
        assert "the steps have the decided order, because the registered one would" in decision["why"], decision
        assert "the steps have the decided order" in " ".join(str(pecan.explain(dataset).cache).split())
        for _ in range(MOST_EPOCHS):
            if service.job()["cache"]["state"] == "used":
                break
            check_epoch()
        status = service.job()["cache"]
        assert status["segments"] == status["streams"], status
        # All segments have the key of the order. It is not that of the plan.
        (planned,) = [one["plan"]["key"] for one in found["cache_candidates"] if one["node"] == last]
        assert status["key"] != planned
        assert {path.name.split("-")[1] for path in service.segments()} == {status["key"]}
        before = computed(service)
        check_epoch()
        assert computed(service) == before, "an epoch computes what is stored"
        # Another job of the same dataset begins in this order, and reads.
        other = service.read(
            D.range(ELEMENTS).map(image).map(expensive).map(cropped), cache="auto", order_tolerance="exact", streams=STREAMS,
            deterministic=deterministic, seed=1,
        )
        got = read(other)
        assert (got if deterministic else sorted(got)) == local
        assert explained(service)["cache_decision"]["order"] == decision["order"]
        assert sum(int(node.get("elements", 0)) for node in service.job().get("nodes", []) if "Map" in node["op"]) == 0
