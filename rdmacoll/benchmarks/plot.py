"""A picture of a comparison. Needs matplotlib: pip install 'rdmacoll[plot]'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdmacoll.benchmarks.compare import title_of
from rdmacoll.benchmarks.libraries import LIBRARIES, OURS

_COLOURS = {name: f"C{number}" for number, name in enumerate(LIBRARIES)}
_TICKS = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
_TICK_LABELS = ["8", "1K", "64K", "1M", "16M", "256M"]


def draw(found: Mapping[str, Any]) -> Any:
    """A figure with a row for each part: times on the left, the ratio of each peer to ours on the right.
    It has the width of a page, so that it is readable there."""
    from matplotlib.figure import Figure

    parts = found["parts"]
    figure = Figure(figsize=(10, 0.8 + 3 * max(1, len(parts))), layout="constrained")
    lines: dict[str, Any] = {}  # by library, for a common legend
    for row, part in enumerate(parts):
        times = figure.add_subplot(len(parts), 2, 2 * row + 1)
        ratios = figure.add_subplot(len(parts), 2, 2 * row + 2)
        for name in LIBRARIES:
            _curve(times, part, name, lambda row, name=name: row["time_us"].get(name, {}).get("median"))
            if name not in OURS.values():
                _curve(ratios, part, name, lambda row, name=name: row["ratio"].get(name))
        times.set(title=title_of(part["collective"], part["ranks"], part["link"]), yscale="log", ylabel="µs")
        ratios.axhline(1.0, color="black", linewidth=1)
        ratios.set(yscale="log", ylabel="time of the peer / ours", xlabel="bytes")
        ratios.yaxis.set_major_formatter("{x:g}")
        ratios.yaxis.set_minor_formatter("{x:g}")
        for axes in (times, ratios):
            axes.set_xscale("log", base=2)
            axes.set_xticks(_TICKS, _TICK_LABELS)
            axes.grid(alpha=0.3)
            lines |= dict(zip(*axes.get_legend_handles_labels()[::-1]))
    figure.suptitle(f"float32, {found['cores']} cores, {found['processor']}")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _curve(axes: Any, part: Mapping[str, Any], name: str, value: Any) -> None:
    points = [(row["bytes"], value(row)) for row in part["rows"] if value(row) is not None]
    if points:
        library = LIBRARIES[name]
        style = {"numpy": "-", "tensorflow": "--", "limit": ":"}[library.group]
        width = 2.5 if name in OURS.values() else 1.2
        sizes, values = zip(*points)
        axes.plot(
            sizes, values, style, color=_COLOURS[name], linewidth=width, marker=".", label=library.title
        )
