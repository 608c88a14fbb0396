"""`rdmacoll bench overhead`: the engine's own costs, on one page."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from rdmacoll._base.text import counted
from rdmacoll._start import bootstrap
from rdmacoll.benchmarks import overhead as costs
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.turns import Rules
from rdmacoll.cli.bench_compare import refuse_launched
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.number_option import Number
from rdmacoll.cli.report import Findings, command, print_line
from rdmacoll.cli.rules_options import takes_rules, takes_seconds


@click.command("overhead")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(min=2))
@click.option("--starts", default=5, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--rest",
    default=3.0,
    show_default=True,
    type=Number(0, 3600),
    help="Seconds in which the ranks do nothing.",
)
@takes_rules
@takes_seconds(300.0)
@command("bench overhead")
def overhead(*, ranks: int, starts: int, rest: float, rules: Rules, seconds: float) -> Findings:
    """The cost of the engine: time of processors, start, memory.

    Times of processors are those of a training step and of doing nothing. Starts all ranks itself.

    With numpy on one machine, without TensorFlow. A goal that is missed is marked; the exit code is 0 all
    the same, since times belong to the machine.
    """
    refuse_launched()
    run = costs.Overhead(ranks, starts, rest, rules, bootstrap.cache_folder(), seconds)
    print_line(f"{counted(ranks, 'rank')}; {machine_line()}")
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        lines = run.lines(Path(folder), print_line)
    machine = shown_machine()
    for text in dict.fromkeys(run.left_out):
        print_line(text)
    missed = [line.what for line in lines if line.is_missed]
    print_line(f"{counted(len(missed), 'goal')} missed")
    rows = [
        {"what": line.what.strip(), "value": line.value, "unit": line.unit, "goal": line.goal}
        for line in lines
    ]
    return {
        "ok": True,
        **machine,
        "ranks": ranks,
        "library": run.facts,
        "rows": rows,
        "missed": missed,
        "left_out": run.left_out,
    }
