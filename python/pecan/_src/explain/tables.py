"""Shows an explanation: as text in columns for terminals, and as HTML for notebooks."""

from __future__ import annotations

import html as markup
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pecan._src.explain import fields

if TYPE_CHECKING:
    from pecan._src.explain.explanation import ExplainedStep, OrderExplanation

_WIDEST, _NARROWEST = 120, 40
# Most columns of a name in a table: in a wide table, and in a narrow one.
_LONGEST, _SHORTEST = 40, 12


def text(answer: OrderExplanation, width: int | None) -> str:
    """Returns all tables as text, in lines of at most `width` columns; None means the terminal's width, at most 120."""
    if width is None:
        width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    width = max(_NARROWEST, width)
    tables = [_grid(_facts(answer), width)]
    if answer.steps:
        # The table of orders has two names and the note of a move in a row; the other tables have one name and numbers.
        half, name = min(_LONGEST, (width - 16) // 2), max(_SHORTEST, min(_LONGEST, width - 80))
        tables += [_grid(rows, width) for rows in _tables(answer, half, name)]
    if answer.differences:
        tables.append(_grid(_differences(answer), width))
    return "\n\n".join(tables)


def html(answer: OrderExplanation) -> str:
    """Returns all tables as HTML."""
    tables = [_facts(answer)]
    if answer.steps:
        tables += _tables(answer, None, None)
    if answer.differences:
        tables.append(_differences(answer))
    return "".join(_html(rows, head=number > 0) for number, rows in enumerate(tables))


def _facts(answer: OrderExplanation) -> list[list[str]]:
    order = answer.order if not answer.tolerance else f"{answer.order}, tolerance {answer.tolerance}"
    rows = [["job", answer.job_id], ["order", order], ["state", answer.state], ["why", answer.why]]
    before, after = (fields.number(answer.response, f"predicted_{when}_s") for when in ("before", "after"))
    if answer.predicted_gain is not None:
        text = f"{_span(before)} of CPU for an element of the source, {_span(after)} in the planned order"
        rows.append(["predicted", f"{text}: {_saving(answer.predicted_gain)}"])
    return [*rows, *_tried(answer), *_in_production(answer)]


def _tried(answer: OrderExplanation) -> list[list[str]]:
    rows: list[list[str]] = []
    trial = answer.response.get("trial")
    if trial is None:
        return rows
    if answer.measured_gain is not None:
        original, ordered, low, high = (
            _span(fields.number(trial, name)) for name in ("original_s", "ordered_s", "saved_low_s", "saved_high_s")
        )
        elements = fields.count(trial, "elements")
        text = f"{original} of CPU for an element, {ordered} in the planned order, over {elements}"
        saving = _saving(answer.measured_gain)
        rows.append(["measured", f"{text} elements: {saving}. Saved are {low} to {high} (95 % confidence)"])
    rows.append(["trial", f"took {_span(fields.number(trial, 'cpu_s'))} of CPU"])
    if str(trial.get("refused", "")) not in answer.why:
        rows.append(["refused", str(trial["refused"])])
    return rows


def _in_production(answer: OrderExplanation) -> list[list[str]]:
    figures = answer.response.get("production", {})
    if answer.production_gain is None:
        return []
    against = "in other streams of the same epochs" if figures.get("same_epochs") else "in earlier epochs"
    ordered, registered = (_span(fields.number(figures, f"{order}_s")) for order in ("ordered", "registered"))
    text = f"{ordered} for an element in the planned order, {registered} in the registered one {against}"
    over = f"{fields.count(figures, 'ordered_elements')} and {fields.count(figures, 'registered_elements')} elements"
    return [["production", f"{text}, over {over}: {_saving(answer.production_gain)}"]]


def _tables(answer: OrderExplanation, half: int | None, name: int | None) -> list[list[list[str]]]:
    """Returns the tables of both orders, of the measurements, and of the reasons."""
    orders = [["", "REGISTERED ORDER", "PLANNED ORDER"]]
    measured = [["", "STEP", "ELEMENTS", "IN EACH", "OUT EACH", "FACTOR", "CPU EACH", "WHAT IT DOES"]]
    reasons = [["", "STEP", "WHY IT IS THERE"]]
    for number, (step, here) in enumerate(zip(answer.steps, answer.planned), 1):
        was = f" (was {here.registered_position + 1})" if here.moved else ""
        orders.append([str(number), _clip(_title(step), half), _clip(_title(here), half) + was])
        figures = ["-"] * 5
        if step.cpu_s is not None:
            factor = "-" if step.factor is None else f"{step.factor:.3g}"
            sizes = [_size(step.bytes_in), _size(step.bytes_out)]
            figures = [str(step.elements), *sizes, factor, _span(step.cpu_s)]
        measured.append([str(number), _clip(step.label, name), *figures, "; ".join(step.traits) or "-"])
        reasons.append([str(number), _clip(step.label, name), step.reason or "-"])
    return [orders, measured, reasons]


def _differences(answer: OrderExplanation) -> list[list[str]]:
    rows = [["COMPONENT", "MAX DIFFERENCE", "BOUND", "RANGE IN THE SAMPLE", "VERDICT"]]
    for one in answer.differences:
        verdict = "recorded" if one.bound is None else "within its bound" if one.within else "beyond its bound"
        bound = "any" if one.bound is None else f"{one.bound:.4g}"
        rows.append([str(one.component), f"{one.max_difference:.4g}", bound, f"{one.range:.4g}", verdict])
    return rows


def _saving(share: float) -> str:
    return f"{abs(100 * share):.1f} % {'more' if share < 0 else 'less'}"


def _span(seconds: float) -> str:
    """Formats a time in seconds with a suitable unit."""
    size = abs(seconds)
    if not size < float("inf"):
        return "-"
    if size == 0:
        return "0 s"
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if size < 1e3 / factor:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if size < 1e3 else f"{seconds:.0f} s"


def _size(count: float | None) -> str:
    if count is None:
        return "-"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    at = 0
    while count >= 1024 and at < len(units) - 1:
        count, at = count / 1024, at + 1
    return f"{int(count)} B" if at == 0 else f"{count:.1f} {units[at]}"


def _title(step: ExplainedStep) -> str:
    named = not step.operation or step.label.startswith(step.operation)
    return step.label if named else f"{step.label} ({step.operation})"


def _breadth(text: str) -> int:
    """Returns the number of terminal columns of a text."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _printable(text: str) -> str:
    """Replaces characters that a terminal could interpret as a command."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _clip(text: str, width: int | None) -> str:
    """Cuts the middle out of a long text: names differ at their ends."""
    if width is None or _breadth(text) <= width:
        return text
    head, tail = "", ""
    for c in text:
        if _breadth(head + c) > (width - 1) // 2:
            break
        head += c
    for c in reversed(text):
        if _breadth(c + tail) > width - 1 - _breadth(head):
            break
        tail = c + tail
    return f"{head}…{tail}"


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and _breadth(lines[-1]) + 1 + _breadth(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for c in word:
            if _breadth(lines[-1] + c) > width:
                lines.append("")
            lines[-1] += c
    return lines


def _grid(rows: Iterable[Sequence[str]], width: int) -> str:
    """Formats rows in columns. The last column wraps; if the others leave too little space, it goes below them."""
    clean = [[_printable(cell) for cell in row] for row in rows]
    columns = [max(_breadth(cell) for cell in column) + 2 for column in list(zip(*clean))[:-1]]
    below = width - sum(columns) < 24
    indent = 4 if below else sum(columns)
    lines = []
    for *cells, last in clean:
        head = "".join(cell + " " * (broad - _breadth(cell)) for cell, broad in zip(cells, columns))
        if below:
            lines.append(head)
            head = " " * indent
        for part in _wrap(last, width - indent):
            lines.append(head + part)
            head = " " * indent
    return "\n".join(line.rstrip() for line in lines)


def _html(rows: Sequence[Sequence[str]], *, head: bool) -> str:
    """Formats rows as an HTML table, with all text escaped."""
    lines = []
    for number, row in enumerate(rows):
        kind = "th" if head and number == 0 else "td"
        cells = "".join(f'<{kind} style="text-align: left">{markup.escape(_printable(cell))}</{kind}>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
