"""A picture of measured payloads. Needs matplotlib: pip install 'rdmacoll[plot]'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdmacoll.benchmarks.rpc.libraries import OURS, OURS_BY_TCP, libraries

_LIBRARIES = libraries(everybody=False)


def draw(found: Mapping[str, Any]) -> Any:
    """A figure with a column for each part: microseconds per payload above, the ratio of each peer to ours
    below. Each row of the part is a group of bars."""
    from matplotlib.figure import Figure

    parts = [part for part in found["parts"] if part["rows"]]
    columns = max(1, len(parts))
    figure = Figure(figsize=(7 * columns, 8), layout="constrained")
    bars: dict[str, Any] = {}
    for column, part in enumerate(parts, 1):
        rows = part["rows"]
        names = [name for name in _LIBRARIES if any(name in row["time_us"] for row in rows)]
        times = figure.add_subplot(2, columns, column)
        _bars(times, rows, names, lambda row, name: row["time_us"].get(name, {}).get("median", 0.0))
        times.set(title=part["title"], yscale="log", ylabel="µs for a payload")
        ratios = figure.add_subplot(2, columns, columns + column)
        peers = [name for name in names if name not in (OURS, OURS_BY_TCP)]
        own = OURS if OURS in names else OURS_BY_TCP
        _bars(ratios, rows, peers, lambda row, name, own=own: row["ratio"].get(own, {}).get(name, 0.0))
        ratios.axhline(1.0, color="black", linewidth=1)
        ratios.set(ylabel=f"time of the peer / {_LIBRARIES[own].title}")
        for bar, label in zip(*times.get_legend_handles_labels()):  # each library has one colour in all parts
            bars.setdefault(label, bar)
    if bars:
        figure.legend(
            bars.values(), bars.keys(), loc="outside lower center", ncols=len(bars), fontsize="small"
        )
    figure.suptitle(f"{found['what']}, {found['cores']} cores, {found['processor']}")
    return figure


def _bars(axes: Any, rows: list[Mapping[str, Any]], names: list[str], value: Any) -> None:
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        bar_positions = [row + (number - (len(names) - 1) / 2) * width for row in range(len(rows))]
        colour = f"C{list(_LIBRARIES).index(name)}"
        label = _LIBRARIES[name].title
        axes.bar(bar_positions, [value(row, name) for row in rows], width, color=colour, label=label)
    labels = [f"{row['exchange']} {row['payload']}" for row in rows]
    axes.set_xticks(range(len(rows)), labels, rotation=45, ha="right", rotation_mode="anchor")
    axes.grid(alpha=0.3, axis="y")
