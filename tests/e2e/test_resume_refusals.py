"""A position that does not fit, or that is unknown, is refused, and nothing changes."""

import json

import pecan
import pytest
import tensorflow as tf

from tests.e2e.test_resume import _numbers, _strings

D = tf.data.Dataset


BAD = {
    "another graph": (lambda c: D.range(201).map(lambda i: i * 3), {}, "graph"),
    "another seed": (lambda c: _numbers(), {"seed": 6}, "seed"),
    "another mode": (lambda c: _numbers(), {"deterministic": False}, "mode"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_of_another_dataset_or_job_is_refused(cluster, name):
    """L3: the iterator keeps its own position."""
    make, options, word = BAD[name]
    iterator = pecan.Iterator(_numbers().apply(pecan.distribute(cluster.target, deterministic=True, seed=5)))
    next(iterator)
    options = {"deterministic": True, "seed": 5, **options}
    other = pecan.Iterator(make(cluster).apply(pecan.distribute(cluster.target, **options)))
    with pytest.raises(ValueError, match=word):
        other.load_state_dict(iterator.state_dict())
    assert int(next(other)) % 3 == 0


def test_a_damaged_state_is_refused(cluster):
    """L3: the token is truncated anywhere, has any character changed, or has a length of 1 GiB."""
    iterator = pecan.Iterator(_numbers().apply(pecan.distribute(cluster.target)))
    next(iterator)
    token = iterator.state_dict()["token"]
    assert len(token) < 4096
    bad = [token[:at] for at in range(len(token))]
    bad += [token[:at] + chr(ord(token[at]) ^ 1) + token[at + 1 :] for at in range(len(token))]
    bad += ["", "x" * (1 << 30), token + "A", token[:9] + "\0" + token[9:], token + "\0", token + "\ud800"]
    for text in bad:
        with pytest.raises(ValueError, match="load a state"):
            iterator.load_state_dict({"token": text})
    for state in (None, token, {}, {"token": 5}, {"token": b"x"}):
        with pytest.raises(ValueError, match="token"):
            iterator.load_state_dict(state)
    for text in ("", "{", token, "5", json.dumps({"token": token[:-1]})):
        with pytest.raises(pecan.InvalidArgumentError):
            iterator.deserialize(text)
    # No refused state changed the position.
    assert len(list(iterator)) == 199


def test_an_unknown_position_is_refused(cluster):
    """L3: the position is after the last delivered element, or too far back."""
    dataset = _strings(3000).apply(pecan.distribute(cluster.target))
    with pytest.raises(ValueError, match="0 were returned"):
        pecan.state_dict(dataset, consumed=1)
    for _ in dataset.take(2500):
        pass
    with pytest.raises(ValueError, match="only the last 1024 deliveries"):
        pecan.state_dict(dataset, consumed=10)
    with pytest.raises(ValueError, match="at least 0"):
        pecan.state_dict(dataset, consumed=-1)
    with pytest.raises(ValueError, match="64 bits"):
        pecan.state_dict(dataset, consumed=1 << 63)
    with pytest.raises(TypeError, match="consumed"):
        pecan.state_dict(dataset, consumed="10")
    one, two = iter(dataset), iter(dataset)
    for _ in range(5):
        next(one), next(two)
    with pytest.raises(ValueError, match="two iterators"):
        pecan.state_dict(dataset, consumed=2500)
    with pytest.raises(ValueError, match="exactly one"):
        pecan.state_dict(D.zip((dataset, dataset)), consumed=1)
    with pytest.raises(ValueError, match="this one has 0"):
        pecan.Iterator(D.range(3))
    shared = D.range(3).apply(pecan.distribute(cluster.target, job_name="shared-state"))
    with pytest.raises(NotImplementedError, match="shared by its name"):
        pecan.state_dict(shared, consumed=0)
    everywhere = D.range(3).apply(pecan.distribute(cluster.target, processing_mode="off"))
    with pytest.raises(NotImplementedError, match="OFF"):
        pecan.state_dict(everywhere, consumed=0)
