"""A trainer in a separate process, which a test kills at any time. It writes its elements to a ledger, and saves its position.

With `halt` above 0 it stops after that many elements, before the next save.
"""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import sys

import ledger
import pecan

SAVE_EVERY = 100


def save(path: pathlib.Path, state: dict) -> None:
    """Replaces the file atomically. If the process is killed, the old state remains."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def main(target: str, mode: str, path: str, halt: str) -> None:
    directory = pathlib.Path(path)
    data = pickle.loads((directory / "records.pickle").read_bytes())
    options = dict(processing_mode=mode, seed=7, streams=data.streams, max_outstanding_bytes=256 << 10)
    dataset = data.dataset().apply(pecan.distribute(target, **options))
    iterator = pecan.Iterator(dataset)
    used, saved = 0, directory / "saved.json"
    if saved.exists():
        was = json.loads(saved.read_text())
        used = was["used"]
        iterator.load_state_dict(was["state"])
    book = ledger.Ledger(directory / "ledger", durable=True)
    for element in iterator:
        book.write(0, used, element)
        used += 1
        if used == int(halt):
            print("halted", flush=True)
            sys.stdin.read()
        if used % SAVE_EVERY == 0:
            save(saved, {"used": used, "state": iterator.state_dict()})
