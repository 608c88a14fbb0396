"""`rdmacoll bench consistency`: relations between times that hold on every machine."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import click
import numpy as np

from rdmacoll import engine
from rdmacoll._base.text import bytes_text, counted
from rdmacoll._world import world
from rdmacoll.benchmarks import judge
from rdmacoll.benchmarks.team_rank.kinds import KINDS, Kind, RankOfWorld, Run
from rdmacoll.benchmarks.team_rank.values import Array
from rdmacoll.cli import measure
from rdmacoll.cli.bench import sizes_from
from rdmacoll.cli.report import Findings, command, note_world_of_one, print_line
from rdmacoll.cli.rules_options import takes_bursts
from rdmacoll.operators import Sum

PIECES = 8


def _grouped(engine: Any, input_array: Array, _: RankOfWorld) -> Run:
    pieces = np.split(input_array, PIECES)

    def run() -> Array:
        engine.grouped_allreduce(pieces, Sum, out=pieces)
        return input_array

    return run


def _singles(engine: Any, input_array: Array, _: RankOfWorld) -> Run:
    pieces = np.split(input_array, PIECES)

    def run() -> Array:
        for piece in pieces:
            engine.allreduce(piece, Sum, out=piece)
        return input_array

    return run


# Cases that are one operation use prepared calls.
_ALLREDUCE = KINDS["allreduce"]
CASES: dict[str, Kind] = {
    "allreduce": _ALLREDUCE,
    "reducescatter": KINDS["reducescatter"],
    "allgather": KINDS["allgather"],
    "grouped": replace(_ALLREDUCE, name="grouped", ours=_grouped),
    "singles": replace(_ALLREDUCE, name="singles", ours=_singles),
}


@click.command("consistency")
@click.option("--min", "minimum", default="1K", show_default=True, help="Smallest size in bytes.")
@click.option("--max", "maximum", default="16M", show_default=True, help="Largest size in bytes.")
@takes_bursts
@command("bench consistency")
def consistency(*, minimum: str, maximum: str, turns: int, burst: float) -> Findings:
    """Whether an allreduce is as fast as its two halves.

    It should take no longer than reducescatter and allgather, a group of 8 no longer than its 8 tensors one
    by one, and twice the bytes 0.95 to 2.2 times the time. Times are medians; what is found is printed, and
    the exit code is 0 all the same.
    """
    world.init()
    note_world_of_one("rdmacoll bench consistency")
    # Sizes of all cases are multiples of the ranks and of the pieces.
    each = PIECES * world.size()
    counts = dict.fromkeys(max(1, size // 4 // each) * each for size in sizes_from(minimum, maximum, 2))
    print_line(
        f"{counted(world.size(), 'rank')}, transport {world.describe().get('transport')}, microseconds"
    )
    print_line(f"{'bytes':>9}" + "".join(f"{name:>15}" for name in CASES))
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    wrong = 0
    for count in counts:
        cells = measure.take_turns(
            [_entry(kind, count) for kind in CASES.values()], turns=turns, burst_s=burst
        )
        wrong += sum(cell.wrong for cell in cells)
        seconds = {name: statistics.median(cell.seconds) for name, cell in zip(CASES, cells)}
        rows.append({"bytes": 4 * count, "time_us": {name: 1e6 * s for name, s in seconds.items()}})
        print_line(f"{bytes_text(4 * count):>9}" + "".join(f"{s * 1e6:>15.2f}" for s in seconds.values()))
        halves = {name: seconds[name] for name in ("reducescatter", "allgather")}
        findings += judge.parts_cost_more(4 * count, seconds["allreduce"], halves, "allreduce")
        one_by_one = {f"{PIECES} single ones": seconds["singles"]}
        findings += judge.parts_cost_more(4 * count, seconds["grouped"], one_by_one, f"a group of {PIECES}")
    findings += judge.growth([(row["bytes"], row["time_us"]["allreduce"]) for row in rows])
    for finding in findings:
        print_line(f"- {finding}")
    print_line(f"{counted(len(findings), 'finding')}, {counted(wrong, 'wrong value')}")
    return {"ok": wrong == 0, "ranks": world.size(), "rows": rows, "findings": findings, "wrong": wrong}


def _entry(kind: Kind, count: int) -> measure.Entry:
    input_array = np.empty(kind.input_elements(count, measure.rank_of_world()), np.float32)
    return measure.Entry(kind, [kind.ours(engine, input_array, measure.rank_of_world())], input_array)
