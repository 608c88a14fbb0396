"""Draws the picture of the README from docs/measurements/headlines.json: python benchmarks/headlines.py

Each ratio of that file is a figure of a dated measurement beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "measurements"
DATA, PICTURE = FOLDER / "headlines.json", FOLDER / "headlines.svg"

WIDTH, MARGIN = 800, 24
BARS_FROM, BARS_TO = 290, 740  # left of the bars are the labels, right of them the last value
ROW, GROUP = 22, 40  # heights of a bar with its gap, and of a group's title
SMALLEST, LARGEST = 0.7, 20.0  # the ends of the logarithmic scale
TICKS = (1, 2, 5, 10, 20)
# The picture has its own background, so that it is readable on any page.
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.faint { fill: #59636e; font-size: 13px; } .peer { font-weight: bold; }
.page { fill: #ffffff; stroke: #d1d9e0; } .tick { stroke: #d1d9e0; } .one { stroke: #1f2328; }
.faster { fill: #1a7f8e; } .slower { fill: #c4602d; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; } .faint { fill: #9aa4af; }
.page { fill: #0d1117; stroke: #3d444d; } .tick { stroke: #3d444d; } .one { stroke: #f0f6fc; }
.faster { fill: #3fb6c6; } .slower { fill: #e8875a; }
}
"""


def place_of(ratio: float) -> float:
    """The place of a ratio from left to right, in pixels.

    >>> round(place_of(SMALLEST)), round(place_of(LARGEST))
    (290, 740)
    """
    share = math.log(ratio / SMALLEST) / math.log(LARGEST / SMALLEST)
    return BARS_FROM + share * (BARS_TO - BARS_FROM)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A text element. y: its base line."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def bar(y: float, label: str, ratio: str) -> Iterator[str]:
    """A bar from 1 to the ratio, with its label and its value."""
    one, end = place_of(1.0), place_of(float(ratio))
    kind = "faster" if end >= one else "slower"
    yield text(BARS_FROM - 12, y + 13, label, anchor="end")
    yield f'<rect x="{min(one, end):.1f}" y="{y}" width="{abs(end - one):.1f}" height="17" class="{kind}"/>'
    yield text(max(one, end) + 6, y + 13, ratio)


def group(data: dict[str, Any], y: float) -> Iterator[str]:
    """The ratios to one peer: a title, the lines of the scale, and bars. y: the upper edge of the bars."""
    title = (
        f'{escape(data["peer"])}<tspan class="faint" font-weight="normal">: {escape(data["what"])}</tspan>'
    )
    yield f'<text x="{MARGIN}" y="{y - 9}" class="peer">{title}</text>'
    end = y + ROW * len(data["rows"]) - 2
    for tick in TICKS:
        x, kind = place_of(tick), "one" if tick == 1 else "tick"
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{end}" class="{kind}"/>'
    for number, row in enumerate(data["rows"]):
        yield from bar(y + ROW * number, row["label"], row["ratio"])


def draw(data: dict[str, Any]) -> str:
    """The picture as SVG."""
    elements: list[str] = []
    y = MARGIN + 14
    for each in data["groups"]:
        y += GROUP
        elements += group(each, y)
        y += ROW * len(each["rows"])
    elements += [text(place_of(tick), y + 16, f"{tick}", "faint", "middle") for tick in TICKS]
    height = y + 52
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(data['title'])} {escape(data['machine'])}</title>",
            f"<style>{STYLE}</style>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="page"/>',
            text(MARGIN, MARGIN + 8, data["title"], "peer"),
            *elements,
            text(MARGIN, height - 16, data["machine"], "faint"),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(json.loads(DATA.read_text())))
    print(PICTURE)
