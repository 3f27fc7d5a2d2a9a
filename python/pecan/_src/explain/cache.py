"""The steps of a job that may be cached, as Python objects, and their tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from pecan._src.explain import fields, grid, shown

# Most columns of a name in a table: in a wide table, and in a narrow one.
_LONGEST, _SHORTEST = 40, 12
_CHOICES = {
    "candidates": "marked steps may be cached",
    "auto": "marked steps may be cached, and those that the service finds",
    "paper": "marked steps, the step after the source and the end of the pipeline may be cached",
    "off": "no step may be cached",
}


@dataclasses.dataclass(frozen=True)
class CacheCandidate:
    """A step whose elements may be cached, or a mark that Pecan cannot use.

    Attributes:
        name: The user's name for the step; "" for `pecan.cache()` and for steps that the service found.
        step: Name of the step in the graph.
        origin: "forced" (`pecan.cache()`), "marked" (`pecan.cache_candidate()`) or "found" (by the service).
        freezes: Whether random steps before it repeat the values of the first epoch.
        legal: Whether its elements can be cached.
        reason: Code of the reason why they cannot, such as "random"; "" if they can. The page of errors has all codes.
        why: A sentence; "" if there is nothing to say. It says why its elements cannot be cached, or what you must know
            before you rely on a cache there. It may also say what the decision expects of such a cache.
        stored: Whether workers store its elements.
    """

    name: str
    step: str
    origin: str
    freezes: bool
    legal: bool
    reason: str
    why: str
    stored: bool


@dataclasses.dataclass(frozen=True)
class CacheExplanation(shown.Shown):
    """Which steps of a job may be cached, and why others may not. `str()` returns it as text for people.

    Attributes:
        cache: Option of the job: "candidates", "auto", "paper" or "off".
        candidates: The candidates, from the source on. At most 12 of them are legal.
        state: State of the job's cache: "off", "filling", "committed" or "used", with the reason where it helps; ""
            without one.
        decision: Which step is cached by decision and why, or what the decision waits for; "" if nothing is to be
            decided.
        problem: Why nothing can be cached, and the way out; "" if something can, or if there is no candidate.
        response: The complete answer of the dispatcher, pecan.v1.ExplainResponse in JSON form.
    """

    cache: str
    candidates: tuple[CacheCandidate, ...]
    state: str
    decision: str
    problem: str
    response: dict[str, Any] = dataclasses.field(repr=False)

    def _parts(self, width: int | None) -> list[list[shown.Table]]:
        return [tables(self, width)]


def from_json(response: dict[str, Any]) -> CacheExplanation:
    """Returns the candidates in an ExplainResponse in JSON form. Older dispatchers do not list them."""
    state = str(response.get("cache_status", {}).get("state", ""))
    return CacheExplanation(
        cache=fields.word(response, "cache", "CACHE_", "candidates"),
        candidates=tuple(_candidate(one, response, state) for one in response.get("cache_candidates", ())),
        state=state,
        decision=_decision(response),
        problem=str(response.get("cache_problem", "")),
        response=response,
    )


def _decision(response: dict[str, Any]) -> str:
    decision = response.get("cache_decision")
    if decision is None:
        waits = str(response.get("cache_waits_for", ""))
        return f"waits: {waits}" if waits else ""
    node = str(decision.get("node", ""))
    what = f"the elements of {node} are cached" if node else "nothing is cached"
    return f"from epoch {fields.count(decision, 'epoch')} on, {what}: {decision.get('why', '')}"


def _candidate(one: dict[str, Any], response: dict[str, Any], state: str) -> CacheCandidate:
    node, decision = str(one.get("node", "")), response.get("cache_decision", {})
    predicted = {str(each.get("node", "")): str(each.get("why", "")) for each in decision.get("candidates", ())}
    reason, origin = fields.word(one, "refusal", "CACHE_REFUSAL_", ""), fields.word(one, "origin", "", "found")
    chosen = origin == "forced" or node == decision.get("node")
    return CacheCandidate(
        name=str(one.get("name", "")),
        step=node,
        origin=origin,
        freezes=bool(one.get("freezes", False)),
        legal=not reason,
        reason=reason,
        why=str(one.get("why", "")) or predicted.get(node, ""),
        stored=not reason and chosen and state != "" and not state.startswith("off"),
    )


def tables(found: CacheExplanation, width: int | None) -> list[list[list[str]]]:
    """Returns a table of facts, and one of the candidates if there are any. `width` limits names; None does not."""
    if "cache" not in found.response:
        return []
    choice = f"{found.cache}: {_CHOICES.get(found.cache, 'see a newer pecan')}"
    if not found.candidates and found.cache != "off":
        choice += "; there is none"
    facts = [["cache", choice]]
    if status := found.response.get("cache_status"):
        segments = f"{fields.count(status, 'segments')} of {fields.count(status, 'streams')} segments"
        facts.append(["stored", f"{found.state}, {segments}, {grid.size(fields.count(status, 'bytes'))}"])
    if found.decision:
        facts.append(["decision", found.decision])
    if found.problem not in found.state:
        facts.append(["problem", found.problem])
    return [facts, _candidates(found, width)] if found.candidates else [facts]


def _candidates(found: CacheExplanation, width: int | None) -> list[list[str]]:
    labels = {step.get("node", ""): step.get("label", "") for step in found.response.get("steps", ())}
    longest = None if width is None else max(_SHORTEST, min(_LONGEST, width - 80))
    rows = [["CANDIDATE", "STEP", "ELEMENTS", "WHY"]]
    for one in found.candidates:
        name = "pecan.cache()" if one.origin == "forced" else one.name or "-"
        step = (one.origin == "found" and labels.get(one.step)) or one.step
        elements, why = "computed", one.why or "no decision to store it"
        if not one.legal:
            elements, why = "not cacheable", f"{one.reason}: {one.why}"
        elif one.stored:
            elements, why = "stored", one.why or "-"
        if one.freezes:
            elements += ", frozen"
        rows.append([name, grid.clip(step, longest), elements, why])
    return rows
