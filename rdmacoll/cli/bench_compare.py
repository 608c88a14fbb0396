"""`rdmacoll bench compare` and `rdmacoll bench peers`: beside every other library in one run."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any

import click

from rdmacoll._base.text import bytes_text, counted
from rdmacoll._start import bootstrap
from rdmacoll.benchmarks import builds, environments, judge
from rdmacoll.benchmarks.compare import (
    MACHINE,
    Comparison,
    ComparisonRequest,
    cable_of,
    python_for,
    settings_of,
    title_of,
)
from rdmacoll.benchmarks.libraries import LIBRARIES, OURS, PEERS, other_build
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.rpc.libraries import PEERS as RPC_PEERS, libraries
from rdmacoll.benchmarks.team_rank.kinds import KINDS
from rdmacoll.benchmarks.turns import Rules
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.bench_pair import sizes_of
from rdmacoll.cli.report import Findings, command, print_line, print_rows
from rdmacoll.cli.rules_options import takes_build, takes_inputs, takes_rules, takes_seconds

SIZES = "8,64,512,1K,4K,16K,64K,256K,1M,4M,16M,64M,256M"


def names_of(text: str, known: list[str], option: str) -> list[str]:
    """The names of a comma list; "all" stands for all known names. Raises click's usage error."""
    names = known if text == "all" else [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{option} {name}: all, or of {', '.join(known)}")
    return list(names)


def numbers_of(text: str, option: str, least: int = 2) -> list[int]:
    """Numbers from `least` on, from a comma list. Raises click's usage error."""
    if not all(part.isdigit() and int(part) >= least for part in text.split(",")):
        raise click.BadParameter(f"{option} {text}: numbers from {least} on, as in 2,4")
    return [int(part) for part in text.split(",")]


def links_of(text: str, ranks: list[int]) -> list[str]:
    """The links between the ranks, from a comma list: "machine", or Gbit/s between two hosts. Raises click's
    usage error."""
    links = text.split(",")
    for link in links:
        if link != MACHINE and not (link.replace(".", "", 1).isdigit() and float(link) > 0):
            raise click.BadParameter(f"--links {link}: {MACHINE}, or Gbit/s between two hosts, as in 1,10")
    if links != [MACHINE] and any(number % 2 for number in ranks):
        raise click.BadParameter("--links: two hosts need an even number of --ranks")
    return links


def refuse_launched() -> None:
    """Call first in a command that starts all ranks itself. When the command is terminated, it ends its
    ranks too. Raises click's usage error under a launcher."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    launch = bootstrap.described_launch()
    if launch is not None and launch.size > 1:
        raise click.UsageError(f"this command starts its ranks itself: start it without {launch.source}.")


@click.command("compare")
@click.option(
    "--collectives", default="allreduce", show_default=True, help=f"all, or some of {', '.join(KINDS)}."
)
@click.option("--peers", default="all", show_default=True, help=f"all, or some of {', '.join(PEERS)}.")
@click.option("--ours", default="all", show_default=True, help=f"all, or some of {', '.join(OURS.values())}.")
@click.option("--sizes", default=SIZES, show_default=True, help="Sizes in bytes: 8, 8:1M, 8,1M:4M.")
@click.option("--ranks", default="2,4", show_default=True)
@click.option(
    "--links",
    default=f"{MACHINE},1,10",
    show_default=True,
    help="The links: machine, or Gbit/s between two hosts.",
)
@takes_inputs
@takes_build
@takes_rules
@takes_seconds(3600.0)
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the result here (needs matplotlib).")
@command("bench compare")
def compare(
    *,
    collectives: str,
    peers: str,
    ours: str,
    sizes: str,
    ranks: str,
    links: str,
    inputs: str,
    build: Path | None,
    rules: Rules,
    seconds: float,
    plot: str | None,
) -> Findings:
    """Collectives beside every installed peer, in turns.

    Starts all ranks itself.

    Float32 arrays of numpy. An allreduce works in place, and TensorFlow's operations are measured, too,
    unless inputs are written. The size of other collectives is the larger one of a rank's input and output.
    While one library measures, the ranks of all others are stopped. Times are medians in microseconds; a
    ratio is time of the peer / our time, the median over the turns: above 1 we are faster. Bursts in which
    others had the processor are measured again; (L) marks where that did not help.
    """
    refuse_launched()
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError(
            "--plot needs matplotlib, which is not installed: pip install 'rdmacoll[plot]'."
        )
    numbers = numbers_of(ranks, "--ranks")
    chosen = names_of(collectives, list(KINDS), "--collectives")
    own = names_of(ours, list(OURS.values()), "--ours")
    if chosen != ["allreduce"] or inputs == "written":
        _check_unusual(chosen, own, links)
    libraries = own + names_of(peers, PEERS, "--peers")
    libraries += [other_build(name) for name in own] if build is not None else []
    request = ComparisonRequest(
        [name for name in LIBRARIES if name in libraries or LIBRARIES[name].group == "limit"],
        chosen,
        numbers,
        links_of(links, numbers),
        sizes_of(sizes),
        bootstrap.cache_folder(),
        rules,
        seconds,
        build,
        inputs,
    )
    print_line(machine_line())
    comparison = Comparison(request, lambda text: click.echo(text, err=True))
    comparison.run(_print_part)
    machine = shown_machine()
    cells = [cell for part in comparison.parts for row in part["rows"] for cell in row["time_us"].values()]
    wrong = sum(cell["wrong"] for cell in cells)
    for text in comparison.left_out:
        print_line(text)
    ratios = [ratio for part in comparison.parts for ratio in _ratios(part, f"{_title(part)}, ")]
    if build is not None:
        print_line(f"beside {build}: {builds.summary(ratios)}")
    print_line(counted(wrong, "wrong value"))
    found: Findings = {
        "ok": wrong == 0 and bool(cells) and (build is None or bool(ratios)),
        **machine,
        "settings": settings_of(request),
        "parts": comparison.parts,
        "missed": {_title(part): _missed(part) for part in comparison.parts},
        "left_out": comparison.left_out,
        "wrong": wrong,
    }
    if build is not None:
        found["build"] = builds.facts(build, ratios)
    if plot is not None:
        importlib.import_module("rdmacoll.benchmarks.plot").draw(found).savefig(plot)
    return found


def _check_unusual(collectives: list[str], own: list[str], links: str) -> None:
    """Raises click's usage error for what only an allreduce with kept inputs has: other links than the
    machine's memory, whose limit tells which peer goes around a link, and operations of TensorFlow."""
    if not collectives:
        raise click.BadParameter(f"--collectives: name at least one of {', '.join(KINDS)}")
    if links != MACHINE:
        raise click.UsageError(
            f"--links {links}: other collectives, and written inputs, are compared on one machine: add "
            f"--links {MACHINE}."
        )
    if OURS["numpy"] not in own:
        raise click.UsageError(
            f"--ours {','.join(own)}: other collectives, and written inputs, are compared with numpy alone: "
            f"add --ours {OURS['numpy']}."
        )


def _title(part: dict[str, Any]) -> str:
    return title_of(part["collective"], part["ranks"], part["link"])


def _print_part(part: dict[str, Any]) -> None:
    print_line(f"\n{_title(part)}{cable_of(part)}")
    print_rows(judge.table(part["rows"]))
    if part["link"] != MACHINE:
        print_rows(judge.cores_table(part["rows"]))
    print_rows(builds.table(_ratios(part)))
    for sentence in _missed(part):
        print_line(f"- {sentence}")


def _ratios(part: dict[str, Any], before_size: str = "") -> list[builds.Ratio]:
    rows = ((before_size + bytes_text(row["bytes"]), row) for row in part["rows"])
    return [ratio for where, row in rows for ratio in builds.ratios_of(where, row)]


def _missed(part: dict[str, Any]) -> list[str]:
    gigabits = None if part["link"] == MACHINE else float(part["link"])
    return judge.missed(part["rows"], gigabits, part["collective"])


@click.command("peers")
@click.option(
    "--install", default="", help=f"Install these: all, or some of {', '.join(environments.ENVIRONMENTS)}."
)
@command("bench peers")
def peers_command(*, install: str) -> Findings:
    """Lists the installed peers of benchmarks, or installs them.

    `bench compare`, `bench step` and the benchmarks of parameter servers use them. --install puts peers into
    the cache.
    """
    refuse_launched()
    cache: Path = bootstrap.cache_folder()
    for name in names_of(install, list(environments.ENVIRONMENTS), "--install") if install else []:
        environments.install(name, cache, print_line)
    of_rpc = libraries(everybody=False)
    known = {**{name: LIBRARIES[name] for name in PEERS}, **{name: of_rpc[name] for name in RPC_PEERS}}
    rows = {name: str(python_for(library, cache) or "") for name, library in known.items()}
    for name, python in rows.items():
        print_line(f"{name:>14}  {python or f'not installed: --install {known[name].environment}'}")
    return {"ok": True, "peers": rows}
