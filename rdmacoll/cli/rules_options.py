"""The options of commands that measure turn by turn: the number of turns, the length of bursts, the
allowed disturbance, the limit of the run, the inputs, another build of rdmacoll."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rdmacoll.benchmarks.builds import tree_of
from rdmacoll.benchmarks.turns import Rules
from rdmacoll.cli.number_option import Number
from rdmacoll.errors import ConfigError


def takes_rules(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --turns, --burst and --foreign to a command, which gets them together as `rules`."""

    @click.option("--turns", default=Rules.turns, show_default=True, type=click.IntRange(min=1))
    @click.option("--burst", default=Rules.burst_s, show_default=True, type=Number(0.001, 60))
    @click.option(
        "--foreign",
        default=Rules.foreign,
        show_default=True,
        type=Number(0, 1),
        help="The largest share of the processors that others may have in a burst.",
    )
    @functools.wraps(function)
    def with_rules(*arguments: Any, turns: int, burst: float, foreign: float, **named: Any) -> Any:
        rules = Rules(turns, burst, foreign, max(foreign, Rules.foreign_of_sleepers))
        return function(*arguments, rules=rules, **named)

    return with_rules


def takes_bursts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --turns and --burst to a command that measures in the ranks of a launcher."""
    burst = click.option(
        "--burst",
        default=0.05,
        show_default=True,
        type=Number(0.0001, 60),
        help="Seconds that one turn measures.",
    )
    return click.option("--turns", default=7, show_default=True, type=click.IntRange(min=1))(burst(function))


def takes_seconds(default: float, limits: str = "the whole run, in seconds") -> Callable[..., Any]:
    """Adds --seconds to a command: the limit of `limits`."""
    return click.option(
        "--seconds",
        default=default,
        show_default=True,
        type=Number(0, 1e7),
        help=f"The limit of {limits}.",
    )


def takes_build(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --library to a command, which gets the tree of the other build as `build`, or None."""

    @click.option(
        "--library",
        metavar="PATH",
        help="Another build of rdmacoll as a peer: a built clone, or the librdmacoll.so in it.",
    )
    @functools.wraps(function)
    def with_build(*arguments: Any, library: str | None, **named: Any) -> Any:
        try:
            build = None if library is None else tree_of(Path(library))
        except ConfigError as error:
            raise click.BadParameter(f"--library {error}") from None
        return function(*arguments, build=build, **named)

    return with_build


takes_inputs = click.option(
    "--inputs",
    type=click.Choice(("kept", "written")),
    default="kept",
    show_default=True,
    help="written: before each call, ranks write their inputs, as programs do, and wait at a barrier. "
    "Neither is timed, and rank 0 is the root. kept: calls follow one another, and readers find inputs in "
    "their own caches.",
)
