"""The goals of the benchmarks over RDMA, and tables of their results. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rdmacoll._base.text import bytes_text

LATENCY_RATIO_MAX = 1.5  # our latency / ib_send_lat's
LATENCY_BYTES = 8
BANDWIDTH_RATIO_MIN = 0.9  # our bandwidth / ib_write_bw's
BANDWIDTH_BYTES_MIN = 1 << 20
ALLREDUCE_RATIO_MIN = 1.0  # time of Open MPI / our time

Row = dict[str, Any]
# The values of one turn at one size: {"ours": ..., "peer": ...} for latency_us and for GB_per_s.
Turn = dict[str, dict[str, float]]


def pair_row(size: int, turns: Sequence[Turn], *, judge_latency: bool) -> Row:
    """Returns one size's row: every turn, the medians, and the median of the turns' ratios ours / peer."""
    row: Row = {"bytes": size}
    for quantity in ("latency_us", "GB_per_s"):
        ours, peer = ([turn[quantity][who] for turn in turns] for who in ("ours", "peer"))
        row[quantity] = {
            "ours": statistics.median(ours),
            "peer": statistics.median(peer),
            "ratio": statistics.median(mine / theirs for mine, theirs in zip(ours, peer)),
            "turns": {"ours": ours, "peer": peer},
        }
    goals = []
    if judge_latency and size == LATENCY_BYTES:
        goals.append(row["latency_us"]["ratio"] <= LATENCY_RATIO_MAX)
    if size >= BANDWIDTH_BYTES_MIN:
        goals.append(row["GB_per_s"]["ratio"] >= BANDWIDTH_RATIO_MIN)
    return {**row, "reached": all(goals) if goals else None}


def allreduce_row(measured: Row, peer: str) -> Row:
    """Converts a row of `bench allreduce --peers`: times, the ratio peer / ours, whether the goal is met."""
    ratio = measured["ratio"][peer]
    return {
        "bytes": measured["bytes"],
        "time_us": {
            "ours": measured["time_us"]["median"],
            "peer": measured["peers"][peer]["time_us"]["median"],
        },
        "ratio": ratio,
        "reached": ratio >= ALLREDUCE_RATIO_MIN,
    }


def _line(row: Row, *cells: str) -> str:
    """Returns a table row of Markdown: the size, the cells, and whether the goal is reached."""
    mark = {True: "reached", False: "missed", None: ""}[row["reached"]]
    return f"| {' | '.join([bytes_text(row['bytes']), *cells, mark])} |"


def pair_table(rows: Sequence[Row]) -> list[str]:
    """Returns the point-to-point table as lines of Markdown."""
    lines = [
        "| bytes | one way, ours | `ib_send_lat` | ours / its "
        "| bandwidth, ours | `ib_write_bw` | ours / its | goal |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        latency, bandwidth = row["latency_us"], row["GB_per_s"]
        cells = [
            f"{latency['ours']:.1f} µs",
            f"{latency['peer']:.1f} µs",
            f"{latency['ratio']:.2f}",
            f"{bandwidth['ours']:.4g} GB/s",
            f"{bandwidth['peer']:.4g} GB/s",
            f"{bandwidth['ratio']:.2f}",
        ]
        lines.append(_line(row, *cells))
    return lines


def allreduce_table(rows: Sequence[Row]) -> list[str]:
    """Returns the allreduce table as lines of Markdown."""
    lines = ["| bytes | ours | Open MPI | Open MPI / ours | goal |", "|---:|---:|---:|---:|---|"]
    for row in rows:
        time = row["time_us"]
        cells = (f"{time['ours']:.0f} µs", f"{time['peer']:.0f} µs", f"{row['ratio']:.2f}")
        lines.append(_line(row, *cells))
    return lines
