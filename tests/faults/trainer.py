"""A trainer in a separate process, which a test kills at any time. It writes its elements to a ledger, and saves its position.

Usage: `trainer.py TARGET MODE DIRECTORY HALT`. With HALT above 0 it stops after that many elements, before the next save.
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


def main(target: str, mode: str, directory: pathlib.Path, halt: int) -> None:
    data = pickle.loads((directory / "records.pickle").read_bytes())
    dataset = data.dataset().apply(pecan.distribute(target, processing_mode=mode, seed=7, max_outstanding_bytes=256 << 10))
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
        if used == halt:
            print("halted", flush=True)
            sys.stdin.read()
        if used % SAVE_EVERY == 0:
            save(saved, {"used": used, "state": iterator.state_dict()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]))
