"""What a measurement is: contestants that are asked for samples in turns, and marks that the figures must reach."""

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


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a caller may turn."""

    memory_seconds: float = 600.0
    demo_data: pathlib.Path = ROOT / "demo-data"


@dataclasses.dataclass(frozen=True)
class Mark:
    """One claim and what was measured for it."""

    claim: str
    measured: str
    reached: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement, its contestants and its marks.

    Attributes:
        title: What is measured.
        prepare: Gives the contestants; what they need lives as long as the stack.
        judge: Gives the marks, from one figure of each kind for each contestant.
        repetitions: How often each contestant is asked; None leaves it to the caller.
        by: Makes one figure of all samples: the median, or the worst one of what must never take longer.
        against: A contestant and a figure of it, of which the others' in the same turn are given in percent: what slows
            a whole turn down is not seen in that.
        about: What a reader has to know of it; or gives that when all is measured.
    """

    title: str
    prepare: Callable[[contextlib.ExitStack, Settings], Contestants]
    judge: Callable[[Medians], list[Mark]]
    repetitions: int | None = None
    by: Callable[[Iterable[float]], float] = statistics.median
    against: tuple[str, str] | None = None
    about: str | Callable[[], str] = ""


def percent_of(against: tuple[str, str]) -> str:
    """Name of the figure that says how much of another contestant's a figure is."""
    return f"% of {against[0]}"


def at_least(claim: str, value: float, limit: float, unit: str = "") -> Mark:
    """A figure that must not be below its limit."""
    return Mark(claim, f"{value:.3g}{unit}", value >= limit)


def at_most(claim: str, value: float, limit: float, unit: str = "") -> Mark:
    """A figure that must not be above its limit."""
    return Mark(claim, f"{value:.3g}{unit}", value <= limit)
