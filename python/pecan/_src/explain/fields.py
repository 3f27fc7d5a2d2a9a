"""Fields of an ExplainResponse in its JSON form. Fields that have their default are absent there."""

from __future__ import annotations

from typing import Any


def word(message: dict[str, Any], field: str, prefix: str, default: str) -> str:
    word = str(message.get(field, "")).removeprefix(prefix).lower()
    return default if word in ("", "unspecified") else word


def count(message: dict[str, Any], field: str) -> int:
    # Numbers of 64 bits are strings in the JSON form.
    return int(message.get(field, 0))


def number(message: dict[str, Any], field: str) -> float:
    return float(message.get(field, 0.0))
