"""`rdmacoll verify-schedules` and `rdmacoll sim faults`: checks that need no world."""

from __future__ import annotations

from typing import Any

import click

from rdmacoll._abi.library import load
from rdmacoll._base.text import counted
from rdmacoll.cli import seeds as seeds_of
from rdmacoll.cli.report import Findings, command, parse_range, print_line


@click.command("verify-schedules")
@click.option(
    "--ranks",
    default="1:64",
    show_default=True,
    help="The smallest and the largest number of ranks (both are checked).",
)
@command("verify-schedules")
def verify_schedules(*, ranks: str) -> Findings:
    """Executes every algorithm's schedules symbolically.

    It does so for every size of the world.
    """
    first, last = parse_range(ranks)
    if not 1 <= first <= last <= 1024:
        raise click.BadParameter(f"--ranks {ranks}: from 1 to 1024, the smaller one first")
    total: dict[str, Any] = {}
    ok = True
    library = load()
    for count in range(first, last + 1):
        code, fields = library.verify_schedules(count, count)
        ok = ok and code == 0
        algorithms = fields.pop("algorithms")
        seeds_of.add(total, fields)
    worlds = counted(first, "rank") if first == last else f"{first} to {last} ranks"
    schedules = f"{counted(total['schedules'], 'schedule')} of {counted(len(algorithms), 'algorithm')}"
    print_line(f"{schedules} for {worlds}, {total['failed']} failed")
    for failure in total.get("failures", [])[:20]:
        print_line(f"  {failure}")
    return {**total, "algorithms": algorithms, "ok": ok}


@click.group()
def sim() -> None:
    """The real engine under a virtual clock."""


@sim.command("faults")
@click.option(
    "--seeds", default="0:1000", show_default=True, help="The first seed, and the end (not included)."
)
@click.option("--seed", type=click.IntRange(min=0), help="Replays one seed, and prints its events.")
@click.option("--first", is_flag=True, help="Ends at the first seed that fails.")
@command("sim faults")
def faults(*, seeds: str, seed: int | None, first: bool) -> Findings:
    """Runs seeded worlds with injected faults.

    Faults are delays, refusals, reordering, broken connections, memory that ends, pauses and deaths. All
    processors take part.

    Every operation has to end with the right sum or with an error that names the rank.
    """
    begin, end = (seed, seed + 1) if seed is not None else parse_range(seeds)
    if not 0 <= begin < end:
        raise click.BadParameter(f"--seeds {seeds}: the end is not included, so 0:1000 are 1000 seeds")
    if seed is not None:
        return _replay(seed)
    total = seeds_of.survey(begin, end, stops_at_first=first)
    found = ", ".join(f"{key} {total[key]}" for key in seeds_of.KINDS)
    print_line(f"{counted(total['seeds'], 'seed')} in {total['seconds']:.1f} s: {found}")
    failing = total["failing_seeds"]
    for number, finding in list(zip(failing, total["findings"]))[:20]:
        print_line(finding)
        print_line(f"  its events: rdmacoll sim faults --seed {number}")
    return {**total, "ok": not failing}


def _replay(seed: int) -> Findings:
    code, fields = load().sim_faults(seed, seed + 1, verbose=True)
    return {**fields, "ok": code == 0}
