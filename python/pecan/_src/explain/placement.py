"""The placement of a job's workers, as Python objects, and its tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from pecan._src.explain import fields, grid, shown

# Number of elements whose cost the table of candidates shows.
_PER_COST = 1000


@dataclasses.dataclass(frozen=True)
class WorkerPrices:
    """The prices that the dispatcher uses for a job, per hour.

    Attributes:
        currency: Currency of the table of prices; "" if the table names none.
        trainer: Price of one trainer with its host.
        remote: Price of one remote worker.
        local: Price of one local worker.
        job: Price of the trainers and workers that the job has now.
    """

    currency: str
    trainer: float
    remote: float
    local: float
    job: float


@dataclasses.dataclass(frozen=True)
class PlacementCandidate:
    """Numbers of workers that the search compared.

    Attributes:
        remote: Number of remote workers.
        local: Number of local workers.
        predicted_s: Predicted seconds between two elements of a trainer; None without a prediction.
        measured_s: Measured seconds between two elements; None if it was not measured.
        predicted_cost: Predicted price of 1,000 elements, in the currency of the prices; None without prices.
        measured_cost: Price of 1,000 elements by the measured time; None without prices or without a measurement.
        windows: Number of measurement windows behind `measured_s`.
        score: What the objective minimises: the lowest is the best.
    """

    remote: int
    local: int
    predicted_s: float | None
    measured_s: float | None
    predicted_cost: float | None
    measured_cost: float | None
    windows: int
    score: float


@dataclasses.dataclass(frozen=True)
class PlacementExplanation(shown.Shown):
    """How many workers serve a job, and why.

    Attributes:
        objective: "cost", "time" or "budget".
        remote: Number of remote workers that the job should have.
        local: Number of local workers that the job should have.
        running_remote: Number of remote workers that serve the job now.
        running_local: Number of local workers that serve the job now.
        state: "start" (nothing was measured yet), "search" or "monitor" (the search has ended, and waits for changes).
        converged: Whether the search has ended for now.
        why: Reason for the decision, in a sentence.
        candidates: The compared numbers of workers, best first.
        prices: Prices in use; None if there are none.
        search_windows: Number of measurement windows of all searches so far.
        search_lost_s: Seconds of these windows that the best known numbers of workers would have saved.
        search_cost: Price of `search_lost_s`; None without prices.
        response: The complete answer of the dispatcher, pecan.v1.ExplainResponse in JSON form.
    """

    objective: str
    remote: int
    local: int
    running_remote: int
    running_local: int
    state: str
    converged: bool
    why: str
    candidates: tuple[PlacementCandidate, ...]
    prices: WorkerPrices | None
    search_windows: int
    search_lost_s: float
    search_cost: float | None
    response: dict[str, Any] = dataclasses.field(repr=False)

    def _parts(self, width: int | None) -> list[list[shown.Table]]:
        return [tables(self.response, self)]


def from_json(response: dict[str, Any]) -> PlacementExplanation | None:
    """Returns the placement in an ExplainResponse in JSON form; None if the job has no objective."""
    objective = str(response.get("placement_options", {}).get("objective", ""))
    if not objective:
        return None
    decided, fleet = response.get("placement", {}), response.get("fleet", {})
    prices = _prices(fleet)
    trainers = max(fields.count(fleet, "trainers"), 1)
    return PlacementExplanation(
        objective=objective,
        remote=fields.count(decided, "remote"),
        local=fields.count(decided, "local"),
        running_remote=fields.count(fleet, "remote"),
        running_local=fields.count(fleet, "local"),
        state=str(decided.get("state", "")),
        converged=bool(decided.get("converged", False)),
        why=str(decided.get("why", "")),
        candidates=tuple(_candidate(one, prices, trainers) for one in decided.get("candidates", ())),
        prices=prices,
        search_windows=fields.count(decided, "search_windows"),
        search_lost_s=fields.number(decided, "search_lost_s"),
        search_cost=None if prices is None else fields.number(decided, "search_bill"),
        response=response,
    )


def _prices(fleet: dict[str, Any]) -> WorkerPrices | None:
    given = fleet.get("prices")
    if given is None:
        return None
    trainer, remote, local, job = (fields.number(given, name) for name in ("trainer", "remote", "local", "job"))
    return WorkerPrices(str(given.get("currency", "")), trainer, remote, local, job)


def _candidate(one: dict[str, Any], prices: WorkerPrices | None, trainers: int) -> PlacementCandidate:
    remote, local = fields.count(one, "remote"), fields.count(one, "local")
    predicted, measured = (fields.number(one, f"{how}_s") or None for how in ("predicted", "measured"))

    def cost(seconds: float | None) -> float | None:
        if prices is None or seconds is None:
            return None
        per_hour = prices.trainer * trainers + prices.remote * remote + prices.local * local
        return _PER_COST * seconds * per_hour / trainers / 3600

    return PlacementCandidate(
        remote=remote,
        local=local,
        predicted_s=predicted,
        measured_s=measured,
        predicted_cost=cost(predicted),
        measured_cost=cost(measured),
        windows=fields.count(one, "windows"),
        score=fields.number(one, "score"),
    )


def tables(response: dict[str, Any], placed: PlacementExplanation | None) -> list[list[list[str]]]:
    """Returns a table of facts, and one of the candidates if there are any."""
    fleet = response.get("fleet")
    if placed is None:
        text = "the job has no objective, so all workers serve it"
        if fleet is not None:
            text += f": now {_workers(fields.count(fleet, 'remote'), fields.count(fleet, 'local'))}"
        return [[["placement", text]]]
    wanted, running = _workers(placed.remote, placed.local), _workers(placed.running_remote, placed.running_local)
    facts = [
        ["placement", f"{wanted} wanted, {running} running"],
        ["objective", _objective(response["placement_options"])],
        ["state", placed.state + (": the search has ended" if placed.converged else "")],
        ["why", placed.why],
        ["prices", _priced_fleet(fleet or {}, placed.prices)],
        ["search", _search(placed)],
    ]
    return [facts, _candidates(placed)] if placed.candidates else [facts]


def _workers(remote: int, local: int) -> str:
    return f"{remote} remote and {local} local workers"


def _objective(options: dict[str, Any]) -> str:
    text = str(options.get("objective", ""))
    if fields.number(options, "budget_per_hour") > 0:
        text += f" of {_money(fields.number(options, 'budget_per_hour'))} per hour"
    remote, local = (
        _limit(fields.count(options, f"min_{kind}"), fields.count(options, f"max_{kind}"))
        for kind in ("remote", "local")
    )
    return f"{text}, with {remote} remote and {local} local workers"


def _limit(least: int, most: int) -> str:
    """Formats the bounds of a number of workers. A maximum of 0 is none, and a negative one allows no worker."""
    if most < 0:
        return "no"
    if most == 0:
        return f"at least {least}" if least > 0 else "any number of"
    return f"{least} to {most}" if least > 0 else f"at most {most}"


def _priced_fleet(fleet: dict[str, Any], prices: WorkerPrices | None) -> str:
    if problem := str(fleet.get("prices_problem", "")):
        return f"none: {problem}"
    if prices is None:
        return "none: the dispatcher has no table of prices"
    trainer, remote, local, job = (_money(p) for p in (prices.trainer, prices.remote, prices.local, prices.job))
    text = f"in {prices.currency or 'money'} per hour: {trainer} for a trainer, {remote} for a remote worker"
    text += f", {local} for a local worker, {job} for the job with {fields.count(fleet, 'trainers')} trainers"
    return f"{text}. The costs below are of {_PER_COST} elements"


def _search(placed: PlacementExplanation) -> str:
    if not placed.search_windows:
        return "no measurement window yet"
    lost = grid.span(placed.search_lost_s)
    if placed.prices is not None and placed.search_cost is not None:
        lost += f" or {_amount(placed.search_cost, placed.prices)}"
    return f"windows measured: {placed.search_windows}; they cost {lost} more than with the best known workers"


def _candidates(placed: PlacementExplanation) -> list[list[str]]:
    prices = placed.prices
    costs = [] if prices is None else ["PREDICTED COST", "MEASURED COST"]
    rows = [["WORKERS", "WINDOWS", "PREDICTED", "MEASURED", *costs, "SCORE"]]
    for one in placed.candidates:
        name = f"{one.remote} remote, {one.local} local"
        if (one.remote, one.local) == (placed.remote, placed.local):
            name += " (wanted)"
        row = [name, str(one.windows)]
        row += ["-" if time is None else grid.span(time) for time in (one.predicted_s, one.measured_s)]
        if prices is not None:
            row += ["-" if c is None else _amount(c, prices) for c in (one.predicted_cost, one.measured_cost)]
        rows.append([*row, f"{one.score:.4g}"])
    return rows


def _amount(value: float, prices: WorkerPrices) -> str:
    return f"{_money(value)} {prices.currency or 'money'}"


def _money(value: float) -> str:
    """Formats an amount with three digits, and large ones with all."""
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"
