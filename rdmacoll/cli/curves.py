"""Curves over a number of ranks as an SVG picture: both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 420, 300, 60, 40, 30, 130
_ABREAST = 2
_COLOURS = ("#6baed6", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
Curve = Sequence[tuple[float, float]]


def panel(title: str, curves: Mapping[str, Curve], *, at: int = 0, unit: str = "ms") -> str:
    """One diagram as SVG. at: its number in the picture. curves: by name, (ranks, value) pairs.

    >>> panel("a sum", {"a": [(2, 1.0), (4, 10.0)]}).count("<circle")
    2
    """
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    bottom, top = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001))

    def across(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * _share(x, left, right)

    def up(y: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * _share(y, bottom, top)

    parts = [_text(_LEFT, _TOP - 12, f"{title} ({unit})")]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "ranks", "middle"))
    for x in sorted({x for x, _ in points}):
        parts.append(_text(across(x), _HEIGHT - _BOTTOM + 16, f"{x:g}", "middle"))
    decade = bottom
    while decade <= top * 1.001:
        parts.append(_line([(_LEFT, up(decade)), (_WIDTH - _RIGHT, up(decade))], "#ddd"))
        parts.append(_text(_LEFT - 6, up(decade) + 4, f"{decade:g}", "end"))
        decade *= 10
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        corners = [(across(x), up(y)) for x, y in curve]
        # Other curves may cover the first one. So the first one is wider, and the others are drawn on it.
        wide = number == 0 and len(curves) > 1
        parts.append(_line(corners, colour, 6 if wide else 1))
        radius = 6 if wide else 3
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>' for x, y in corners]
        parts.append(_text(_WIDTH - _RIGHT + 12, _TOP + 18 * number + 10, name, colour=colour))
    return (
        f'<g transform="translate({at % _ABREAST * _WIDTH} {at // _ABREAST * _HEIGHT})">{"".join(parts)}</g>'
    )


def picture(panels: Sequence[str]) -> str:
    """An SVG file of these diagrams, two in a row."""
    width, height = _WIDTH * min(_ABREAST, len(panels)), _HEIGHT * -(-len(panels) // _ABREAST)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(panels)}</svg>\n"
    )


def _share(value: float, least: float, most: float) -> float:
    return math.log(value / least) / math.log(most / least) if most > least else 0.5


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _line(points: Curve, colour: str, width: float = 1) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'
