"""Why the steps of a job's dataset run in the order in which they do: asked of the dispatcher, and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pecan._src.explain import fields, tables


@dataclasses.dataclass(frozen=True)
class ExplainedStep:
    """A step of a dataset, in the order in which it was registered.

    Attributes:
        name: Its name in the graph.
        label: What its author calls it: the `name` of the step, or its function; the name where that is not known or
            several steps are called that.
        operation: What it is, as TensorFlow calls it.
        registered: Its place in the registered order, from 0.
        place: Its place in the planned order, from 0.
        moved: Whether it was moved; others only make room.
        elements: How many elements it gave, in the registered order. Work that was done again counts too.
        bytes_in: Bytes per element that it got; None where nothing was measured, as for the next three.
        bytes_out: Bytes per element that it gave.
        factor: By how much it makes the data larger (above 1) or smaller.
        cpu_s: Seconds of CPU per element that it got.
        traits: What it does, in a few words each.
        reason: Why it stands where it does.
    """

    name: str
    label: str
    operation: str
    registered: int
    place: int
    moved: bool
    elements: int
    bytes_in: float | None
    bytes_out: float | None
    factor: float | None
    cpu_s: float | None
    traits: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class OrderDifference:
    """How far the values of a component were apart in the two orders.

    Attributes:
        component: Its number, in the flattened element.
        worst: The largest difference of two values at one place.
        bound: The most that is allowed; None where any is.
        range: The largest value of the sample less the smallest.
    """

    component: int
    worst: float
    bound: float | None
    range: float

    @property
    def within(self) -> bool:
        """Whether the difference is allowed."""
        return self.bound is None or self.worst <= self.bound


@dataclasses.dataclass(frozen=True)
class OrderExplanation:
    """Why the steps of a job's dataset run in the order in which they do; `str()` of it is for people.

    Attributes:
        job_id: The job.
        order: Who decides: "off", "auto" or "paper".
        tolerance: How far elements may differ: "approximate", "exact" or "any"; "" where the order is off.
        state: "off", "measuring", "proposed", "piloted" in one stream of an epoch first, "adopted", "rolled back" where
            production contradicted the trial, "refused", or "kept" where nothing better was found.
        why: Why that is so, in a sentence.
        steps: The steps in the registered order, the one next to the source first.
        predicted_gain: The share of CPU that the planned order is predicted to save; None where nothing was predicted.
        measured_gain: The share that it saved in the trial; None where nothing was tried.
        measured_interval: Between which shares it is with 95 % confidence; None where nothing was tried.
        production_gain: The share that steps which move save in production; None where that says nothing yet.
        differences: How far the components of elements were apart in the trial.
        response: All of it, as the dispatcher answered (pecan.v1.ExplainResponse).
    """

    job_id: str
    order: str
    tolerance: str
    state: str
    why: str
    steps: tuple[ExplainedStep, ...]
    predicted_gain: float | None
    measured_gain: float | None
    measured_interval: tuple[float, float] | None
    production_gain: float | None
    differences: tuple[OrderDifference, ...]
    response: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def planned(self) -> tuple[ExplainedStep, ...]:
        """The steps in the planned order; the registered one where no other was planned."""
        return tuple(sorted(self.steps, key=lambda step: step.place))

    @property
    def moved(self) -> tuple[ExplainedStep, ...]:
        """The steps that stand elsewhere in the planned order, without those that only made room for them."""
        return tuple(step for step in self.steps if step.moved)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Returns the explanation as text for people, in lines of at most `width` columns.

        Args:
            width: Columns, at least 40; None takes the width of the terminal, at most 120.
        """
        return tables.text(self, width)

    def _repr_html_(self) -> str:
        """Returns the explanation as HTML tables, which notebooks show."""
        return tables.html(self)


def from_response(response: dict[str, Any]) -> OrderExplanation:
    """What an ExplainResponse in its JSON form says."""
    order = fields.word(response, "order", "ORDER_", "off")
    differences = tuple(
        OrderDifference(
            component=fields.count(one, "component"),
            worst=fields.number(one, "max_difference"),
            bound=fields.number(one, "bound") if fields.number(one, "bound") >= 0 else None,
            range=fields.number(one, "range"),
        )
        for one in response.get("trial", {}).get("components", ())
    )
    trial, production = response.get("trial", {}), response.get("production", {})
    registered = fields.number(production, "registered_s")
    before, original = fields.number(response, "predicted_before_s"), fields.number(trial, "original_s")
    measured = original > 0
    return OrderExplanation(
        job_id=str(response.get("job_id", "")),
        order=order,
        tolerance="" if order == "off" else fields.word(response, "tolerance", "ORDER_TOLERANCE_", "approximate"),
        state=str(response.get("state", "")),
        why=str(response.get("why", "")),
        steps=_steps(response.get("steps", ())),
        predicted_gain=(before - fields.number(response, "predicted_after_s")) / before if before > 0 else None,
        measured_gain=(original - fields.number(trial, "ordered_s")) / original if measured else None,
        measured_interval=(
            (fields.number(trial, "saved_low_s") / original, fields.number(trial, "saved_high_s") / original)
            if measured
            else None
        ),
        production_gain=(registered - fields.number(production, "ordered_s")) / registered if registered > 0 else None,
        differences=differences,
        response=response,
    )


def _steps(steps: Sequence[dict[str, Any]]) -> tuple[ExplainedStep, ...]:
    places = [fields.count(step, "place") for step in steps]
    if sorted(places) != list(range(len(steps))):
        # No other order was planned.
        places = list(range(len(steps)))
    moved = _moved(places)
    found = []
    given_below = 0
    for number, step in enumerate(steps):
        figures = step.get("figures", {})
        elements, given = fields.count(figures, "elements"), given_below or fields.count(figures, "elements")
        bytes_in, bytes_out = fields.count(figures, "bytes_in"), fields.count(figures, "bytes_out")
        found.append(
            ExplainedStep(
                name=str(step.get("node", "")),
                label=str(step.get("label", "") or step.get("node", "")),
                operation=str(step.get("op", "")),
                registered=number,
                place=places[number],
                moved=moved[number],
                elements=elements,
                bytes_in=bytes_in / given if elements else None,
                bytes_out=bytes_out / elements if elements else None,
                factor=bytes_out / bytes_in if elements and bytes_in else None,
                cpu_s=fields.number(figures, "self_cpu_s") / given if elements else None,
                traits=tuple(str(trait) for trait in step.get("traits", ())),
                reason=str(step.get("reason", "")),
            )
        )
        # A filter and a batch are given other elements than they give.
        given_below = elements
    return tuple(found)


def _moved(places: list[int]) -> list[bool]:
    """The fewest steps that have to be moved for the planned order; of two that only change places, the later one."""
    rows: list[list[int]] = []
    for number, place in enumerate(places):
        below = [row for row in rows if places[row[-1]] < place]
        rows.append([*_longest(below), number])
    stay = _longest(rows)
    return [number not in stay for number in range(len(places))]


def _longest(rows: list[list[int]]) -> list[int]:
    return max(rows, key=lambda row: len(row)) if rows else []
