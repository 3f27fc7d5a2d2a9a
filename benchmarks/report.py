"""Writes the figures down: a JSON file that rows are merged into, and the page made from it."""

from __future__ import annotations

import json
import pathlib
import statistics

NOTES = "## Notes"


def median_of(samples: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def merge(path: pathlib.Path, row: str, record: dict) -> dict:
    """Puts a row's record into the JSON file, leaving the other rows as they are, and gives the whole."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    whole[row] = record
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return whole


def page(whole: dict, order: list[str], path: pathlib.Path) -> None:
    """Writes the page. What stands under Notes is written by hand and stays."""
    old = path.read_text() if path.exists() else ""
    notes = old[old.index(NOTES) :] if NOTES in old else f"{NOTES}\n"
    parts = [
        "# Benchmarks of the main job\n",
        "Written by `make bench`, from `main-job.json` beside it; `make bench ROW=<name>` measures one row again.",
        "Contestants are asked in turns in one run; figures are medians, with the smallest and largest sample in",
        "brackets. TensorFlow's data service and Pecan both run their dispatcher and workers in",
        "processes of their own on the same machine.\n",
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
        f"`{record['command']}`, {record['date']}. "
        + "; ".join(f"{key} {value}" for key, value in machine.items())
        + ".\n",
    ]
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


def _spread(values: list[float]) -> str:
    middle = f"{_short(statistics.median(values))}"
    return middle if len(values) == 1 else f"{middle} ({_short(min(values))}-{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
