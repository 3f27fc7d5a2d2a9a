"""The explanation of a job's order of steps, as Python objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pecan._src.explain import fields, tables


@dataclasses.dataclass(frozen=True)
class ExplainedStep:
    """A step of a registered dataset.

    Attributes:
        name: Name of the step in the graph.
        label: The author's name for the step: its argument `name`, or its function's name. If both are unknown or
            several steps share the label, it is `name`.
        operation: TensorFlow's operation, for example "MapDataset".
        registered_position: Position in the registered order, from 0.
        planned_position: Position in the planned order, from 0.
        moved: Whether the plan moves this step. Steps that only make room for a moved step are False.
        elements: Number of elements that it produced in the registered order, including recomputed ones.
        bytes_in: Bytes per input element; None without measurements, as for the next three.
        bytes_out: Bytes per output element.
        factor: Output bytes divided by input bytes: above 1 if the step enlarges the data.
        cpu_s: Seconds of CPU per input element.
        traits: Properties that decide which steps may pass it, a few words each.
        reason: Why it has its position.
    """

    name: str
    label: str
    operation: str
    registered_position: int
    planned_position: int
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
    """The difference between the values of one component in the two orders of a trial.

    Attributes:
        component: Number of the component in the flattened element, from 0.
        max_difference: Largest absolute difference between corresponding values.
        bound: Largest accepted difference; None if every difference is accepted.
        range: Largest value of the component in the sample minus the smallest.
    """

    component: int
    max_difference: float
    bound: float | None
    range: float

    @property
    def within(self) -> bool:
        """Whether the difference is accepted."""
        return self.bound is None or self.max_difference <= self.bound


@dataclasses.dataclass(frozen=True)
class OrderExplanation:
    """The order of a job's steps and the reasons for it. `str()` returns it as text for people.

    Attributes:
        job_id: Id of the job.
        order: Option of the job: "off", "auto" or "paper".
        tolerance: Accepted difference of elements: "approximate", "exact" or "any"; "" if the order is off.
        state: "off", "measuring", "proposed", "piloted" (in one stream of an epoch first), "adopted", "rolled back"
            (production contradicted the trial), "refused", or "kept" (no better order was found).
        why: Reason for the state, in a sentence.
        steps: The steps in the registered order, starting at the source.
        predicted_gain: Share of CPU that the planned order is predicted to save; None without a prediction.
        measured_gain: Share of CPU that it saved in the trial; None without a trial.
        measured_interval: 95 % confidence interval of `measured_gain`, (low, high); None without a trial.
        production_gain: Share of CPU that the moved steps save in production; None without enough measurements.
        differences: Differences between the values of the two orders in the trial, one per component.
        response: The complete answer of the dispatcher, pecan.v1.ExplainResponse in JSON form.
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
        """The steps in the planned order. Without a plan this is the registered order."""
        return tuple(sorted(self.steps, key=lambda step: step.planned_position))

    @property
    def moved(self) -> tuple[ExplainedStep, ...]:
        """The steps that the plan moves, without those that only make room for them."""
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
    """Returns the explanation in an ExplainResponse in JSON form."""
    order = fields.word(response, "order", "ORDER_", "off")
    differences = tuple(
        OrderDifference(
            component=fields.count(one, "component"),
            max_difference=fields.number(one, "max_difference"),
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
    positions = [fields.count(step, "place") for step in steps]
    if sorted(positions) != list(range(len(steps))):
        # The dispatcher has planned no other order.
        positions = list(range(len(steps)))
    moved = _moved(positions)
    explained = []
    upstream_elements = 0
    for number, step in enumerate(steps):
        figures = step.get("figures", {})
        elements, given = fields.count(figures, "elements"), upstream_elements or fields.count(figures, "elements")
        bytes_in, bytes_out = fields.count(figures, "bytes_in"), fields.count(figures, "bytes_out")
        explained.append(
            ExplainedStep(
                name=str(step.get("node", "")),
                label=str(step.get("label", "") or step.get("node", "")),
                operation=str(step.get("op", "")),
                registered_position=number,
                planned_position=positions[number],
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
        # The input of a step is the output of the step before it: filters and batches change the number of elements.
        upstream_elements = elements
    return tuple(explained)


def _moved(positions: list[int]) -> list[bool]:
    """Returns for each step whether it moves, with as few moves as possible. Of two swapped steps, the later moves.

    The steps that stay are a longest increasing subsequence of the positions.
    """
    rows: list[list[int]] = []
    for number, position in enumerate(positions):
        smaller = [row for row in rows if positions[row[-1]] < position]
        rows.append([*_longest(smaller), number])
    stay = _longest(rows)
    return [number not in stay for number in range(len(positions))]


def _longest(rows: list[list[int]]) -> list[int]:
    return max(rows, key=lambda row: len(row)) if rows else []
