"""A saved position stays valid when the trainer, the workers, the dispatcher, the job or the cache is replaced."""

from __future__ import annotations

import gc
import json
import pathlib
import pickle
import signal

import ledger
import pecan
import pytest
import trainer
from cluster import Cluster, running_cluster, wait
from records import Records
from run import MAX_OUTSTANDING_BYTES
from script import Script


def _read(cluster: Cluster, data: Records, mode: str, dataset=None) -> pecan.Iterator:
    options = dict(processing_mode=mode, seed=7, streams=data.streams, max_outstanding_bytes=MAX_OUTSTANDING_BYTES)
    return pecan.Iterator((dataset or data.dataset()).apply(pecan.distribute(cluster.target, **options)))


def _ids(elements) -> list[int]:
    return [int(element[0]) for element in elements]


def _next_ids(iterator: pecan.Iterator, number: int) -> list[int]:
    return _ids(next(iterator) for _ in range(number))


def _check(found: list[int], data, golden, mode: str) -> None:
    """Checks that each id came once over all parts, and in mode deterministic in the order of an undisturbed run."""
    assert sorted(found) == list(range(data.total))
    if mode == "deterministic":
        assert found == golden


def test_a_position_survives_other_workers_and_a_restarted_dispatcher(tmp_path, data, golden, mode):
    """L2: saved with three workers, resumed with one, and resumed again with seven workers and a restarted dispatcher."""
    with running_cluster(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        iterator = _read(cluster, data, mode)
        found = _next_ids(iterator, data.total // 4)
        state = iterator.state_dict()
        del iterator
        for worker in cluster.workers[:2]:
            worker.kill()
        iterator = _read(cluster, data, mode)
        iterator.load_state_dict(state)
        found += _next_ids(iterator, data.total // 4)
        state = iterator.state_dict()
        del iterator
        cluster.dispatcher.kill()
        cluster.restart_dispatcher()
        cluster.add_all(6)
        wait(lambda: cluster.states() == ["connected"] * 7, "seven workers serve")
        iterator = _read(cluster, data, mode)
        iterator.load_state_dict(state)
        _check(found + _ids(iterator), data, golden, mode)
        del iterator
        gc.collect()


def test_a_position_survives_a_filled_cache_and_a_removed_job(tmp_path, data, golden_cached, mode):
    """L2: saved while the cache was written. Resumed when the cache is complete, and the dispatcher has removed job and dataset."""
    flags = ("--client-timeout", "1s", "--dataset-timeout", "200ms")
    with running_cluster(Cluster(tmp_path, flags=flags, worker_flags=("--cache-dir", str(tmp_path / "cache")))) as cluster:
        cluster.add_all(2)
        kept = data.dataset().apply(pecan.cache())
        iterator = _read(cluster, data, mode, kept)
        found = _next_ids(iterator, data.total // 4)
        state = iterator.state_dict()
        assert cluster.status()["jobs"][0]["cache"]["state"] == "filling"
        assert len(found) + len(_ids(iterator)) == data.total
        wait(lambda: cluster.status()["jobs"][0]["cache"]["state"] == "committed", "the cache is complete")
        del iterator
        gc.collect()
        wait(lambda: not cluster.status()["jobs"] and not cluster.status()["datasets"], "job and dataset are forgotten")
        iterator = _read(cluster, data, mode, kept)
        iterator.load_state_dict(state)
        found += _ids(iterator)
        (job,) = cluster.status()["jobs"]
        assert job["cache"]["state"] == "used"
        _check(found, data, golden_cached, mode)
        del iterator
        gc.collect()


def _start(cluster: Cluster, mode: str, directory: pathlib.Path, halt: int = 0) -> Script:
    lines = "import trainer\ntrainer.main(*sys.argv[1:])"
    return Script(lines, cluster.target, mode, str(directory), str(halt), directory=pathlib.Path(trainer.__file__).parent)


@pytest.mark.parametrize(("mode", "halt"), [("deterministic", 275), ("exactly_once", 0)], ids=["before a save", "anywhere"])
def test_a_killed_trainer_repeats_only_elements_since_its_last_save(tmp_path, mode, halt):
    """L4: its ledger shows that no other element is repeated. Its old job was removed before it resumed."""
    # Few records, because the trainer syncs each line of the ledger to disk before it requests the next element.
    data = Records(tmp_path, 600, files=20)
    (tmp_path / "records.pickle").write_bytes(pickle.dumps(data))
    book = tmp_path / "ledger"
    with running_cluster(Cluster(tmp_path, flags=("--client-timeout", "1s", "--dataset-timeout", "200ms"))) as cluster:
        cluster.add_all(2)
        undisturbed = _ids(_read(cluster, data, mode))
        gc.collect()
        with _start(cluster, mode, tmp_path, halt) as first:
            if halt:
                assert first.line() == "halted"
            else:
                wait(lambda: book.exists() and len(ledger.lines(book)) > 2 * trainer.SAVE_EVERY, "the trainer has saved twice")
            assert first.process.poll() is None, "the trainer had ended before it was killed"
            first.process.kill()
            assert first.process.wait(30) == -signal.SIGKILL
        before = ledger.lines(book)
        book.write_text("".join(json.dumps(line) + "\n" for line in before))  # removes an incomplete last line
        saved = json.loads((tmp_path / "saved.json").read_text())["used"]
        assert 0 < saved <= len(before) < data.total and (not halt or (saved, len(before)) == (200, halt))
        wait(lambda: not cluster.status()["jobs"] and not cluster.status()["datasets"], "job and dataset are forgotten")
        with _start(cluster, mode, tmp_path) as second:
            assert second.rest(120)[0] == 0
        after = ledger.lines(book)[len(before) :]
        ledger.check(before[:saved] + after, data.truth(), 1, undisturbed if mode == "deterministic" else None)
        repeated = {line["id"] for line in before} & {line["id"] for line in after}
        assert repeated == {line["id"] for line in before[saved:]}
