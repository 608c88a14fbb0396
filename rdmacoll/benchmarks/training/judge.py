"""Judges measured trainings: tables, and missed goals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rdmacoll.benchmarks.rpc.judge import fills, number
from rdmacoll.benchmarks.training.libraries import ALONE, CONTESTANTS, OURS, PEERS

Row = Mapping[str, Any]

# The goal: images per second / those of the peer with the same kind of updates.
GOAL = 2.5
_TITLES = {**{name: row.title for name, row in CONTESTANTS.items()}, ALONE: "no servers"}


def is_bound(row: Row, peer: str) -> bool:
    """Whether a peer's training is bound by its communication: without any it would be GOAL times as fast."""
    return bool(row["communication"].get(peer, 1.0) >= 1.0 - 1.0 / GOAL)


def missed(rows: Sequence[Row], gigabits: float | None = None) -> list[str]:
    """A sentence for each missed goal, with the measured value. A training that is not bound by
    communication has no goal. gigabits: the rate of the link in Gbit/s, if there is one."""
    found = []
    for row in rows:
        for ours, ratios in row["ratio"].items():
            if fills(row, ours, gigabits):
                continue
            found += [
                f"{row['title']}: {_TITLES[ours]} is {value:.2f} times as fast as {_TITLES[peer]}; the goal "
                f"is {GOAL:g} times"
                for peer, value in ratios.items()
                if CONTESTANTS[peer].updates == CONTESTANTS[ours].updates
                and is_bound(row, peer)
                and value < GOAL
            ]
    return found


def table(row: Row) -> list[str]:
    """Lines of Markdown, one for each contestant. Times of steps are milliseconds at the slowest worker:
    median (min to max). (L): other processes had the processor too. The last columns are our images per
    second / those of TensorFlow's servers."""
    peers = [name for name in PEERS if name in row["time_us"]]
    heads = ["", "images/s", "ms of a step", "communication", "processor ms", "MiB"]
    heads += [f"/ {_TITLES[peer]}" for peer in peers]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, title in _TITLES.items():
        if name not in row["time_us"]:
            continue
        summary, cpu, peak = row["time_us"][name], row["cpu_ms"][name], row["peak_bytes"][name]
        mark = "" if summary["quiet"] else " (L)"
        times = [number(summary[what] / 1e3) for what in ("median", "min", "max")]
        share = row["communication"].get(name)
        is_alone = name == ALONE
        cells = [
            title,
            number(row["images_per_s"][name]) + mark,
            f"{times[0]} ({times[1]} to {times[2]})",
            "-" if share is None or is_alone else f"{100 * share:.0f} %",
            number(cpu["workers"]) + ("" if is_alone else f" + {number(cpu['servers'])}"),
            # The processes that train alone have trained with servers before, so their peak memory tells
            # nothing.
            "" if is_alone else f"{peak['workers'] / (1 << 20):.0f} + {peak['servers'] / (1 << 20):.0f}",
        ]
        for peer in peers:
            value = row["ratio"].get(name, {}).get(peer) if name in OURS else None
            cells.append("" if value is None else f"{value:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines
