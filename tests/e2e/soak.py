"""Which cases run only under `make soak`: those whose mistakes other cases find as well."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import TypeVar

Case = TypeVar("Case")
SOAK = bool(os.environ.get("PECAN_SOAK"))


def cases(all_of_them: Iterable[Case], soak: Collection[Case]) -> list[Case]:
    """The cases of a test, without those in `soak` unless this is a soak."""
    every = list(all_of_them)
    assert not [case for case in soak if case not in every], "the soak has a case that does not exist"
    return every if SOAK else [case for case in every if case not in soak]
