"""Reads fields of an ExplainResponse in JSON form. Fields with their default value are absent there."""

from __future__ import annotations

from typing import Any


def word(message: dict[str, Any], field: str, prefix: str, default: str) -> str:
    """Returns the name of an enum value in lower case, without the enum's prefix."""
    value = str(message.get(field, "")).removeprefix(prefix).lower()
    return default if value in ("", "unspecified") else value


def count(message: dict[str, Any], field: str) -> int:
    """Returns an integer. In JSON, integers of 64 bits are strings."""
    return int(message.get(field, 0))


def number(message: dict[str, Any], field: str) -> float:
    """Returns a floating-point number."""
    return float(message.get(field, 0.0))
