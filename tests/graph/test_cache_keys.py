"""The key of drawn values: whatever they depend on is in it, and what follows the cached step is not."""

from __future__ import annotations

import pathlib

import graph_oracle as oracle
import pecan
import tensorflow as tf

D = tf.data.Dataset


def drawn(names: list[str], seed: int, buffer: int = 40, after: int = 1) -> D:
    """Lines of shuffled files with a random number, cached by streams. `after` changes the steps downstream.

    The candidate divides the list into parts, so that its shuffle only orders elements there.
    """
    files = D.from_tensor_slices(names).shuffle(buffer, seed=seed)
    lines = files.interleave(tf.data.TextLineDataset).apply(pecan.cache_candidate("lines"))
    return lines.map(lambda text: (text, tf.random.uniform([]))).apply(pecan.cache()).map(lambda text, number: (text, number + after))


def test_the_key_of_drawn_values_has_the_seeds_of_shuffles(cutgraph: pathlib.Path, tmp_path: pathlib.Path):
    names = []
    for k in range(40):
        names.append(str(tmp_path / f"{k}.txt"))
        pathlib.Path(names[-1]).write_text(f"text {k}")
    datasets = {
        "first": drawn(names, 7), "other steps downstream": drawn(names, 7, after=2).batch(4), "another seed": drawn(names, 8),
        "another buffer": drawn(names, 7, buffer=30),
    }
    cuts = oracle.cut_all(cutgraph, tmp_path, {name: (dataset, {"streams": 2}) for name, dataset in datasets.items()})
    keys = {}
    for name, cut in cuts.items():
        assert cut.error is None and cut.plan["cache"]["seeded"], (name, cut.error, cut.plan)
        keys[name] = cut.plan["cache"]["key"]
    assert keys["other steps downstream"] == keys["first"]
    assert len({keys[name] for name in ("first", "another seed", "another buffer")}) == 3
