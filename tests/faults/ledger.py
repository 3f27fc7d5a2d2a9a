"""The ledger of a trainer, a line for each element, and the check that its elements are the elements of a local run."""

from __future__ import annotations

import collections
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Sequence

import records


class Ledger:
    """A file with a line for each element that `next()` returned: epoch, position, id, CRC of all components."""

    def __init__(self, path: pathlib.Path, *, durable: bool = False) -> None:
        self.path, self._durable = path, durable
        self._file = path.open("a")

    def write(self, epoch: int, position: int, element: tuple) -> None:
        line = {"epoch": epoch, "position": position, "id": int(element[0]), "crc": records.crc(element)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def lines(path: pathlib.Path) -> list[dict]:
    """The lines of a ledger. An incomplete last line of a killed process is left out."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def epochs(entries: Iterable[dict]) -> list[list[dict]]:
    """The lines of each epoch, in order."""
    return [list(group) for _, group in itertools.groupby(entries, key=lambda line: line["epoch"])]


def check(entries: Sequence[dict], truth: dict[int, int], passes: int, golden: Sequence[int] | None = None) -> None:
    """Checks that each epoch has every id once with the values of a local run, in the order `golden` if that is given."""
    found = epochs(entries)
    assert [epoch[0]["epoch"] for epoch in found] == list(range(passes)), "epochs are missing or mixed"
    for number, epoch in enumerate(found):
        times = collections.Counter(line["id"] for line in epoch)
        lost = sorted(truth.keys() - times.keys())
        doubled = sorted(number for number, count in times.items() if count > 1)
        assert not lost and not doubled, f"epoch {number}: lost {lost[:20]} ({len(lost)}), twice {doubled[:20]} ({len(doubled)})"
        assert times.keys() == truth.keys(), f"epoch {number}: unknown ids {sorted(times.keys() - truth.keys())[:20]}"
        assert [line["position"] for line in epoch] == list(range(len(truth)))
        wrong = [line["id"] for line in epoch if line["crc"] != truth[line["id"]]]
        assert not wrong, f"epoch {number}: ids whose values differ from a local run: {wrong[:20]}"
        if golden is not None:
            assert [line["id"] for line in epoch] == golden, f"epoch {number} has another order"
