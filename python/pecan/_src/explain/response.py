"""Reads the explanation of a job from the dispatcher's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pecan._src.explain import cache, explanation, fields, order, placement


def from_json(response: dict[str, Any]) -> explanation.Explanation:
    """Returns the explanation in an ExplainResponse in JSON form."""
    return explanation.Explanation(
        order=_order(response),
        placement=placement.from_json(response),
        cache=cache.from_json(response),
        response=response,
    )


def _order(response: dict[str, Any]) -> order.OrderExplanation:
    chosen = fields.word(response, "order", "ORDER_", "off")
    differences = tuple(
        order.OrderDifference(
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
    return order.OrderExplanation(
        job_id=str(response.get("job_id", "")),
        order=chosen,
        tolerance="" if chosen == "off" else fields.word(response, "tolerance", "ORDER_TOLERANCE_", "approximate"),
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
        advice=str(response.get("order_advice", "")),
        response=response,
    )


def _steps(steps: Sequence[dict[str, Any]]) -> tuple[order.ExplainedStep, ...]:
    positions = [fields.count(step, "place") for step in steps]
    if sorted(positions) != list(range(len(steps))):
        # The dispatcher has planned no other order.
        positions = list(range(len(steps)))
    moved = _moved(positions)
    explained = []
    upstream_elements, upstream_inside = 0, ""
    for number, step in enumerate(steps):
        figures, inside = step.get("figures", {}), str(step.get("inside", ""))
        if inside != upstream_inside:
            # The step before the first one of a function is not its input.
            upstream_elements = 0
        elements, given = fields.count(figures, "elements"), upstream_elements or fields.count(figures, "elements")
        bytes_in, bytes_out = fields.count(figures, "bytes_in"), fields.count(figures, "bytes_out")
        explained.append(
            order.ExplainedStep(
                name=str(step.get("node", "")),
                label=str(step.get("label", "") or step.get("node", "")),
                operation=str(step.get("op", "")),
                inside=inside,
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
        upstream_elements, upstream_inside = elements, inside
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
