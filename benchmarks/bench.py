"""Measures Pecan beside TensorFlow's data service and the raw limits of the machine, and writes the report.

make bench                      # everything; about 25 minutes, ten of them the memory run
make bench ROW=large            # one row; the others keep their figures
make bench ROW=memory SECONDS=60
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import shlex
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import meter
import report
import rows


def measure(name: str, repetitions: int, settings: rows.Settings, without: list[str]) -> dict:
    """Samples every contestant of a row in turns and judges the medians."""
    row = rows.ROWS[name]
    print(f"\n{name}: {row.title}", flush=True)
    machine = meter.machine()
    with contextlib.ExitStack() as stack:
        contestants = {key: ask for key, ask in row.prepare(stack, settings).items() if key not in without}
        samples: dict[str, list[rows.Sample]] = {key: [] for key in contestants}
        for turn in range(1 if row.once else repetitions):
            for key, ask in contestants.items():
                samples[key].append(ask())
                figures = "  ".join(f"{value:,.4g} {unit}" for unit, value in samples[key][-1].items())
                print(f"  {turn + 1}  {key:<24} {figures}", flush=True)
    marks = row.judge({key: report.median_of(values) for key, values in samples.items()}) if not without else []
    for mark in marks:
        print(f"  {'reached' if mark.reached else 'MISSED '}  {mark.claim}: {mark.measured}")
    return {
        "title": row.title,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": machine,
        "samples": samples,
        "marks": [dataclasses.asdict(mark) for mark in marks],
    }


def main() -> None:
    """Measures the rows that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=[*rows.ROWS, *rows.ALIASES], help="measure only this row")
    parser.add_argument("--repetitions", type=int, default=5, help="samples per contestant")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the memory run")
    parser.add_argument("--demo-data", type=pathlib.Path, default=rows.Settings.demo_data, help="records of the demo")
    parser.add_argument(
        "--output", type=pathlib.Path, default=rows.ROOT / "docs" / "benchmarks", help="where the report goes"
    )
    parser.add_argument(
        "--without", action="append", default=[], help="leave a contestant out (nothing is judged or written then)"
    )
    arguments = parser.parse_args()

    names = [rows.ALIASES.get(arguments.row, arguments.row)] if arguments.row else list(rows.ROWS)
    settings = rows.Settings(memory_seconds=arguments.seconds, demo_data=arguments.demo_data)
    command = f"make bench ROW={arguments.row}" if arguments.row else "make bench"
    if arguments.seconds != parser.get_default("seconds"):
        command += f" SECONDS={arguments.seconds:g}"
    missed = 0
    for name in names:
        record = measure(name, arguments.repetitions, settings, arguments.without)
        if arguments.without:
            continue
        record["command"] = command
        whole = report.merge(arguments.output / "main-job.json", name, record)
        report.page(whole, list(rows.ROWS), arguments.output / "main-job.md")
        missed += sum(not mark["reached"] for mark in record["marks"])
    if missed:
        print(f"\n{missed} marks were missed; see {shlex.quote(str(arguments.output / 'main-job.md'))}")


if __name__ == "__main__":
    sys.exit(main())
