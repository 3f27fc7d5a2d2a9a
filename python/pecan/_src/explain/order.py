"""The order of a job's steps, as Python objects, and its tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from pecan._src.explain import fields, grid, shown

# Most columns of a name in a table: in a wide table, and in a narrow one.
_LONGEST, _SHORTEST = 40, 12


@dataclasses.dataclass(frozen=True)
class ExplainedStep:
    """A step of a registered dataset.

    Attributes:
        name: Name of the step in the graph.
        label: The author's name for the step: its argument `name`, or its function's name. If both are unknown or
            several steps share the label, it is `name`. For a step in a function, its position there follows.
        operation: TensorFlow's operation, for example "MapDataset".
        inside: Name of the `interleave` or `flat_map` in whose function the step is; "" outside of functions.
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
    inside: str
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
class OrderExplanation(shown.Shown):
    """The order of a job's steps and the reasons for it. `str()` returns it as text for people.

    It is equal to another explanation with the same attributes, and to the text of its `order`.

    Attributes:
        job_id: Id of the job.
        order: Option of the job: "off", "auto", "paper" or "paper_unguarded".
        tolerance: Accepted difference of elements: "approximate", "exact" or "any"; "" if the order is off.
        state: "off", "measuring", "proposed", "piloted", "adopted", "rolled back", "refused" or "kept". A piloted order
            runs in one stream of an epoch first. An order is rolled back if production contradicted the trial. "kept":
            no better order was found.
        why: Reason for the state, in a sentence.
        steps: The steps in the registered order, starting at the source.
        predicted_gain: Share of CPU that the planned order is predicted to save; None without a prediction.
        measured_gain: Share of CPU that it saved in the trial; None without a trial.
        measured_interval: 95 % confidence interval of `measured_gain`, (low, high); None without a trial.
        production_gain: Share of CPU that the moved steps save in production; None without enough measurements.
        differences: Differences between the values of the two orders in the trial, one per component.
        advice: What a wider `order_tolerance` would save and change, in a sentence; "" if it would save little.
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
    advice: str
    response: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def planned(self) -> tuple[ExplainedStep, ...]:
        """The steps in the planned order. Without a plan this is the registered order."""
        return tuple(sorted(self.steps, key=lambda step: step.planned_position))

    @property
    def moved(self) -> tuple[ExplainedStep, ...]:
        """The steps that the plan moves, without those that only make room for them."""
        return tuple(step for step in self.steps if step.moved)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.order == other
        if not isinstance(other, OrderExplanation):
            return NotImplemented
        return dataclasses.astuple(self) == dataclasses.astuple(other)

    def _parts(self, width: int | None) -> list[list[shown.Table]]:
        return [tables(self, width)]


def tables(answer: OrderExplanation, width: int | None) -> list[shown.Table]:
    """Returns a table of facts, and those of the steps and of differences if there are any. None limits no names."""
    found = [_facts(answer)]
    if answer.steps:
        half = name = None
        if width is not None:
            # The table of orders has two names and the note of a move in a row. Other tables have one name and numbers.
            half, name = min(_LONGEST, (width - 16) // 2), max(_SHORTEST, min(_LONGEST, width - 80))
        found += _tables(answer, half, name)
    if answer.differences:
        found.append(_differences(answer))
    return found


def _facts(answer: OrderExplanation) -> list[list[str]]:
    order = answer.order if not answer.tolerance else f"{answer.order}, tolerance {answer.tolerance}"
    rows = [["job", answer.job_id], ["order", order], ["state", answer.state], ["why", answer.why]]
    before, after = (fields.number(answer.response, f"predicted_{when}_s") for when in ("before", "after"))
    if answer.predicted_gain is not None:
        text = f"{grid.span(before)} of CPU for an element of the source, {grid.span(after)} in the planned order"
        rows.append(["predicted", f"{text}: {grid.saving(answer.predicted_gain)}"])
    advice = [["advice", answer.advice]] if answer.advice else []
    return [*rows, *_tried(answer), *_in_production(answer), *advice]


def _tried(answer: OrderExplanation) -> list[list[str]]:
    rows: list[list[str]] = []
    trial = answer.response.get("trial")
    if trial is None:
        return rows
    if answer.measured_gain is not None:
        original, ordered, low, high = (
            grid.span(fields.number(trial, name)) for name in ("original_s", "ordered_s", "saved_low_s", "saved_high_s")
        )
        elements = fields.count(trial, "elements")
        text = f"{original} of CPU for an element, {ordered} in the planned order, over {elements}"
        saving = grid.saving(answer.measured_gain)
        rows.append(["measured", f"{text} elements: {saving}. The saving is {low} to {high} (95 % confidence)"])
    rows.append(["trial", f"took {grid.span(fields.number(trial, 'cpu_s'))} of CPU"])
    if str(trial.get("refused", "")) not in answer.why:
        rows.append(["refused", str(trial["refused"])])
    return rows


def _in_production(answer: OrderExplanation) -> list[list[str]]:
    figures = answer.response.get("production", {})
    if answer.production_gain is None:
        return []
    against = "in other streams of the same epochs" if figures.get("same_epochs") else "in earlier epochs"
    ordered, registered = (grid.span(fields.number(figures, f"{order}_s")) for order in ("ordered", "registered"))
    of_ordered, of_registered = (fields.count(figures, f"{order}_elements") for order in ("ordered", "registered"))
    text = f"{ordered} for an element in the planned order ({of_ordered} elements), "
    text += f"{registered} in the registered one ({of_registered} elements) {against}"
    return [["production", f"{text}: {grid.saving(answer.production_gain)}"]]


def _tables(answer: OrderExplanation, half: int | None, name: int | None) -> list[list[list[str]]]:
    """Returns the tables of both orders, of the measurements, and of the reasons."""
    orders = [["", "REGISTERED ORDER", "PLANNED ORDER"]]
    measured = [["", "STEP", "ELEMENTS", "IN EACH", "OUT EACH", "FACTOR", "CPU EACH", "WHAT IT DOES"]]
    reasons = [["", "STEP", "WHY IT IS THERE"]]
    for number, (step, here) in enumerate(zip(answer.steps, answer.planned), 1):
        was = f" (was {here.registered_position + 1})" if here.moved else ""
        orders.append([str(number), grid.clip(_title(step), half), grid.clip(_title(here), half) + was])
        figures = ["-"] * 5
        if step.cpu_s is not None:
            factor = "-" if step.factor is None else f"{step.factor:.3g}"
            sizes = [grid.size(step.bytes_in), grid.size(step.bytes_out)]
            figures = [str(step.elements), *sizes, factor, grid.span(step.cpu_s)]
        measured.append([str(number), grid.clip(step.label, name), *figures, "; ".join(step.traits) or "-"])
        reasons.append([str(number), grid.clip(step.label, name), step.reason or "-"])
    return [orders, measured, reasons]


def _differences(answer: OrderExplanation) -> list[list[str]]:
    rows = [["COMPONENT", "MAX DIFFERENCE", "BOUND", "RANGE IN THE SAMPLE", "VERDICT"]]
    for one in answer.differences:
        verdict = "recorded" if one.bound is None else "within its bound" if one.within else "beyond its bound"
        bound = "any" if one.bound is None else f"{one.bound:.4g}"
        rows.append([str(one.component), f"{one.max_difference:.4g}", bound, f"{one.range:.4g}", verdict])
    return rows


def _title(step: ExplainedStep) -> str:
    named = not step.operation or step.label.startswith(step.operation)
    return step.label if named else f"{step.label} ({step.operation})"
