"""A picture of measured trainings. Needs matplotlib: pip install 'rdmacoll[plot]'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdmacoll.benchmarks.training.libraries import ALONE, CONTESTANTS

_TITLES = {**{name: row.title for name, row in CONTESTANTS.items()}, ALONE: "no servers"}


def draw(found: Mapping[str, Any]) -> Any:
    """A figure with a column for each link and a row for each model: images per second of each contestant."""
    from matplotlib.figure import Figure

    parts = [part for part in found["parts"] if part["rows"]]
    models = list(dict.fromkeys(row["title"] for part in parts for row in part["rows"]))
    figure = Figure(figsize=(7 * max(1, len(parts)), 2.5 * max(1, len(models))), layout="constrained")
    for column, part in enumerate(parts):
        for line, model in enumerate(models):
            row = next((row for row in part["rows"] if row["title"] == model), None)
            if row is None:
                continue
            axes = figure.add_subplot(len(models), len(parts), line * len(parts) + column + 1)
            names = [name for name in reversed(_TITLES) if name in row["images_per_s"]]
            colours = [f"C{list(_TITLES).index(name)}" for name in names]
            axes.barh(
                [_TITLES[name] for name in names],
                [row["images_per_s"][name] for name in names],
                color=colours,
            )
            axes.set(title=f"{model}\n{part['title']}", xlabel="images/s")
            axes.grid(alpha=0.3, axis="x")
    figure.suptitle(f"training with parameter servers, {found['cores']} cores, {found['processor']}")
    return figure
