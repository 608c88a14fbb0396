"""Compares two builds of rdmacoll: ratios of the same works, and their geometric mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rdmacoll.benchmarks.libraries import other_build
from rdmacoll.benchmarks.turns import Cell, ratio
from rdmacoll.errors import ConfigError

_LIBRARY = Path("rdmacoll", "lib", "librdmacoll.so")


def tree_of(path: Path) -> Path:
    """The tree of a build. path: the tree, or the librdmacoll.so in it. Raises ConfigError if nothing is
    built there."""
    resolved = path.resolve()
    tree = resolved.parents[2] if resolved.name == _LIBRARY.name and len(resolved.parents) > 2 else resolved
    if not (tree / _LIBRARY).is_file():
        raise ConfigError(f"{path} has no {_LIBRARY}: give a clone in which `make native` has run.")
    return tree


def _key_of_other(key: str) -> str:
    """The key of the other build's cell. key: the name of a library of ours, and the words of a work."""
    name, *work = key.split(" ")
    return " ".join([other_build(name), *work])


def ratios_to_build(cells: Mapping[str, Cell]) -> dict[str, float]:
    """Returns the other build's time / our time for each work that both have done: above 1, we are faster. A
    key is the name of a library, and the words of a work."""
    found = {}
    for key, cell in cells.items():
        other = cells.get(_key_of_other(key))
        if other is not None:
            found[key] = ratio(other, cell)
    return found


@dataclass(frozen=True)
class Ratio:
    """The ratio of one cell. where: the name of the row. what: the measured work. quiet:
    no other process disturbed it."""

    where: str
    what: str
    value: float
    quiet: bool = True

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.quiet else f"{self.value:.2f} (L)"


def ratios_of(where: str, row: Mapping[str, Any]) -> list[Ratio]:
    """The ratios of a row that has "builds" (see `ratios_to_build`) and "time_us" with summaries."""
    found = []
    for key, value in row["builds"].items():
        both = (row["time_us"][key], row["time_us"][_key_of_other(key)])
        found.append(Ratio(where, key, value, all(summary["quiet"] for summary in both)))
    return found


def table(ratios: Sequence[Ratio]) -> list[str]:
    """Lines of Markdown: a column for each work, a row for each place, and the geometric means.

    >>> table([Ratio("8", "rdmacoll", 1.0), Ratio("8", "rdmacoll plain", 0.5), Ratio("64", "rdmacoll", 4.0)])
    ... # doctest: +NORMALIZE_WHITESPACE
    ['',
     '| other build / ours | rdmacoll | rdmacoll plain |', '|---:|---:|---:|',
     '| 8 | 1.00 | 0.50 |', '| 64 | 4.00 | - |', '| geometric mean | 2.00 | 0.50 |']
    """
    if not ratios:
        return []
    works = list(dict.fromkeys(each.what for each in ratios))
    cells = {(each.where, each.what): str(each) for each in ratios}
    lines = ["", f"| {' | '.join(['other build / ours', *works])} |", "|" + "---:|" * (1 + len(works))]
    for where in dict.fromkeys(each.where for each in ratios):
        lines.append(f"| {' | '.join([where, *(cells.get((where, work), '-') for work in works)])} |")
    means = [geometric_mean(each.value for each in ratios if each.what == work) for work in works]
    return [*lines, f"| {' | '.join(['geometric mean', *(f'{mean:.2f}' for mean in means)])} |"]


def summary(ratios: Sequence[Ratio]) -> str:
    """A sentence about all ratios.

    >>> summary([Ratio("2 ranks, 8", "rdmacoll", 2.0), Ratio("2 ranks, 64", "rdmacoll", 0.5)])
    'geometric mean of 2 ratios: 1.000; the lowest is 0.50 (2 ranks, 64, rdmacoll)'
    """
    if not ratios:
        return "no ratio: the other build has no result"
    lowest = min(ratios, key=lambda each: each.value)
    mean = geometric_mean(each.value for each in ratios)
    return (
        f"geometric mean of {len(ratios)} ratios: {mean:.3f}; the lowest is {lowest} "
        f"({lowest.where}, {lowest.what})"
    )


def facts(build: Path, ratios: Sequence[Ratio]) -> dict[str, Any]:
    """The results for JSON."""
    return {
        "path": str(build),
        "ratios": [vars(each) for each in ratios],
        "geometric_mean": geometric_mean(each.value for each in ratios) if ratios else None,
    }
