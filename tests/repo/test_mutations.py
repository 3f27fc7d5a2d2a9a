"""The mutations of `make mutate` still find their guards. That command takes minutes, so nobody runs it at each change."""

from __future__ import annotations

from tests import mutate


def test_the_text_of_each_guard_is_in_one_place():
    sources = mutate.sources()
    for mutation in mutate.MUTATIONS:
        assert mutate.place(mutation, sources)
