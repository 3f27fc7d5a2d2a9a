"""The parts of a measurement: contestants, which are sampled in turns, and marks, which their figures must reach."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Iterable

Sample = dict[str, float]
Contestants = dict[str, Callable[[], Sample]]
Medians = dict[str, Sample]

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Unavailable(Exception):
    """The row cannot be measured on this machine; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of the command line.

    Attributes:
        memory_seconds: Length of the memory row in seconds.
        demo_data: Directory of the demo's records.
    """

    memory_seconds: float = 600.0
    demo_data: pathlib.Path = ROOT / "demo-data"


@dataclasses.dataclass(frozen=True)
class Mark:
    """A claim, the measured value, and whether the value fulfils the claim."""

    claim: str
    measured: str
    reached: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        title: What is measured.
        prepare: Returns the contestants. Their services run until the stack closes.
        judge: Returns the marks for the summarised figures of each contestant.
        repetitions: Number of samples per contestant; None takes the caller's number.
        by: Summarises the samples of a figure: the median, or `max` if no sample may exceed a limit.
        references: Contestants, each with one of its figures. Each sample also gets its percentage of that figure in
            the same turn. The percentage does not depend on the speed of the machine during the turn.
        about: Explanation for readers of the report, or a function that returns it after the measurement.
        plot: Draws the samples of each contestant as SVG text.
    """

    title: str
    prepare: Callable[[contextlib.ExitStack, Settings], Contestants]
    judge: Callable[[Medians], list[Mark]]
    repetitions: int | None = None
    by: Callable[[Iterable[float]], float] = statistics.median
    references: tuple[tuple[str, str], ...] = ()
    about: str | Callable[[], str] = ""
    plot: Callable[[dict[str, list[Sample]]], str] | None = None


def percent_of(reference: tuple[str, str]) -> str:
    """Returns the name of the figure that is a percentage of the reference, as "cold: % of pecan" for "cold: GB/s"."""
    kind, colon, _ = reference[1].rpartition(": ")
    return f"{kind}{colon}% of {reference[0]}"


def at_least(claim: str, value: float, limit: float, unit: str = "") -> Mark:
    """Returns the mark for a figure with a lower limit."""
    return Mark(claim, f"{value:.3g}{unit}", value >= limit)


def at_most(claim: str, value: float, limit: float, unit: str = "") -> Mark:
    """Returns the mark for a figure with an upper limit."""
    return Mark(claim, f"{value:.3g}{unit}", value <= limit)
