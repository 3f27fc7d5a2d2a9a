"""Writes the reports: a JSON file with one record per row, and a page made from it."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Callable, Iterable

NOTES = "## Notes"


def summarise(samples: list[dict[str, float]], by: Callable[[Iterable[float]], float]) -> dict[str, float]:
    """Returns one value per figure, which the marks use."""
    return {key: by(sample[key] for sample in samples) for key in samples[0]}


def compare(samples: dict[str, list[dict[str, float]]], reference: str, figure: str, name: str) -> None:
    """Adds a figure `name` to each sample: its percentage of the reference's figure in the same turn."""
    for values in samples.values():
        for sample, other in zip(values, samples[reference]):
            sample[name] = 100 * sample[figure] / other[figure]


def merge(path: pathlib.Path, row: str, record: dict) -> dict:
    """Replaces a row's record in the JSON file. Returns the records of all rows."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    whole[row] = record
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return whole


def page(whole: dict, order: list[str], head: str, path: pathlib.Path) -> None:
    """Writes the page. The section Notes is written by hand; it remains unchanged."""
    old = path.read_text() if path.exists() else ""
    notes = old[old.index(NOTES) :] if NOTES in old else f"{NOTES}\n"
    parts = [
        head,
        "| measured | must reach | reached |",
        "| --- | --- | --- |",
    ]
    for name in order:
        for mark in whole.get(name, {}).get("marks", []):
            parts.append(f"| {name}: {mark['measured']} | {mark['claim']} | {'yes' if mark['reached'] else '**no**'} |")
    for name in order:
        if name in whole:
            parts += _section(name, whole[name])
    path.write_text("\n".join(parts) + "\n\n" + notes)


def _section(name: str, record: dict) -> list[str]:
    machine = record["machine"]
    lines = [
        f"\n## {name}: {record['title']}\n",
        f"`{record['command']}`, {record['date']}, {_sample_count(record)}. "
        + "; ".join(f"{key} {value}" for key, value in machine.items())
        + ".\n",
    ]
    if record.get("about"):
        lines.append(record["about"])
    if record.get("plot"):
        lines.append(f"![{record['title']}]({record['plot']})\n")
    figures = list(dict.fromkeys(key for samples in record["samples"].values() for key in samples[0]))
    lines.append("| | " + " | ".join(figures) + " |")
    lines.append("| --- |" + " --- |" * len(figures))
    for system, samples in record["samples"].items():
        cells = []
        for key in figures:
            values = [sample[key] for sample in samples if key in sample]
            cells.append(_spread(values) if values else "")
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return lines


def _sample_count(record: dict) -> str:
    numbers = sorted({len(samples) for samples in record["samples"].values()})
    return f"{'-'.join(map(str, numbers))} sample{'s' * (numbers[-1] > 1)} of each"


def _spread(values: list[float]) -> str:
    middle = f"{_short(statistics.median(values))}"
    return middle if len(values) == 1 else f"{middle} ({_short(min(values))}-{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
