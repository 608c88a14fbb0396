"""Judges measured payloads: tables, and missed goals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rdmacoll.benchmarks.rpc.libraries import OURS, OURS_BY_TCP, SOCKETS, libraries

Row = Mapping[str, Any]

# Goals: how many times as good as each peer rdmacoll has to be, by the command and its row. Plain sockets are
# no goal: they show the rate of the kernel.
LATENCY, LATENCY_BYTES_MAX = 4.0, 64 << 10
BANDWIDTH, BANDWIDTH_PAYLOAD = 3.0, "skewed"
THROUGHPUT, THROUGHPUT_PAYLOAD = 4.5, "uniform"
LINK_FILLED = 0.85  # share of a link that payloads alone fill: a peer that fills the link cannot be overtaken

_TITLES = {name: row.title for name, row in libraries(everybody=False).items()}


def goal_of(command: str, row: Row) -> float | None:
    """The goal of a row of p2p-latency, p2p-bandwidth or ps-throughput; None: the row has none."""
    if command == "p2p-latency":
        return LATENCY if row["buffers"] == 1 and row["bytes"] <= LATENCY_BYTES_MAX else None
    if command == "p2p-bandwidth":
        return BANDWIDTH if row["payload"] == BANDWIDTH_PAYLOAD else None
    if command == "ps-throughput":
        return THROUGHPUT if row["payload"] == THROUGHPUT_PAYLOAD else None
    return None


def fills(row: Row, name: str, gigabits: float | None) -> bool:
    """Whether this library fills the link, if there is one. Then it reaches every goal."""
    return gigabits is not None and bool(row["MB_per_s"][name] * 8e-3 >= LINK_FILLED * gigabits)


def missed(command: str, rows: Sequence[Row], gigabits: float | None = None) -> list[str]:
    """A sentence for each missed goal, with the measured value. gigabits: the rate of the link in Gbit/s,
    if there is one."""
    found = []
    for row in rows:
        goal = goal_of(command, row)
        for ours, ratios in row["ratio"].items():
            if fills(row, ours, gigabits):
                continue
            found += [
                f"{row['exchange']} of {row['payload']}: {_TITLES[ours]} is {value:.2f} times as fast as "
                f"{_TITLES[peer]}; the goal is {goal:g} times{_carried(ratios, peer)}"
                for peer, value in ratios.items()
                if peer != SOCKETS and goal is not None and value < goal
            ]
    return found


def _carried(ratios: Mapping[str, float], peer: str) -> str:
    return f" (plain sockets: {ratios[peer] / ratios[SOCKETS]:.2f} times)" if SOCKETS in ratios else ""


def number(value: float) -> str:
    """The number with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _time(row: Row, name: str) -> str:
    summary = row["time_us"][name]
    return f"{number(summary['median'])} ({number(summary['min'])} to {number(summary['max'])})"


def _mark(row: Row, name: str) -> str:
    return "" if row["time_us"][name]["quiet"] else " (L)"


def _rate(row: Row, name: str) -> str:
    return f"{number(row['payloads_per_s'][name])}/s, {number(row['MB_per_s'][name])} MB/s"


def table(command: str, rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown. For latency: microseconds, median (min to max). Otherwise: the rate of all
    workers together, by the medians. (L): other processes had the processor too. Ratios are the peer's
    time / ours."""
    names = [name for name in _TITLES if any(name in row["time_us"] for row in rows)]
    ours = [name for name in (OURS, OURS_BY_TCP) if name in names]
    peers = [name for name in names if name not in ours]
    cell: Callable[[Row, str], str] = _time if command == "p2p-latency" else _rate
    ratios = [(own, peer) for peer in peers for own in ours]
    heads = ["", "bytes", *(_TITLES[name] for name in names)]
    heads += [f"{_TITLES[peer]} / {_TITLES[own]}" for own, peer in ratios]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in rows:
        cells = [f"{row['exchange']} {row['payload']}", str(row["bytes"])]
        cells += [cell(row, name) + _mark(row, name) if name in row["time_us"] else "-" for name in names]
        for own, peer in ratios:
            value = row["ratio"].get(own, {}).get(peer)
            cells.append("-" if value is None else f"{value:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def costs(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: processor time per payload and peak memory, workers + servers."""
    names = [name for name in _TITLES if any(name in row["time_us"] for row in rows)]
    heads = ["", *(f"{_TITLES[name]}: processor µs, MiB" for name in names)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * len(names)]
    for row in rows:
        cells = [f"{row['exchange']} {row['payload']}"]
        for name in names:
            if name not in row["cpu_us"]:
                cells.append("-")
                continue
            cpu, peak = row["cpu_us"][name], row["peak_bytes"][name]
            cells.append(
                f"{number(cpu['workers'])} + {number(cpu['servers'])}, "
                f"{peak['workers'] / (1 << 20):.0f} + {peak['servers'] / (1 << 20):.0f}"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
