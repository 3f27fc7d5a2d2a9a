"""Caches downstream of a batch over filtered rows: the short last batch of a stream belongs to the closing stream."""

from __future__ import annotations

import pecan
import pytest
import tensorflow as tf
from cache_service import D, Service, check_epochs, nothing
from soak import cases


def filtered(n: int = 103) -> D:
    return D.range(n).filter(lambda x: x % 3 > 0)


def loose(batch: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    return tf.RaggedTensor.from_row_lengths(tf.repeat(batch, batch % 3), batch % 3), batch


PIPELINES = {
    "at the batch": lambda step: filtered().batch(10).apply(step()),
    "before a prefetch": lambda step: filtered().batch(8, drop_remainder=True).apply(step()).prefetch(2),
    "before a map": lambda step: filtered().batch(10).apply(step()).map(lambda x: x + 1),
    "after a map": lambda step: filtered().batch(10).map(lambda x: 3 * x).apply(step()).map(lambda x: x + 1),
    "at the end": lambda step: filtered().batch(7).map(lambda x: (3 * x, x - 1)).apply(step()),
    "other types": lambda step: filtered().batch(7).map(tf.strings.as_string).apply(step()).map(tf.strings.length),
    "ragged": lambda step: filtered().batch(7).map(loose).apply(step()).map(lambda ragged, x: (ragged.to_tensor(shape=[None, 2]), x)),
    "a full batch in each stream": lambda step: filtered(3 * 16 * 8).batch(8).map(lambda x: 2 * x).apply(step()),
    "fewer rows than a batch": lambda step: filtered(20).batch(10).map(lambda x: 2 * x).apply(step()),
    "random by index": lambda step: filtered().batch(9).apply(step()).map(lambda x: x + tf.random.uniform([], maxval=9, dtype=tf.int64)),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("deterministic", cases([True, False], soak=[False]))
def test_an_epoch_that_reads_equals_one_that_computes(shared, name, deterministic):
    # Which rows a local run drops is another choice.
    compared = "" if name in ("before a prefetch", "random by index") else "rows"
    written, streams = check_epochs(shared, PIPELINES[name], compared, deterministic)
    assert len(written) == streams


def test_a_worker_dies_while_a_stream_keeps_back_rows(tmp_path):
    def build(step):
        return filtered(2_000).batch(16).map(lambda x: 2 * x).apply(step())

    local = sorted(int(x) for batch in build(nothing) for x in batch)
    with Service(tmp_path) as service:
        dataset = service.read(build(pecan.cache))
        for epoch in range(3):
            got = []
            for n, batch in enumerate(dataset):
                got += batch.numpy().tolist()
                if n == 40:
                    service.kill()
            assert sorted(got) == local, f"epoch {epoch}"
