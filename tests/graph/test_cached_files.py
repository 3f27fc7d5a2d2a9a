"""Files below a cached step: a change is noticed only if the graph has their names."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import graph_oracle as oracle
import pecan
import pytest
import tensorflow as tf

D = tf.data.Dataset
LEGAL = "unspecified"
Mark = Callable[[D], D]


@pytest.fixture
def names(tmp_path: pathlib.Path) -> list[str]:
    folder = tmp_path / "files"
    folder.mkdir()
    for k in range(40):
        (folder / f"{k}.txt").write_text(f"text {k}")
    return [str(path) for path in sorted(folder.iterdir())]


def labelled(name: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return name, tf.one_hot(label, 3)


@tf.function
def load(name: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.io.read_file(name), label


@tf.function
def swapped(name: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return label * 2, name


def folder_of(names: list[str]) -> str:
    return str(pathlib.Path(names[0]).parent) + "/"


def bare(names: list[str]) -> list[str]:
    return [pathlib.Path(name).name for name in names]


VISIBLE = {
    "listed": lambda names: D.list_files(folder_of(names) + "*").map(tf.io.read_file),
    "listed and read line by line": lambda names: D.list_files(folder_of(names) + "*").interleave(tf.data.TextLineDataset),
    "with labels": lambda names: D.from_tensor_slices((names, range(40))).map(lambda n, i: (tf.io.read_file(n), tf.one_hot(i, 3))),
    "in a dictionary": lambda names: D.from_tensor_slices({"n": names}).map(lambda e: tf.io.read_file(e["n"])),
    "with a number": lambda names: D.from_tensor_slices(names).enumerate().map(lambda i, n: (i, tf.io.read_file(n))),
    "concatenated": lambda names: D.from_tensor_slices(names[:20]).concatenate(D.from_tensor_slices(names[20:])).map(tf.io.read_file),
    "in batches": lambda names: D.from_tensor_slices(names).batch(2).map(lambda n: (tf.io.read_file(n[0]), tf.io.read_file(n[1]))),
    "of a list": lambda names: D.range(40).map(lambda i: tf.io.read_file(tf.gather(names, i))),
    "in a function with computed labels": lambda names: D.from_tensor_slices((names, range(40))).map(labelled).map(load),
    "from a function": lambda names: D.from_tensor_slices((names, range(40))).map(swapped).map(lambda i, n: load(n, i)),
}
COMPUTED = {
    "joined": lambda names: D.from_tensor_slices(bare(names)).map(lambda n: tf.io.read_file(folder_of(names) + n)),
    "joined in an earlier step": lambda names: D.from_tensor_slices(bare(names)).map(lambda n: folder_of(names) + n).map(tf.io.read_file),
    "read from a file": lambda names: D.from_tensor_slices(names).flat_map(tf.data.TextLineDataset).map(tf.io.read_file),
    "joined in a function": lambda names: D.from_tensor_slices((bare(names), range(40))).map(lambda n, i: load(folder_of(names) + n, i)),
    "exchanged by a function": lambda names: D.from_tensor_slices((names, names)).map(lambda n, x: swapped(n + x, 1)).map(lambda i, n: tf.io.read_file(n)),
    "concatenated with others": lambda names: (
        D.from_tensor_slices(names).concatenate(D.from_tensor_slices(bare(names)).map(lambda n: folder_of(names) + n)).map(tf.io.read_file)
    ),
    # The files of a saved dataset have names that its directory lists.
    "saved": lambda names: D.load(saved(names)).map(lambda x: x + 1),
    "saved, in a function": lambda names: D.range(4).flat_map(functools.partial(load_saved, saved(names))),
}


def load_saved(path: str, i: tf.Tensor) -> D:
    return D.load(path).map(lambda x: x + i)


def saved(names: list[str]) -> str:
    path = str(pathlib.Path(names[0]).parents[1] / "saved")
    D.range(40).save(path)
    return path


def refusals(cutgraph: pathlib.Path, tmp_path: pathlib.Path, datasets: dict[str, D]) -> dict[str, list[str]]:
    """The refusals of the candidates of each dataset, from the source on; "unspecified" for none."""
    cuts = oracle.cut_all(cutgraph, tmp_path, {name: (dataset, {"streams": 2}) for name, dataset in datasets.items()})
    for name, cut in cuts.items():
        assert cut.error is None, (name, cut.error)
    return {
        name: [one["refusal"].removeprefix("CACHE_REFUSAL_").lower() for one in cut.plan["cache_candidates"]]
        for name, cut in cuts.items()
    }


def test_files_whose_names_the_graph_has_may_be_cached(cutgraph, tmp_path, names):
    for mark in (pecan.cache(), pecan.cache_candidate("here")):
        datasets = {name: build(names).apply(mark) for name, build in VISIBLE.items()}
        assert refusals(cutgraph, tmp_path, datasets) == {name: [LEGAL] for name in VISIBLE}


def test_files_whose_names_are_computed_are_cached_only_if_they_never_change(cutgraph, tmp_path, names):
    refused: tuple[Mark, ...] = (pecan.cache(), pecan.cache_candidate("here"), pecan.cache_candidate("here", True))
    promised: tuple[Mark, ...] = (
        pecan.cache(files_never_change=True), pecan.cache_candidate("here", files_never_change=True), pecan.cache_candidate("here", True, files_never_change=True),
    )
    for marks, want in ((refused, "computed_files"), (promised, LEGAL)):
        for mark in marks:
            datasets = {name: build(names).apply(mark) for name, build in COMPUTED.items()}
            assert refusals(cutgraph, tmp_path, datasets) == {name: [want] for name in COMPUTED}


def test_the_promise_of_a_mark_is_about_the_steps_upstream(cutgraph, tmp_path, names):
    """It holds for later marks too, and not for files that are opened after it."""
    def read(dataset: D) -> D:
        return dataset.map(lambda n: tf.io.read_file(folder_of(names) + n))

    first, second = pecan.cache_candidate("first", files_never_change=True), pecan.cache_candidate("second")
    source = D.from_tensor_slices(bare(names))
    assert refusals(cutgraph, tmp_path, {
        "before": read(source).apply(first).map(tf.strings.length).apply(second),
        "after": read(source.apply(first)).apply(second),
        "both": read(read(source).apply(first)).apply(second),
        "the other way round": read(source).apply(second).apply(first),
    }) == {
        "before": [LEGAL, LEGAL], "after": [LEGAL, "computed_files"], "both": [LEGAL, "computed_files"],
        "the other way round": ["computed_files", LEGAL],
    }
