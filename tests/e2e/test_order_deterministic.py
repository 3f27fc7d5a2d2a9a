"""In mode deterministic another order of the steps changes no byte, and a saved position contains the order of its epoch."""

from __future__ import annotations

import itertools
import json
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session
from script import ROOT, Script

from tests.e2e.test_epochs import PATIENCE_S

D = tf.data.Dataset
N, SHARES = 16_000, 4
EPOCHS, READ, STOP = 3, 40, 15
# No other test uses this seed, so it identifies the job.
SEED = 710_713


def _image(i):
    return i, tf.reshape(tf.range(256 * 256 * 3, dtype=tf.float32), [256, 256, 3]) + tf.random.uniform([])


def _expensive(i, x):
    # IEEE 754 defines how these operations round, so vectorization does not change the results.
    for _ in range(4):
        x = tf.sqrt(x * x + 1.0)
    return i, x


def _cropped(i, x):
    return i, x[:8, :8]


def _share(k):
    return D.range(k * (N // SHARES), (k + 1) * (N // SHARES))


def _badly_ordered() -> tf.data.Dataset:
    # The dataset is large enough for a trial to pay off, and the test reads only the start of each epoch. It has few shares,
    # because each share is a stream, and a stream takes time to open.
    dataset = D.range(SHARES).flat_map(_share).shuffle(50).map(_image).map(_expensive).map(_cropped)
    return dataset.apply(tf.data.experimental.assert_cardinality(N))


def _distributed(target: str, order: str) -> tf.data.Dataset:
    return _badly_ordered().apply(
        pecan.distribute(target, deterministic=True, seed=SEED, order=order, max_outstanding_bytes=1 << 16)
    )


def _read(elements, number: int) -> list[tuple[int, str]]:
    return [(int(i), x.numpy().tobytes().hex()) for i, x in itertools.islice(elements, number)]


def _job(link) -> dict:
    """The job with an order among the jobs with this seed."""
    (job,) = [job for job in link.status()["jobs"] if job["options"].get("seed") == str(SEED) and job.get("epochs") and "order" in job]
    return job


def _is_ordered(job: dict, number: int) -> bool:
    (epoch,) = [e for e in job["epochs"] if int(e.get("epoch", 0)) == number]
    return epoch.get("ordered", False)


@pytest.fixture(scope="module")
def undisturbed(cluster) -> list[list[tuple[int, str]]]:
    """The first elements of epochs in the registered order, on two workers."""
    dataset = _distributed(cluster.target, "off")
    epochs = [_read(dataset, READ) for _ in range(EPOCHS)]
    assert len({str(epoch) for epoch in epochs}) == EPOCHS
    return epochs


def _until_decided(link, dataset) -> None:
    """Reads an epoch until the order of the next one is decided."""
    end = time.monotonic() + PATIENCE_S
    for _ in dataset:
        # The test does not read during a trial, because that would slow the trial down.
        while "is trying the order" in (order := _job(link)["order"])["why"] and time.monotonic() < end:
            time.sleep(0.05)
        if order["state"] not in ("measuring", "proposed"):
            return
        assert time.monotonic() < end, order


RESUME = """
import json
from pecan._src.client import session
from tests.e2e.test_order_deterministic import READ, STOP, _distributed, _is_ordered, _job, _read
state = json.load(sys.stdin)
iterator = pecan.Iterator(_distributed(sys.argv[1], "auto"))
iterator.load_state_dict(state)
rest = _read(iterator, READ - STOP)
job = _job(session.connect(sys.argv[1].removeprefix("pecan://"), 10))
print(json.dumps([rest, _is_ordered(job, 2), job["order"]["state"]]))
"""


def _resume_in_another_process(target: str, state: dict) -> list:
    with Script(RESUME, target, directory=ROOT) as script:
        code, out, err = script.rest(PATIENCE_S, json.dumps(state))
    assert code == 0, err
    return json.loads(out)


def test_an_adopted_order_changes_no_byte(cluster, undisturbed):
    """O4: the order is adopted during the first epoch. Another process resumes in this order at a dispatcher that does not know it."""
    other = pecan.LocalCluster(workers=1)
    try:
        link = session.connect(other.target.removeprefix("pecan://"), 10)
        dataset = _distributed(other.target, "auto")
        first = iter(dataset)
        assert _read(first, READ) == undisturbed[0]
        assert not _is_ordered(_job(link), 0)
        _until_decided(link, first)
        del first
        other.add_workers(2)
        assert link.explain(_job(link)["job_id"])["tolerance"] == "ORDER_TOLERANCE_EXACT"
        # The second epoch may have been prefetched before the order was adopted. The third was not.
        assert _read(dataset, READ) == undisturbed[1]
        third = pecan.Iterator(dataset)
        found = _read(third, STOP)
        assert _is_ordered(_job(link), 2), _job(link)["order"]
        state = third.state_dict()
        assert found + _read(third, READ - STOP) == undisturbed[2]
        del third
    finally:
        other.stop()
    with pytest.raises(ValueError, match='order="off"'):
        pecan.load_state_dict(_distributed(cluster.target, "off"), state)
    rest, ordered, known = _resume_in_another_process(cluster.target, state)
    assert [tuple(element) for element in rest] == undisturbed[2][STOP:]
    assert ordered
    assert known in ("measuring", "proposed")
