"""Selects cases that run only under `make soak`, because other cases find the same mistakes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import TypeVar

Case = TypeVar("Case")
SOAK = bool(os.environ.get("PECAN_SOAK"))


def cases(all_of_them: Iterable[Case], soak: Collection[Case]) -> list[Case]:
    """The cases of a test. Cases in `soak` are left out unless PECAN_SOAK is set."""
    every = list(all_of_them)
    assert not [case for case in soak if case not in every], "`soak` names a case that does not exist"
    return every if SOAK else [case for case in every if case not in soak]
