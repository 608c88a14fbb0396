"""The table of a run on a real GPU: what was tested, with which arrays, and how it went."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from cuda_calls import Cuda, name_of
from places import LIBRARIES, REAL

COLUMNS = ("tested", "arrays", "passed", "failed", "skipped", "seconds")


class Report(Protocol):
    """The used part of pytest's report of a phase of a test."""

    nodeid: str
    when: str
    outcome: str
    duration: float


def rows(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """A row for each test file and library of arrays. A test that fails in any phase counts as failed.

    The arrays of a test that has no library are "driver".
    """
    outcomes: dict[str, str] = {}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for report in reports:
        path, _, case = report.nodeid.partition("::")
        words = re.split(r"[\[\]-]", case)
        arrays = next((word for word in words if word in ("imitated", *LIBRARIES)), "driver")
        key = Path(path).stem.removeprefix("test_").replace("_", " "), arrays
        row = found.setdefault(key, dict(zip(COLUMNS, (*key, 0, 0, 0, 0.0))))
        row["seconds"] += report.duration
        before = outcomes.get(report.nodeid)
        if before == "failed" or (report.when != "call" and report.outcome == "passed"):
            continue
        if before is not None:
            row[before] -= 1
        outcomes[report.nodeid] = report.outcome
        row[report.outcome] += 1
    return list(found.values())


def lines(table: list[dict[str, Any]]) -> list[str]:
    """The table as text."""
    cells = [COLUMNS] + [tuple(_text(row[column]) for column in COLUMNS) for row in table]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def _text(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def card() -> dict[str, Any]:
    """The name of the first GPU, and the version of CUDA that its driver has."""
    cuda = Cuda(REAL, None)
    return {"gpu": name_of(cuda), "cuda": cuda.version()}


def write(path: str, table: list[dict[str, Any]], reports: Iterable[Report]) -> None:
    """Writes the table as JSON, with the failures."""
    failed = sorted({report.nodeid for report in reports if report.outcome == "failed"})
    Path(path).write_text(json.dumps({**card(), "rows": table, "failed": failed}, indent=1) + "\n")
