"""A saved position stays valid when the trainer, the workers, the dispatcher, the job or the cache are replaced."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys

import ledger
import pecan
import pytest
import trainer
from cluster import Cluster, cleared, wait
from records import Records
from run import ON_THE_WAY


def _read(cluster: Cluster, dataset, mode: str) -> pecan.Iterator:
    return pecan.Iterator(
        dataset.apply(pecan.distribute(cluster.target, processing_mode=mode, seed=7, max_outstanding_bytes=ON_THE_WAY))
    )


def _ids(elements) -> list[int]:
    return [int(element[0]) for element in elements]


def _take(iterator: pecan.Iterator, number: int) -> list[int]:
    return _ids(next(iterator) for _ in range(number))


def _check(found: list[int], data, golden, mode: str) -> None:
    """Each id once, over all stops; in the order of an undisturbed run where the mode says so."""
    assert sorted(found) == list(range(data.total))
    if mode == "deterministic":
        assert found == golden[0]


def test_workers_and_the_dispatcher_change(tmp_path, data, golden, mode):
    """L2: saved with three workers, gone on from with one, and again with seven and a dispatcher that was killed meanwhile."""
    with cleared(Cluster(tmp_path)) as cluster:
        cluster.add_all(3)
        iterator = _read(cluster, data.dataset(), mode)
        found = _take(iterator, data.total // 4)
        state = iterator.state_dict()
        del iterator
        for worker in cluster.workers[:2]:
            worker.kill()
        iterator = _read(cluster, data.dataset(), mode)
        iterator.load_state_dict(state)
        found += _take(iterator, data.total // 4)
        state = iterator.state_dict()
        del iterator
        cluster.dispatcher.kill()
        cluster.restart_dispatcher()
        cluster.add_all(6)
        wait(lambda: cluster.states() == ["connected"] * 7, "seven workers serve")
        iterator = _read(cluster, data.dataset(), mode)
        iterator.load_state_dict(state)
        _check(found + _ids(iterator), data, golden, mode)
        del iterator
        gc.collect()


def test_the_cache_is_filled_and_the_job_collected(tmp_path, data, golden, mode):
    """L2: saved while the cache was being filled; gone on from when it is whole, and nobody knows the job or the dataset."""
    flags = ("--client-timeout", "1s", "--dataset-timeout", "200ms")
    with cleared(Cluster(tmp_path, flags=flags, worker_flags=("--cache-dir", str(tmp_path / "cache")))) as cluster:
        cluster.add_all(2)
        kept = data.dataset().apply(pecan.cache())
        iterator = _read(cluster, kept, mode)
        found = _take(iterator, data.total // 4)
        state = iterator.state_dict()
        assert cluster.status()["jobs"][0]["cache"]["state"] == "filling"
        assert len(found) + len(_ids(iterator)) == data.total
        wait(lambda: cluster.status()["jobs"][0]["cache"]["state"] == "committed", "the cache is whole")
        del iterator
        gc.collect()
        wait(lambda: not cluster.status()["jobs"] and not cluster.status()["datasets"], "job and dataset are forgotten")
        iterator = _read(cluster, kept, mode)
        iterator.load_state_dict(state)
        found += _ids(iterator)
        (job,) = cluster.status()["jobs"]
        assert job["cache"]["state"] == "used"
        _check(found, data, golden, mode)
        del iterator
        gc.collect()


def _start(cluster: Cluster, mode: str, directory: pathlib.Path, halt: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, trainer.__file__, cluster.target, mode, str(directory), str(halt)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(pathlib.Path(pecan.__file__).parents[1])),
    )


@pytest.mark.parametrize(("mode", "halt"), [("deterministic", 275), ("exactly_once", 0)], ids=["before a save", "anywhere"])
def test_a_killed_trainer_repeats_what_it_used_since_its_last_save(tmp_path, mode, halt):
    """L4: exactly that and nothing else, by its ledger; its old job was collected before it came back."""
    # Few, as each line of the ledger is on the disk before the next element is asked for.
    data = Records(tmp_path, 600, files=20)
    (tmp_path / "records.pickle").write_bytes(pickle.dumps(data))
    book = tmp_path / "ledger"
    with cleared(Cluster(tmp_path, flags=("--client-timeout", "1s", "--dataset-timeout", "200ms"))) as cluster:
        cluster.add_all(2)
        undisturbed = [_ids(_read(cluster, data.dataset(), mode))]
        gc.collect()
        first = _start(cluster, mode, tmp_path, halt)
        try:
            if halt:
                assert first.stdout is not None and first.stdout.readline() == "halted\n"
            else:
                wait(lambda: book.exists() and len(ledger.lines(book)) > 2 * trainer.SAVE_EVERY, "the trainer has saved twice")
            assert first.poll() is None, "the trainer had ended before it was killed"
            first.kill()
            assert first.wait(30) == -signal.SIGKILL
        finally:
            first.kill()
            first.communicate(timeout=180)
        before = ledger.lines(book)
        book.write_text("".join(json.dumps(line) + "\n" for line in before))  # a line that was cut off goes
        saved = json.loads((tmp_path / "saved.json").read_text())["used"]
        assert 0 < saved <= len(before) < data.total and (not halt or (saved, len(before)) == (200, halt))
        wait(lambda: not cluster.status()["jobs"] and not cluster.status()["datasets"], "job and dataset are forgotten")
        second = _start(cluster, mode, tmp_path)
        assert second.wait(120) == 0
        second.communicate(timeout=180)
        behind = ledger.lines(book)[len(before) :]
        ledger.check(before[:saved] + behind, data.truth(), 1, undisturbed if mode == "deterministic" else None)
        repeated = {line["id"] for line in before} & {line["id"] for line in behind}
        assert repeated == {line["id"] for line in before[saved:]}
