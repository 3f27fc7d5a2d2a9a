"""Why the steps of a job's dataset run in the order in which they do: asked of the dispatcher, and shown."""

from __future__ import annotations

import dataclasses
import html
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from pecan._src import checks, errors, options

_WIDEST, _NARROWEST = 120, 40
# What a name takes in a table at most, and where there is hardly room for it.
_LONGEST, _SHORTEST = 40, 12


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
        """The whole for people, in lines of at most `width` columns; None takes the terminal's, and 120 at most."""
        if width is None:
            width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
        width = max(_NARROWEST, width)
        tables = [_grid(self._facts(), width)]
        if self.steps:
            # Beside a name there is room for another and the note that it was moved, and beside the figures for a name
            # and some words.
            half, name = min(_LONGEST, (width - 16) // 2), max(_SHORTEST, min(_LONGEST, width - 80))
            tables += [_grid(rows, width) for rows in self._tables(half, name)]
        if self.differences:
            tables.append(_grid(self._differences(), width))
        return "\n\n".join(tables)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        tables = [self._facts()]
        if self.steps:
            tables += self._tables(None, None)
        if self.differences:
            tables.append(self._differences())
        return "".join(_html(rows, head=number > 0) for number, rows in enumerate(tables))

    def _facts(self) -> list[list[str]]:
        order = self.order if not self.tolerance else f"{self.order}, tolerance {self.tolerance}"
        rows = [["job", self.job_id], ["order", order], ["state", self.state], ["why", self.why]]
        before, after = (_number(self.response, f"predicted_{when}_s") for when in ("before", "after"))
        if self.predicted_gain is not None:
            text = f"{_span(before)} of CPU for an element of the source, {_span(after)} in the planned order"
            rows.append(["predicted", f"{text}: {_saving(self.predicted_gain)}"])
        return [*rows, *self._tried(), *self._in_production()]

    def _tried(self) -> list[list[str]]:
        rows: list[list[str]] = []
        trial = self.response.get("trial")
        if trial is None:
            return rows
        if self.measured_gain is not None:
            original, ordered, low, high = (
                _span(_number(trial, name)) for name in ("original_s", "ordered_s", "saved_low_s", "saved_high_s")
            )
            text = f"{original} of CPU for an element, {ordered} in the planned order, over {_count(trial, 'elements')}"
            saving = _saving(self.measured_gain)
            rows.append(["measured", f"{text} elements: {saving}. Saved are {low} to {high} (95 % confidence)"])
        rows.append(["trial", f"took {_span(_number(trial, 'cpu_s'))} of CPU"])
        if str(trial.get("refused", "")) not in self.why:
            rows.append(["refused", str(trial["refused"])])
        return rows

    def _in_production(self) -> list[list[str]]:
        figures = self.response.get("production", {})
        if self.production_gain is None:
            return []
        against = "in streams beside it" if figures.get("same_epochs") else "in epochs before it"
        ordered, registered = (_span(_number(figures, f"{order}_s")) for order in ("ordered", "registered"))
        text = f"{ordered} for an element in the planned order, {registered} in the registered one {against}"
        over = f"{_count(figures, 'ordered_elements')} and {_count(figures, 'registered_elements')} elements"
        return [["production", f"{text}, over {over}: {_saving(self.production_gain)}"]]

    def _tables(self, half: int | None, name: int | None) -> list[list[list[str]]]:
        """The two orders side by side, what the steps did, and why they stand where they do."""
        orders = [["", "REGISTERED ORDER", "PLANNED ORDER"]]
        did = [["", "STEP", "ELEMENTS", "IN EACH", "OUT EACH", "FACTOR", "CPU EACH", "WHAT IT DOES"]]
        reasons = [["", "STEP", "WHY IT STANDS THERE"]]
        for number, (step, here) in enumerate(zip(self.steps, self.planned), 1):
            was = f" (was {here.registered + 1})" if here.moved else ""
            orders.append([str(number), _clip(_title(step), half), _clip(_title(here), half) + was])
            figures = ["-"] * 5
            if step.cpu_s is not None:
                factor = "-" if step.factor is None else f"{step.factor:.3g}"
                sizes = [_size(step.bytes_in), _size(step.bytes_out)]
                figures = [str(step.elements), *sizes, factor, _span(step.cpu_s)]
            did.append([str(number), _clip(step.label, name), *figures, "; ".join(step.traits) or "-"])
            reasons.append([str(number), _clip(step.label, name), step.reason or "-"])
        return [orders, did, reasons]

    def _differences(self) -> list[list[str]]:
        rows = [["COMPONENT", "WORST DIFFERENCE", "BOUND", "RANGE IN THE SAMPLE", "VERDICT"]]
        for one in self.differences:
            verdict = "recorded" if one.bound is None else "within its bound" if one.within else "beyond its bound"
            bound = "any" if one.bound is None else f"{one.bound:.4g}"
            rows.append([str(one.component), f"{one.worst:.4g}", bound, f"{one.range:.4g}", verdict])
        return rows


def explain(
    dataset_or_job: Any,
    service: Any = None,
    *,
    dispatcher_timeout_s: float | None = None,
) -> OrderExplanation:
    """Asks why the steps of a job's dataset run in the order in which they do: what moved, what did not, and why.

    Args:
        dataset_or_job: What `distribute()` gave, or a dataset made of it; or the name or id of a job.
        service: The dispatcher that has the job of that name, "host:port" or "pecan://host:port"; None is the private
            cluster of this process. Not with a dataset, which knows its own.
        dispatcher_timeout_s: How long, in seconds, the dispatcher may be out of reach; None is 10 s. Not with a
            dataset.

    Returns:
        An explanation; print it.

    Raises:
        PecanError: If there is no such job (a `LookupError`), for arguments that cannot be right, and where the service
            cannot be reached.

    Example:
        >>> print(pecan.explain(dataset))
        >>> pecan.explain("train", "host:5050").moved
    """
    if not isinstance(dataset_or_job, str):
        return from_response(_of_dataset(dataset_or_job, service, dispatcher_timeout_s))
    name = checks.name("job_name", dataset_or_job)
    timeout, _ = options.timeouts(dispatcher_timeout_s)
    from pecan._src.client import session
    from pecan._src.servers import private_cluster

    if service is not None:
        target = checks.service_target(service)
    else:
        cluster = private_cluster.running()
        if cluster is None:
            raise errors.InvalidArgumentError(
                f"explain({name!r}) needs to know whose job that is, since this process has no private cluster: give "
                'the dispatcher, as in pecan.explain("train", "host:5050")'
            )
        target = cluster.target
    return from_response(session.connect(target, timeout).explain(name or ""))


def _of_dataset(dataset: Any, service: Any, dispatcher_timeout_s: float | None) -> dict[str, Any]:
    """Asks for the job behind a dataset."""
    if not hasattr(dataset, "element_spec"):
        raise errors.InvalidTypeError(
            f"explain() needs what distribute() gave, or the name of a job, got {type(dataset).__name__}: write "
            'pecan.explain(dataset) or pecan.explain("train", "host:5050")'
        )
    if service is not None or dispatcher_timeout_s is not None:
        raise errors.InvalidArgumentError(
            "explain() asks the service that the dataset is read from: leave `service` and `dispatcher_timeout_s` out, "
            "or give the job's name in the place of the dataset"
        )
    from pecan._src.client import native
    from pecan._src.dataset import resume

    job = resume.job_of(dataset, "explain()")
    answer: dict[str, Any] = native.load().wait_json("ExplainJob", job)
    return answer


def from_response(response: dict[str, Any]) -> OrderExplanation:
    """What an ExplainResponse in its JSON form says."""
    order = _word(response, "order", "ORDER_", "off")
    differences = tuple(
        OrderDifference(
            component=_count(one, "component"),
            worst=_number(one, "max_difference"),
            bound=_number(one, "bound") if _number(one, "bound") >= 0 else None,
            range=_number(one, "range"),
        )
        for one in response.get("trial", {}).get("components", ())
    )
    trial, production = response.get("trial", {}), response.get("production", {})
    registered = _number(production, "registered_s")
    before, original = _number(response, "predicted_before_s"), _number(trial, "original_s")
    measured = original > 0
    return OrderExplanation(
        job_id=str(response.get("job_id", "")),
        order=order,
        tolerance="" if order == "off" else _word(response, "tolerance", "ORDER_TOLERANCE_", "approximate"),
        state=str(response.get("state", "")),
        why=str(response.get("why", "")),
        steps=_steps(response.get("steps", ())),
        predicted_gain=(before - _number(response, "predicted_after_s")) / before if before > 0 else None,
        measured_gain=(original - _number(trial, "ordered_s")) / original if measured else None,
        measured_interval=(
            (_number(trial, "saved_low_s") / original, _number(trial, "saved_high_s") / original) if measured else None
        ),
        production_gain=(registered - _number(production, "ordered_s")) / registered if registered > 0 else None,
        differences=differences,
        response=response,
    )


def _steps(steps: Sequence[dict[str, Any]]) -> tuple[ExplainedStep, ...]:
    places = [_count(step, "place") for step in steps]
    if sorted(places) != list(range(len(steps))):
        # No other order was planned.
        places = list(range(len(steps)))
    moved = _moved(places)
    found = []
    given_below = 0
    for number, step in enumerate(steps):
        figures = step.get("figures", {})
        elements, given = _count(figures, "elements"), given_below or _count(figures, "elements")
        bytes_in, bytes_out = _count(figures, "bytes_in"), _count(figures, "bytes_out")
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
                cpu_s=_number(figures, "self_cpu_s") / given if elements else None,
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


def _word(message: dict[str, Any], field: str, prefix: str, default: str) -> str:
    word = str(message.get(field, "")).removeprefix(prefix).lower()
    return default if word in ("", "unspecified") else word


def _count(message: dict[str, Any], field: str) -> int:
    # Numbers of 64 bits are strings in the JSON form.
    return int(message.get(field, 0))


def _number(message: dict[str, Any], field: str) -> float:
    return float(message.get(field, 0.0))


def _saving(share: float) -> str:
    return f"{abs(100 * share):.1f} % {'more' if share < 0 else 'less'}"


def _span(seconds: float) -> str:
    """A time that may be short."""
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
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _printable(text: str) -> str:
    """The text without what a terminal would take for a command."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _clip(text: str, width: int | None) -> str:
    """Leaves out the middle of what is too broad: names differ at their ends."""
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
    """Rows whose last column is broken into lines that fit; where the others leave it no room it stands below them."""
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
    """A table in which nothing is taken for markup that came from elsewhere."""
    lines = []
    for number, row in enumerate(rows):
        kind = "th" if head and number == 0 else "td"
        cells = "".join(f'<{kind} style="text-align: left">{html.escape(_printable(cell))}</{kind}>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
