"""Parts of the source: a stream gives the elements of its parts one after another, and a part is the same in every stream, epoch and job."""

from __future__ import annotations

import collections
import json
import pathlib

import graph_oracle as oracle
import numpy as np
import pecan
import pytest
import tensorflow as tf
from soak import SOAK

D = tf.data.Dataset
SIZES = (31, 0, 7, 64, 20, 9, 1, 48, 5, 12)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Record files of different lengths, whose records are numbers."""
    folder, out, first = tmp_path_factory.mktemp("records"), [], 0
    for k, size in enumerate(SIZES):
        out.append(str(folder / f"part-{k}.tfrecord"))
        with tf.io.TFRecordWriter(out[-1]) as writer:
            for i in range(first, first + size):
                writer.write(str(i).encode())
        first += size
    return out


def number(record: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_number(record, tf.int64)


def odd(x: tf.Tensor) -> tf.Tensor:
    return x % 2 == 1


READ = tf.data.TFRecordDataset
PIPELINES = {
    "range": lambda names: D.range(300).map(lambda x: 3 * x),
    "a long range": lambda names: D.range(7, 300_000, 3).filter(lambda x: x % 1000 == 1),
    "a range downwards": lambda names: D.range(900, -100, -3),
    "slices": lambda names: D.from_tensor_slices((np.arange(700), [f"text {i}" for i in range(700)])).map(lambda i, s: (s, i)),
    "batches": lambda names: D.range(1003).map(lambda x: x + 1).batch(10).map(lambda x: 2 * x),
    "batches without a rest": lambda names: D.range(1003).batch(10, drop_remainder=True),
    "batches of batches": lambda names: D.range(1003).batch(5).batch(4),
    "padded batches": lambda names: D.range(1003).map(lambda x: tf.range(x % 5)).padded_batch(4),
    "filtered": lambda names: D.range(2000).filter(odd).map(lambda x: x // 2),
    "flat_map": lambda names: D.range(500).flat_map(lambda x: D.range(x % 4)),
    "prefetched": lambda names: D.range(500).map(lambda x: x, num_parallel_calls=3).prefetch(4),
    "files": lambda names: D.from_tensor_slices(names).flat_map(READ).map(number),
    "interleaved files": lambda names: D.from_tensor_slices(names).interleave(READ, cycle_length=3, block_length=2).map(number),
    "files interleaved in parallel": lambda names: D.from_tensor_slices(names).interleave(READ, num_parallel_calls=2, cycle_length=4).map(number).filter(odd),
    "files in any order": lambda names: D.from_tensor_slices(names).interleave(READ, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).map(number),
    "shuffled files": lambda names: D.from_tensor_slices(names).shuffle(len(names)).interleave(READ).map(number),
    "listed files": lambda names: D.list_files(str(pathlib.Path(names[0]).parent / "*")).map(tf.io.read_file),
    "listed files with a seed": lambda names: D.list_files(str(pathlib.Path(names[0]).parent / "*"), seed=4).flat_map(READ),
    "many names": lambda names: D.from_tensor_slices([f"text {i}" for i in range(300)]).shuffle(300).map(tf.strings.length),
}


def run(graph: bytes, like: D) -> list[oracle.Element]:
    return [tuple(np.asarray(t.numpy()) for t in element) for element in oracle.load(graph, like)]


SOME = ("padded batches", "interleaved files", "shuffled files")


@pytest.mark.parametrize(
    ("mode", "chosen"),
    # Without soak, each of the pipelines runs in one of the modes.
    [("EXACTLY_ONCE", SOME), ("EXACTLY_ONCE", tuple(PIPELINES)[:: 1 if SOAK else 2]), ("DETERMINISTIC", tuple(PIPELINES)[0 if SOAK else 1 :: 1 if SOAK else 2])],
    ids=["some", "exactly once", "deterministic"],
)
def test_a_stream_gives_its_parts_one_after_another(cutgraph, tmp_path, names, mode, chosen):
    built = {name: PIPELINES[name](names).apply(pecan.cache()) for name in chosen}
    options = {"mode": mode}
    asked = {
        f"{i}-{streams}": (dataset, options | {"streams": streams})
        for i, dataset in enumerate(built.values()) for streams in (3, 5)
    }
    cuts = oracle.cut_all(cutgraph, tmp_path, asked)
    for i, (name, dataset) in enumerate(built.items()):
        # Those of the first job. The second one has another S and the same parts.
        stored: dict[int, list] = {}
        local = oracle.multiset(oracle.elements(PIPELINES[name](names)))
        keys = set()
        for streams in (3, 5):
            base = f"{i}-{streams}"
            cut = cuts[base]
            assert cut.error is None, (name, cut.error)
            count = int(cut.plan["cache"]["parts"])
            keys.add(cut.plan["cache"]["key"])
            assert count > 1, (name, cut.plan["reasons"])
            for epoch in range(2 if streams == 3 else 1):
                found: collections.Counter = collections.Counter()
                seen = []
                for stream in range(cut.streams):
                    parts = json.loads((tmp_path / f"{base}.e{epoch}.s{stream}.parts.json").read_text())
                    for part in parts:
                        if part not in stored:
                            stored[part] = run((tmp_path / f"{base}.part{part}.pb").read_bytes(), dataset)
                    got = run(cut.graphs[epoch, stream][0], dataset)
                    want = [e for part in parts for e in stored[part]]
                    assert [oracle.key(e) for e in got] == [oracle.key(e) for e in want], (name, streams, epoch, stream)
                    found += oracle.multiset(got)
                    seen += parts
                assert sorted(seen) == list(range(count)), name
                assert found == local, name
        assert len(keys) == 1, f"{name}: jobs with different numbers of streams have different keys"


def order_of(tmp_path: pathlib.Path, name: str, epoch: int) -> list[int]:
    return [p for s in range(2) for p in json.loads((tmp_path / f"{name}.e{epoch}.s{s}.parts.json").read_text())]


def test_the_shuffle_of_a_list_orders_parts(cutgraph, tmp_path, names):
    def build(mark, **shuffle) -> D:
        files = D.from_tensor_slices([f"text {i}" for i in range(500)])
        return files.shuffle(500, **shuffle).map(tf.strings.length).apply(mark)

    frozen, free = pecan.cache(), pecan.cache_candidate("here")
    datasets = {
        "frozen": (build(frozen), {"streams": 2}),
        "another seed of the job": (build(frozen), {"streams": 2, "seed": 8}),
        "a seed of its own": (build(frozen, seed=3), {"streams": 2}),
        "the same, another job": (build(frozen, seed=3), {"streams": 2, "seed": 8}),
    }
    cuts = oracle.cut_all(cutgraph, tmp_path, datasets)
    assert len({cut.plan["cache"]["key"] for cut in cuts.values()}) == 1
    orders = {name: order_of(tmp_path, name, 0) for name in datasets}
    assert orders["frozen"] != sorted(orders["frozen"])
    assert orders["frozen"] != orders["another seed of the job"] != orders["a seed of its own"]
    assert orders["a seed of its own"] == orders["the same, another job"]
    for name in datasets:
        assert order_of(tmp_path, name, 1) == orders[name], "pecan.cache() does not repeat the order of the first epoch"
    # A candidate that does not freeze may be cached, and the order differs from epoch to epoch.
    cut = oracle.cut_all(cutgraph, tmp_path / "free", {"free": (build(free), {"streams": 2})})["free"]
    (candidate,) = cut.plan["cache_candidates"]
    assert candidate["refusal"] == "CACHE_REFUSAL_UNSPECIFIED", candidate
    like = build(free)
    assert [run(cut.graphs[0, s][0], like) for s in range(2)] != [run(cut.graphs[1, s][0], like) for s in range(2)]


def test_a_part_of_a_shuffled_list_is_a_sample(cutgraph, tmp_path):
    """Lists are often sorted by class. A part with one class only would spoil the batches."""
    texts = D.from_tensor_slices([f"{i}" for i in range(6400)]).shuffle(6400).map(number).apply(pecan.cache())
    cut = oracle.cut_all(cutgraph, tmp_path, {"texts": (texts, {"streams": 2})})["texts"]
    count = int(cut.plan["cache"]["parts"])
    for part in range(0, count, 16):
        classes = {int(e[0]) // 640 for e in run((tmp_path / f"texts.part{part}.pb").read_bytes(), texts)}
        assert len(classes) > 7, f"part {part} has elements of the classes {classes}"


SHUFFLED = {
    "records": lambda names: D.from_tensor_slices(names).interleave(READ).shuffle(50).map(number),
    "filtered records": lambda names: D.from_tensor_slices(names).shuffle(9).interleave(READ).map(number).shuffle(64).filter(odd),
    "numbers": lambda names: D.range(200).map(lambda x: 3 * x).shuffle(100).map(lambda x: (x, x + 1)).prefetch(2),
    "batches": lambda names: D.range(400).batch(5, drop_remainder=True).shuffle(20, seed=3).map(lambda x: x + 1),
    "shuffled twice": lambda names: D.range(200).shuffle(30).map(lambda x: x + 1).shuffle(40, reshuffle_each_iteration=False),
}


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "DETERMINISTIC"])
def test_shuffles_of_records_run_after_the_cached_step(cutgraph, tmp_path, names, mode):
    def asked(mark) -> dict[str, tuple[D, dict]]:
        return {name: (build(names).apply(mark).prefetch(1), {"mode": mode, "streams": 3}) for name, build in SHUFFLED.items()}

    frozen = oracle.cut_all(cutgraph, tmp_path / "frozen", asked(pecan.cache()))
    free = oracle.cut_all(cutgraph, tmp_path / "free", asked(pecan.cache_candidate("here")))
    for name, build in SHUFFLED.items():
        like, cut = build(names), frozen[name]
        local = oracle.multiset(oracle.elements(like))
        assert cut.plan["cut"]["late_after"] == cut.plan["cache"]["node"], (name, cut.plan["reasons"])
        found = collections.Counter()
        for stream in range(cut.streams):
            parts = json.loads((tmp_path / "frozen" / f"{name}.e0.s{stream}.parts.json").read_text())
            stored = [e for part in parts for e in run((tmp_path / "frozen" / f"{name}.part{part}.pb").read_bytes(), like)]
            got = [run(cut.graphs[epoch, stream][0], like) for epoch in range(2)]
            assert oracle.multiset(got[0]) == oracle.multiset(stored), name
            assert [oracle.key(e) for e in got[0]] != [oracle.key(e) for e in stored], f"{name}: nothing is shuffled"
            assert [oracle.key(e) for e in got[0]] == [oracle.key(e) for e in got[1]], f"{name}: pecan.cache() does not repeat the first epoch"
            found += oracle.multiset(got[0])
        assert found == local, name
        epochs = [[[oracle.key(e) for e in run(free[name].graphs[epoch, stream][0], like)] for stream in range(3)] for epoch in range(2)]
        assert epochs[0] != epochs[1], f"{name}: a candidate repeats the first epoch"


def test_a_shuffle_whose_buffer_would_grow_too_much_stays(cutgraph, tmp_path, names):
    records = D.from_tensor_slices(names).interleave(READ).shuffle(100_000)
    built = {
        "of any size": records.map(lambda r: tf.strings.join([r, r])), "of 4 MB": records.map(lambda r: tf.zeros([1 << 20])),
        "as they were": records.filter(lambda r: tf.strings.length(r) > 1), "batched": D.range(1000).shuffle(100).batch(4),
    }
    cuts = oracle.cut_all(cutgraph, tmp_path, {name: (dataset.apply(pecan.cache()), {"streams": 3}) for name, dataset in built.items()})
    for name, why in {"of any size": "is not known", "of 4 MB": "would hold 419430 MB", "batched": "needs them in that order", "as they were": ""}.items():
        plan = cuts[name].plan
        assert why in " ".join(plan["reasons"]) and (int(plan["cache"]["parts"]) == 0) == bool(why), (name, plan["reasons"])


def test_parts_of_a_list_that_is_shuffled_later_have_another_key(cutgraph, tmp_path):
    """Such parts are samples of the list."""
    def build(shuffled: bool) -> D:
        texts = D.from_tensor_slices([f"{i}" for i in range(500)]).apply(pecan.cache_candidate("texts"))
        return texts.shuffle(500).map(number).apply(pecan.cache_candidate("numbers")) if shuffled else texts.map(number)

    cuts = oracle.cut_all(cutgraph, tmp_path, {str(shuffled): (build(shuffled), {"streams": 2}) for shuffled in (False, True)})
    first, second = (cut.plan["cache_candidates"][0]["plan"] for cut in cuts.values())
    assert first["parts"] == second["parts"] > 1
    assert first["key"] != second["key"]
