"""Prints the paths between ranks as matrices."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Callable

import click

from rdmacoll._base.text import bytes_text, counted
from rdmacoll.cli.doctor_findings import Finding, size_text
from rdmacoll.cli.doctor_page import finding_lines
from rdmacoll.cli.paths import BANDWIDTH_BYTES, LATENCY_BYTES, RDMA, TCP, Path, Paths

_CELL = 8
_MARGIN = 10
FAILED, NO_VALUE = "fails", "-"
_EXTREMES_SHOWN = 5

Cell = Callable[[int, int], str]


def lines(found: Paths, findings: Sequence[Finding], width: int) -> Iterator[str]:
    """The page: ranks, a matrix of each transport and quantity, findings."""
    hosts = {rank.host for rank in found.ranks}
    yield f"paths between {counted(len(found.ranks), 'rank')} on {counted(len(hosts), 'host')}"
    yield ""
    for rank in found.ranks:
        rails = ", ".join(rail.text for rail in rank.rails) if not rank.obstacle else "no RDMA"
        yield f"  {rank.rank:>4}  {rank.host}  {rails}"
    for transport in (RDMA, TCP):
        paths = {path.ranks: path for path in found.over(transport)}
        if paths:
            yield from _transport(transport, paths, len(found.ranks), width)
    yield ""
    yield click.style("Findings", bold=True)
    yield from finding_lines(findings, width)


def _transport(transport: str, paths: dict[tuple[int, int], Path], count: int, width: int) -> Iterator[str]:
    def between(a: int, b: int) -> Path | None:
        return paths.get((min(a, b), max(a, b)))

    def latency(row: int, column: int) -> str:
        path = between(row, column)
        return NO_VALUE if path is None else f"{path.latency_us:.2f}" if path.is_ok else FAILED

    def speed(row: int, column: int) -> str:
        path = between(row, column)
        return NO_VALUE if path is None else f"{path.speed(row):.3f}" if path.is_ok else FAILED

    def cut(row: int, column: int) -> str:
        path = between(row, column)
        return NO_VALUE if path is None or path.cut is None else bytes_text(path.cut.eager_bytes)

    quantities: list[tuple[str, Cell]] = [
        (f"latency one way, us ({LATENCY_BYTES} B, half of a ping-pong)", latency),
        (f"bandwidth, GB/s from row to column ({size_text(BANDWIDTH_BYTES)}, several in flight)", speed),
    ]
    if any(path.cut for path in paths.values()):
        quantities.append(("eager is faster up to", cut))
    yield ""
    if _MARGIN + _CELL * count > width:
        yield from _extremes(transport, [path for path in paths.values() if path.is_ok])
        return
    for title, cell in quantities:
        yield f"{click.style(transport, bold=True)} {title}"
        yield " " * _MARGIN + "".join(f"{rank:>{_CELL}}" for rank in range(count))
        for row in range(count):
            cells = (NO_VALUE if row == column else cell(row, column) for column in range(count))
            yield f"{row:>{_MARGIN}}" + "".join(f"{text:>{_CELL}}" for text in cells)


def _extremes(transport: str, paths: list[Path]) -> Iterator[str]:
    """The summary that replaces a matrix too wide for the page."""
    title = click.style(transport, bold=True)
    yield f"{title} {counted(len(paths), 'path')}; all of them are in the file of --json"
    if not paths:
        return
    times = sorted(path.latency_us for path in paths)
    yield f"  latency, us: {times[0]:.2f} to {times[-1]:.2f}, median {statistics.median(times):.2f}"
    directions = sorted((speed, direction) for path in paths for speed, direction in path.directions())
    yield f"  bandwidth, GB/s: {directions[0][0]:.3f} to {directions[-1][0]:.3f}, the slowest:"
    for speed, (source, target) in directions[:_EXTREMES_SHOWN]:
        yield f"    {speed:.3f} from {source} to {target}"
