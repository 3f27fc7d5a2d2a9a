"""What all explanations have in common: they are shown as tables."""

from __future__ import annotations

from pecan._src.explain import grid

Table = list[list[str]]


class Shown:
    """Tables, as text for people and as HTML for notebooks."""

    def _parts(self, width: int | None) -> list[list[Table]]:
        """Returns the tables by part. The first table of a part has no head. `width` limits names; None does not."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Returns the explanation as text for people, in lines of at most `width` columns.

        Args:
            width: Columns, at least 40; None takes the width of the terminal, at most 120.
        """
        columns = grid.columns(width)
        return "\n\n".join(grid.text(rows, columns) for part in self._parts(columns) for rows in part)

    def _repr_html_(self) -> str:
        """Returns the explanation as HTML tables, which notebooks show."""
        return "".join(grid.html(rows, head=n > 0) for part in self._parts(None) for n, rows in enumerate(part))
