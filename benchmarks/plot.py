"""Draws figures of a report as SVG text."""

from __future__ import annotations

import dataclasses
import html
import math

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 840, 90, 370
_GREY = 'font-size="11" fill="#555"'


@dataclasses.dataclass(frozen=True)
class Line:
    """A line through points.

    Attributes:
        name: Its name in the legend.
        points: Coordinates x and y.
        colour: Colour of the line.
        dots: Whether the line is thick and has a dot at each point.
    """

    name: str
    points: list[tuple[float, float]]
    colour: str
    dots: bool = False


def lines(title: str, subtitle: str, across: str, up: str, drawn: list[Line], marked: list[float] = ()) -> str:
    """Returns a picture of lines over one axis.

    Args:
        title: Heading of the picture.
        subtitle: A line below the heading.
        across: What the horizontal axis shows.
        up: What the vertical axis shows.
        drawn: The lines. The last one is above the others.
        marked: Values of the horizontal axis that get a dashed line.
    """
    right = max(x for line in drawn for x, _ in line.points)
    high = 1.05 * max(y for line in drawn for _, y in line.points)

    def at(x: float, y: float) -> tuple[str, str]:
        return _shown(LEFT + (RIGHT - LEFT) * x / right), _shown(BOTTOM - (BOTTOM - TOP) * y / high)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f'<title>{html.escape(title)}</title>\n<rect width="100%" height="100%" fill="#fff"/>',
        _text(20, 28, title, 'font-size="18" font-weight="bold"'),
        _text(20, 48, subtitle, 'fill="#555"'),
        _text(LEFT - 50, TOP - 8, up, _GREY),
        _text((LEFT + RIGHT) / 2, BOTTOM + 36, across, f'text-anchor="middle" {_GREY}'),
    ]
    for value in _ticks(high):
        (x1, y), (x2, _) = at(0, value), at(right, value)
        parts.append(f'<line x1="{x1}" y1="{y}" x2="{x2}" y2="{y}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, float(y) + 4, f"{value:g}", f'text-anchor="end" {_GREY}'))
    for value in _ticks(right):
        x, _ = at(value, 0)
        parts.append(_text(float(x), BOTTOM + 16, f"{value:g}", f'text-anchor="middle" {_GREY}'))
    for value in marked:
        (x, y1), (_, y2) = at(value, 0), at(value, high)
        parts.append(f'<line x1="{x}" y1="{y1}" x2="{x}" y2="{y2}" stroke="#999" stroke-dasharray="2 4"/>')
    for number, line in enumerate(drawn):
        stroke = f'stroke="{line.colour}" stroke-width="{3 if line.dots else 1.5}"'
        begin = 20 + 190 * number
        parts.append(f'<line x1="{begin}" y1="66" x2="{begin + 28}" y2="66" {stroke}/>')
        parts.append(_text(begin + 34, 70, line.name))
        path = "L".join(" ".join(at(x, y)) for x, y in line.points)
        parts.append(f'<path d="M{path}" fill="none" stroke-linejoin="round" {stroke}/>')
        for x, y in line.points if line.dots else ():
            parts.append('<circle cx="{}" cy="{}" r="4" fill="{}"/>'.format(*at(x, y), line.colour))
    return "\n".join(parts) + "\n</svg>\n"


def _ticks(end: float) -> list[float]:
    """Returns about five round values from 0 to `end`."""
    power = 10 ** math.floor(math.log10(end / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= end / 6)
    return [number * step for number in range(int(end / step) + 1)]


def _shown(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{_shown(x)}" y="{_shown(y)}" {style}>{html.escape(text)}</text>'
