"""Judges measured times: ratios, shares of a limit, findings, tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rdmacoll._base.text import bytes_text
from rdmacoll.benchmarks.libraries import LIBRARIES, OURS, PEERS
from rdmacoll.benchmarks.turns import Cell, ratio

SPEEDUP_FROM_BYTES = 256 << 10
SPEEDUP_GOAL = 1.3  # times as fast as the best peer, from AHEAD_FROM_BYTES on; below, 1 is enough
OP_SPEEDUP_GOAL = 25.0  # times as fast as Horovod, for an operation of a few bytes
GROWTH_MIN, GROWTH_MAX = 0.95, 2.2  # ratio of the times when the size doubles

BYPASS_BYTES_MIN = 1 << 20
BYPASS_RATIO = 1.5
LINK_PERCENT = 97.0
BUSY_BYTES_MIN = 256 << 10
# share of the best peer's speed, equal to two digits: a peer that fills the link cannot be overtaken
LINK_GOAL = 0.995

Row = dict[str, Any]


def compared(size: int, cells: Mapping[str, Cell]) -> Row:
    """The row of a size. It has the times of each library, and the ratio of each peer to our library of
    the same group (above 1 we are faster). It also has the best peer of each group, and our share of each
    limit."""
    row: Row = {
        "bytes": size,
        "time_us": {name: cell.summary() for name, cell in cells.items()},
        "ratio": {},
        "best": {},
        "percent_of_limit": {},
        "around": [],  # peers whose bytes did not go over the link
    }
    for group, own in OURS.items():
        if own not in cells:
            continue
        of_group = [name for name in cells if LIBRARIES[name].group == group and name in PEERS]
        for name in of_group:
            row["ratio"][name] = ratio(cells[name], cells[own])
        row["around"] += [name for name in of_group if _bypasses_link(size, cells[name], cells)]
        over_the_link = [name for name in of_group if name not in row["around"]]
        if over_the_link:
            best = min(over_the_link, key=lambda name: float(row["time_us"][name]["median"]))
            row["best"][group] = {"peer": best, "ratio": row["ratio"][best]}
        for limit in (name for name in cells if LIBRARIES[name].group == "limit"):
            row["percent_of_limit"].setdefault(own, {})[limit] = 100 * ratio(cells[limit], cells[own])
    return row


def best_plain(cells: Mapping[str, Cell]) -> Row:
    """The best peer of each group by plain calls, and the ratio to our plain call. `cells`: plain calls by
    the name of their library."""
    best: Row = {}
    for group, own in OURS.items():
        peers = [name for name in cells if name in PEERS and LIBRARIES[name].group == group]
        if own in cells and peers:
            peer = max(peers, key=lambda name: ratio(cells[own], cells[name]))
            best[group] = {"peer": peer, "ratio": ratio(cells[peer], cells[own])}
    return best


def _bypasses_link(size: int, cell: Cell, cells: Mapping[str, Cell]) -> bool:
    """Whether this library is so much faster than plain TCP that its bytes cannot have gone over the link.
    Small sizes do not count: a token bucket lets them pass at once."""
    return size >= BYPASS_BYTES_MIN and "stream" in cells and ratio(cells["stream"], cell) > BYPASS_RATIO


def goal_of(size: int, group: str, collective: str, *, is_link: bool) -> float:
    """The goal at this size: how many times as fast as the best peer rdmacoll has to be.

    >>> [goal_of(1 << 20, "numpy", name, is_link=False) for name in ("allreduce", "gather")]
    [1.3, 1.0]
    """
    if is_link:
        return LINK_GOAL
    if collective != "allreduce":
        return 1.0
    if group == "tensorflow":
        return OP_SPEEDUP_GOAL if size <= 8 else 1.0
    return SPEEDUP_GOAL if size >= SPEEDUP_FROM_BYTES else 1.0


def missed(rows: Sequence[Row], gigabits: float | None = None, collective: str = "allreduce") -> list[str]:
    """A sentence for each missed goal, with the measured value. gigabits: the rate of the link in Gbit/s,
    if there is one. A link of at most 1 Gbit/s has to be filled as plain TCP fills it. The processors
    cannot fill a faster one."""
    found = []
    for row in rows:
        found += [
            f"{bytes_text(row['bytes'])}: {LIBRARIES[name].title} is much faster than plain TCP over the "
            "link, so its bytes bypassed the link, and it does not count as the best peer"
            for name in row["around"]
        ]
        filled = row["percent_of_limit"].get("rdmacoll", {}).get("stream", 100.0)
        if (
            gigabits is not None
            and gigabits <= 1
            and row["bytes"] >= BYPASS_BYTES_MIN
            and filled < LINK_PERCENT
        ):
            found.append(
                f"{bytes_text(row['bytes'])}: rdmacoll has {filled:.0f} % of the rate of plain TCP; the "
                f"goal is {LINK_PERCENT:g} %"
            )
        for group, best in row["best"].items():
            goal = goal_of(row["bytes"], group, collective, is_link=gigabits is not None)
            if best["ratio"] < goal:
                found.append(
                    f"{bytes_text(row['bytes'])}: {LIBRARIES[OURS[group]].title} is {best['ratio']:.2f} "
                    f"times as fast as {LIBRARIES[best['peer']].title}; the goal is {goal:g} times"
                )
    return found


def growth(rows: Sequence[tuple[int, float]]) -> list[str]:
    """A sentence for each step at which time does not grow with the size as it should: t(2S) from 0.95 to 2.2
    times t(S).

    >>> growth([(8, 1.0), (16, 1.1), (32, 3.0), (64, 2.0)])
    ['16 to 32: 2.73 times the time for twice the bytes', '32 to 64: 0.67 times the time for twice the bytes']
    """
    found = []
    for (size, seconds), (larger, more) in zip(rows, rows[1:]):
        if larger == 2 * size and not GROWTH_MIN <= more / seconds <= GROWTH_MAX:
            found.append(
                f"{bytes_text(size)} to {bytes_text(larger)}: {more / seconds:.2f} times the time "
                "for twice the bytes"
            )
    return found


def parts_cost_more(size: int, whole_s: float, parts_s: Mapping[str, float], whole: str) -> list[str]:
    """A sentence if the whole takes longer than the sum of its parts; empty otherwise.

    >>> parts_cost_more(1024, 5.0, {"reducescatter": 2.0, "allgather": 2.0}, "allreduce")
    ['1K: allreduce takes 1.25 times as long as reducescatter + allgather']
    >>> parts_cost_more(1024, 4.0, {"reducescatter": 2.0, "allgather": 2.0}, "allreduce")
    []
    """
    together = sum(parts_s.values())
    if whole_s <= together:
        return []
    return [
        f"{bytes_text(size)}: {whole} takes {whole_s / together:.2f} times as long as {' + '.join(parts_s)}"
    ]


def _time(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "-"
    median = summary["median"]
    text = f"{median:.2f}" if median < 100 else f"{median:.0f}"
    return text if summary["quiet"] else f"{text} (L)"


def _ratio(best: Mapping[str, Any] | None) -> str:
    return f"{best['ratio']:.2f}" if best else "-"


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: medians in microseconds. (L) marks an upper bound: other processes had the
    processor too."""
    present = {name for row in rows for name in row["time_us"]}
    lines: list[str] = []
    for group, own in OURS.items():
        names = [name for name in LIBRARIES if name in present and LIBRARIES[name].group == group]
        if own not in names:
            continue
        plain = f"{own} plain"
        has_plain = plain in present
        limits = [name for name in LIBRARIES if name in present and LIBRARIES[name].group == "limit"]
        titles = [LIBRARIES[name].title for name in names]
        titles[1:1] = ["plain call"] if has_plain else []
        heads = ["bytes", *titles, "best peer / ours"]
        heads += ["best peer's plain call", "/ our plain call"] if has_plain else []
        heads += [f"% of {LIBRARIES[n].title}" for n in limits]
        lines += ["", f"| {' | '.join(heads)} |", "|" + "---:|" * len(heads)]
        for row in rows:
            times, best = row["time_us"], row["best"].get(group)
            cells = [_time(times.get(name)) for name in names]
            cells[1:1] = [_time(times.get(plain))] if has_plain else []
            shares = row["percent_of_limit"].get(own, {})
            cells.append(_ratio(best))
            best_plain = row.get("best_plain", {}).get(group)
            peer_plain = times.get(f"{best_plain['peer']} plain") if best_plain else None
            cells += [_time(peer_plain), _ratio(best_plain)] if has_plain else []
            cells += [f"{shares[name]:.0f}" if name in shares else "-" for name in limits]
            lines.append(f"| {' | '.join([bytes_text(row['bytes']), *cells])} |")
    return lines


def cores_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: the number of cores that all ranks of a library together keep busy during its calls,
    from BUSY_BYTES_MIN on. No lines if no row is so large.

    >>> cell = {"median": 100.0, "cpu_us": 150.0}
    >>> cores_table([{"bytes": 1 << 20, "time_us": {"rdmacoll": cell, "mpich": {**cell, "cpu_us": 200.0}}}])
    ['', '| cores busy | rdmacoll | MPICH |', '|---:|---:|---:|', '| 1M | 1.50 | 2.00 |']
    """
    large = [row for row in rows if row["bytes"] >= BUSY_BYTES_MIN]
    present = {name for row in large for name in row["time_us"]}
    names = [name for name in LIBRARIES if name in present]
    if not names:
        return []
    lines = [f"| {' | '.join(['cores busy', *(LIBRARIES[name].title for name in names)])} |"]
    lines.append("|" + "---:|" * (1 + len(names)))
    for row in large:
        cells = [bytes_text(row["bytes"])]
        for name in names:
            cell = row["time_us"].get(name)
            cells.append(f"{cell['cpu_us'] / cell['median']:.2f}" if cell else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return ["", *lines]
