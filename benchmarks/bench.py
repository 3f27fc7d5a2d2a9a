"""Measures the claims of the documentation, row by row, and writes the reports.

make bench                      # the main job; about 25 minutes, ten of them the memory run
make bench ROW=large            # one row; the others keep their figures
make bench ROW=memory SECONDS=60
make bench-faults               # what a fault costs; about 8 minutes
make bench-recovery             # what checkpoints and caches cost; about 6 minutes
make bench-orders               # what AutoOrder gains; about 12 minutes
make bench-scale                # small datasets, and one job over many workers; about 10 minutes
make bench-cache                # what automatic caches gain and cost; about 20 minutes
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
# A repeated run must not start with what the run before has learned.
os.environ.setdefault("PECAN_LEARN", "0")
# Faults use the clusters and proxies of the fault scenarios, and caches the volume of the process tests.
sys.path += [str(pathlib.Path(__file__).resolve().parents[1] / "tests" / where) for where in ("faults", "e2e")]

import cache_sweep
import caches
import faults
import latency
import meter
import orders
import overhead
import recovery
import report
import row as kinds
import scale
import throughput

MAIN_JOB = """# Benchmarks of the main job

`make bench` writes this page from `main-job.json`, and `make bench ROW=<name>` measures one row again.
One run samples all contestants in turns. Figures are medians, with the smallest and largest sample in
brackets. TensorFlow's data service and Pecan both run their dispatcher and workers in separate processes on the
same machine.
"""
# The start of each page, and its rows.
PAGES: dict[str, tuple[str, dict[str, kinds.Row]]] = {
    "main-job": (MAIN_JOB, throughput.ROWS | latency.ROWS | overhead.ROWS),
    "faults": (faults.HEAD, faults.ROWS),
    "recovery": (recovery.HEAD, recovery.ROWS),
    "orders": (orders.HEAD, orders.ROWS),
    "scale": (scale.HEAD, scale.ROWS),
    "cache": (caches.HEAD, cache_sweep.ROWS | caches.ROWS),
}
COMMANDS = {"main-job": "make bench"} | {name: f"make bench-{name}" for name in PAGES if name != "main-job"}
PAGE_OF = {name: page for page, (_, table) in PAGES.items() for name in table}


def measure(row: kinds.Row, name: str, repetitions: int | None, settings: kinds.Settings, without: list[str]) -> dict:
    """Samples all contestants of a row in turns, judges the figures, and returns the record for the report."""
    print(f"\n{name}: {row.title}", flush=True)
    machine = meter.machine()
    with contextlib.ExitStack() as stack:
        contestants = {key: sample for key, sample in row.prepare(stack, settings).items() if key not in without}
        samples: dict[str, list[kinds.Sample]] = {key: [] for key in contestants}
        for turn in range(repetitions or row.repetitions or 5):
            # Every second turn runs in reverse, so that no contestant is always the last one.
            for key in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
                samples[key].append(contestants[key]())
                figures = "  ".join(f"{value:,.4g} {unit}" for unit, value in samples[key][-1].items())
                print(f"  {turn + 1}  {key:<24} {figures}", flush=True)
    for reference in row.references:
        if reference[0] in samples:
            report.compare(samples, *reference, kinds.percent_of(reference))
    marks = row.judge({key: report.summarise(values, row.by) for key, values in samples.items()}) if not without else []
    for mark in marks:
        print(f"  {'reached' if mark.reached else 'MISSED '}  {mark.claim}: {mark.measured}")
    return {
        "title": row.title,
        "about": row.about() if callable(row.about) else row.about,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": machine,
        "samples": samples,
        "marks": [dataclasses.asdict(mark) for mark in marks],
    }


def main() -> None:
    """Measures the rows that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=[*PAGE_OF, *throughput.ALIASES], help="measure only this row")
    parser.add_argument("--page", choices=PAGES, default="main-job", help="measure the rows of this page")
    parser.add_argument("--repetitions", type=int, help="samples per contestant (default: 5, or the number of the row)")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the memory run")
    parser.add_argument("--demo-data", type=pathlib.Path, default=kinds.Settings.demo_data, help="records of the demo")
    parser.add_argument(
        "--output", type=pathlib.Path, default=kinds.ROOT / "docs" / "benchmarks", help="directory of the report"
    )
    parser.add_argument(
        "--without", action="append", default=[], help="leave a contestant out, and judge and write nothing"
    )
    arguments = parser.parse_args()

    names = [throughput.ALIASES.get(arguments.row, arguments.row)] if arguments.row else list(PAGES[arguments.page][1])
    settings = kinds.Settings(memory_seconds=arguments.seconds, demo_data=arguments.demo_data)
    command = f"make bench ROW={arguments.row}" if arguments.row else COMMANDS[arguments.page]
    if arguments.seconds != parser.get_default("seconds"):
        command += f" SECONDS={arguments.seconds:g}"
    missed = 0
    for name in names:
        page, (head, table) = PAGE_OF[name], PAGES[PAGE_OF[name]]
        try:
            record = measure(table[name], name, arguments.repetitions, settings, arguments.without)
        except kinds.Unavailable as why:
            print(f"  not measured: {why}")
            continue
        if arguments.without:
            continue
        record["command"] = command
        if draw := table[name].plot:
            record["plot"] = f"{name}.svg"
            arguments.output.mkdir(parents=True, exist_ok=True)
            (arguments.output / record["plot"]).write_text(draw(record["samples"]))
        whole = report.merge(arguments.output / f"{page}.json", name, record)
        report.page(whole, list(table), head, arguments.output / f"{page}.md")
        missed += sum(not mark["reached"] for mark in record["marks"])
    if missed:
        print(f"\n{missed} marks were missed; see {shlex.quote(str(arguments.output))}")


if __name__ == "__main__":
    sys.exit(main())
