"""`rdmacoll verify-schedules` and `rdmacoll sim faults`: checks that need no world."""

from __future__ import annotations

from typing import Any

import click

from rdmacoll.cli.report import Findings, command, counted, parse_range, say
from rdmacoll.engine.library import load

# The simulator runs so many seeds before it looks up: progress, and Ctrl-C.
_SEEDS_AT_ONCE = 20


@click.command("verify-schedules")
@click.option("--ranks", default="1:64", show_default=True, help="Sizes of the world, inclusive.")
@command("verify-schedules")
def verify_schedules(*, ranks: str) -> Findings:
    """Executes every algorithm's schedules symbolically, for every size of the world."""
    first, last = parse_range(ranks)
    if not 1 <= first <= last <= 1024:
        raise click.BadParameter(f"--ranks {ranks}: from 1 to 1024, the smaller one first")
    total: dict[str, Any] = {}
    ok = True
    library = load()
    for count in range(first, last + 1):
        code, fields = library.verify_schedules(count, count)
        ok = ok and code == 0
        _add(total, fields)
    worlds = counted(first, "rank") if first == last else f"{first} to {last} ranks"
    say(f"{counted(total['schedules'], 'schedule')} of {worlds}, {total['failed']} failed")
    for failure in total.get("failures", [])[:20]:
        say(f"  {failure}")
    return {**total, "ok": ok}


@click.group()
def sim() -> None:
    """The real engine under a virtual clock and planned mishaps."""


@sim.command("faults")
@click.option("--seeds", default="0:1000", show_default=True, help="First seed and end, exclusive.")
@click.option("--seed", type=click.IntRange(min=0), help="Replays one seed, and says what happens.")
@command("sim faults")
def faults(*, seeds: str, seed: int | None) -> Findings:
    """Runs seeded worlds with delays, refusals, reordering, pauses and deaths.

    Every operation has to end with the right sum or with an error that names the rank.
    """
    begin, end = (seed, seed + 1) if seed is not None else parse_range(seeds)
    if not 0 <= begin < end:
        raise click.BadParameter(f"--seeds {seeds}: the end is not included, so 0:1000 are 1000 seeds")
    total: dict[str, Any] = {}
    ok = True
    library = load()
    for first in range(begin, end, _SEEDS_AT_ONCE):
        code, fields = library.sim_faults(first, min(end, first + _SEEDS_AT_ONCE), verbose=seed is not None)
        ok = ok and code == 0
        _add(total, fields)
    found = ", ".join(f"{key} {total.get(key, 0)}" for key in ("hangs", "wrong_sums", "unnamed_errors"))
    say(f"{counted(total.get('seeds', end - begin), 'seed')}: {found}")
    for failing in total.get("failing_seeds", [])[:20]:
        say(f"  rdmacoll sim faults --seed {failing}")
    return {**total, "ok": ok}


def _add(total: dict[str, Any], fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        if key not in total or isinstance(value, (str, bool)):
            total[key] = value
        elif isinstance(value, (int, float, list)):
            total[key] = total[key] + value
