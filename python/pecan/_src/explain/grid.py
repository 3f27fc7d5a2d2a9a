"""Formats tables: as text in columns for terminals, and as HTML for notebooks."""

from __future__ import annotations

import html as markup
import shutil
import unicodedata
from collections.abc import Iterable, Sequence

_WIDEST, _NARROWEST = 120, 40


def columns(width: int | None) -> int:
    """Returns the columns of a table; None means the terminal's width, at most 120."""
    if width is None:
        width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    return max(_NARROWEST, width)


def saving(share: float) -> str:
    """Formats a saved share, negative if more was spent."""
    return f"{abs(100 * share):.1f} % {'more' if share < 0 else 'less'}"


def span(seconds: float) -> str:
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


def size(count: float | None) -> str:
    """Formats a number of bytes with a suitable unit; None as "-"."""
    if count is None:
        return "-"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    at = 0
    while count >= 1024 and at < len(units) - 1:
        count, at = count / 1024, at + 1
    return f"{int(count)} B" if at == 0 else f"{count:.1f} {units[at]}"


def _breadth(text: str) -> int:
    """Returns the number of terminal columns of a text."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _printable(text: str) -> str:
    """Replaces characters that a terminal could interpret as a command."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def clip(text: str, width: int | None) -> str:
    """Replaces the middle of a text longer than `width` by "…". Names usually differ at their ends."""
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


def text(rows: Iterable[Sequence[str]], width: int) -> str:
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


def html(rows: Sequence[Sequence[str]], *, head: bool) -> str:
    """Formats rows as an HTML table, with all text escaped."""
    lines = []
    for number, row in enumerate(rows):
        kind = "th" if head and number == 0 else "td"
        cells = "".join(f'<{kind} style="text-align: left">{markup.escape(_printable(cell))}</{kind}>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
