"""`rdmacoll bench COLLECTIVE`: time and bandwidth by size, beside a peer in the same run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from rdmacoll._base.text import bytes_text, counted
from rdmacoll._world import world
from rdmacoll.benchmarks import judge
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.team_rank.kinds import KINDS, Kind
from rdmacoll.cli import bench_memory, measure
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.report import Findings, command, note_world_of_one, parse_bytes, print_line
from rdmacoll.cli.rules_options import takes_bursts, takes_inputs

_PEER_TURNS_MIN = 7
# The MPI's name in MPI_Get_library_version.
_PEERS = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel(R) MPI"}
_DTYPE = np.dtype(np.float32)
_HEADER = (
    f"{'size':>8} {'count':>10} {'type':>8} {'redop':>6} {'median':>10} {'min':>10} {'max':>10} "
    f"{'algbw':>8} {'busbw':>8} {'#wrong':>6}"
)
_UNITS = (
    f"{'(B)':>8} {'':>10} {'':>8} {'':>6} {'(us)':>10} {'(us)':>10} {'(us)':>10} {'(GB/s)':>8} "
    f"{'(GB/s)':>8} {'':>6}"
)


@click.group()
def bench() -> None:
    """Measures; every cell is checked before it is timed."""


def sizes_from(minimum: str, maximum: str, step: int) -> list[int]:
    """Sizes from `minimum` to `maximum`, each `step` times the one before, in bytes. Raises click's usage
    error."""
    first, last = parse_bytes(minimum), parse_bytes(maximum)
    if not 4 <= first <= last:
        raise click.BadParameter(f"sizes from {minimum} to {maximum}: at least 4, the smaller one first")
    sizes = [first]
    while sizes[-1] * step <= last:
        sizes.append(sizes[-1] * step)
    return sizes


def _row(kind: Kind, size: int, cell: measure.Cell, ranks: int) -> dict[str, Any]:
    median = statistics.median(cell.seconds)
    algbw = size / median / 1e9
    return {
        "bytes": size,
        "count": size // _DTYPE.itemsize,
        "dtype": _DTYPE.name,
        "redop": "sum" if "reduce" in kind.name else "none",
        "time_us": {
            "median": median * 1e6,
            "min": min(cell.seconds) * 1e6,
            "max": max(cell.seconds) * 1e6,
        },
        "algbw": algbw,
        "busbw": algbw * kind.busbw(ranks),
        "wrong": cell.wrong,
    }


def _line(row: dict[str, Any]) -> str:
    time = row["time_us"]
    return (
        f"{bytes_text(row['bytes']):>8} {row['count']:>10} {row['dtype']:>8} {row['redop']:>6} "
        f"{time['median']:>10.2f} {time['min']:>10.2f} {time['max']:>10.2f} "
        f"{row['algbw']:>8.3f} {row['busbw']:>8.3f} {row['wrong']:>6}"
    )


def _peer_names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in _PEERS:
            raise click.BadParameter(f"--peers {name}: only {', '.join(_PEERS)} can be measured")
    return names


_OF_ROOTS = """With --inputs kept the root moves on with each call, on both sides. So a time lasts until the
        result is there: with one root, an MPI's root would run ahead of ranks that have not begun.

        """


@dataclass(frozen=True)
class _Options:
    minimum: str
    maximum: str
    step: int
    turns: int
    burst: float
    peers: str
    calls: str
    inputs: str
    memory: str


def _command(kind: Kind) -> click.Command:
    """The click command `rdmacoll bench KIND`."""

    @click.command(
        kind.name,
        help=f"""Float32 {kind.name} with numpy{", in place" if kind.name == "allreduce" else ""}. GB/s are
        10^9; a burst is many calls, a turn one burst of each library. The size is the larger one of a rank's
        input and output.

        {_OF_ROOTS if kind.has_root else ""}ratio = time of the peer / our time, the median over the turns:
        above 1 we are faster.""",
    )
    @click.option("--min", "minimum", default="8", show_default=True, help="Smallest size in bytes.")
    @click.option("--max", "maximum", default="64M", show_default=True, help="Largest size in bytes.")
    @click.option(
        "--step",
        default=2,
        show_default=True,
        type=click.IntRange(min=2),
        help="The factor from one size to the next.",
    )
    @takes_bursts
    @click.option(
        "--peers",
        default="",
        help=f"One of {', '.join(_PEERS)}, if mpi4py uses it: the same calls, turn by turn.",
    )
    @click.option(
        "--calls",
        type=click.Choice(("prepared", "plain")),
        default="prepared",
        show_default=True,
        help="prepared: calls look their arrays up beforehand, ours and mpi4py's. plain: in each call.",
    )
    @takes_inputs
    @click.option(
        "--memory",
        type=click.Choice(bench_memory.NAMES),
        default="numpy",
        show_default=True,
        help="The memory of the arrays. cuda: a GPU.",
    )
    @command(f"bench {kind.name}")
    def run(**options: Any) -> Findings:
        return _measured(kind, _Options(**options))

    return run


for _kind in KINDS.values():
    bench.add_command(_command(_kind))


def _measured(kind: Kind, options: _Options) -> Findings:
    sizes = sizes_from(options.minimum, options.maximum, options.step)
    peer_names = _peer_names(options.peers)
    if peer_names and options.turns < _PEER_TURNS_MIN:
        raise click.UsageError(
            f"--turns {options.turns} is too few with --peers: give at least {_PEER_TURNS_MIN}, since the "
            "ratio is a median of interleaved turns."
        )
    if peer_names and options.memory == "cuda":
        raise click.UsageError(
            "--peers and --memory cuda exclude each other: peers are measured on host memory."
        )
    world.init()
    memory = bench_memory.memory_named(options.memory)
    ranks = world.size()
    note_world_of_one(f"rdmacoll bench {kind.name}")
    is_plain = options.calls == "plain"
    contestants: list[measure.Contestant] = [measure.OurContestant(is_plain)]
    contestants += [measure.MpiContestant(name, _PEERS[name], is_plain) for name in peer_names]
    transport = world.describe().get("transport")
    print_line(f"{counted(ranks, 'rank')}, transport {transport}, {memory.label} memory; {machine_line()}")
    machine = shown_machine()
    peer_titles = "".join(f" {c.name:>10} {'ratio':>6}" for c in contestants[1:])
    print_line(_HEADER + peer_titles)
    print_line(_UNITS + "".join(f" {'(us)':>10} {'':>6}" for _ in contestants[1:]))
    rows, ratios = [], {c.name: {} for c in contestants[1:]}  # type: ignore[var-annotated]
    for count in kind.counts(sizes, ranks):
        size = count * _DTYPE.itemsize
        cells = measure.interleaved(
            contestants,
            kind,
            count,
            memory,
            turns=options.turns,
            burst_s=options.burst,
            is_written=options.inputs == "written",
        )
        row = _row(kind, size, cells[0], ranks)
        row.update(transport=transport, peers={}, ratio={})
        if kind.name == "allreduce":
            row["algorithm"] = engine_setting("RDMACOLL_ALLREDUCE_ALGORITHM") or "auto"
        text = _line(row)
        for contestant, cell in zip(contestants[1:], cells[1:]):
            ratio = statistics.median(peer_s / our_s for peer_s, our_s in zip(cell.seconds, cells[0].seconds))
            row["peers"][contestant.name] = _row(kind, size, cell, ranks)
            row["ratio"][contestant.name] = ratios[contestant.name][str(size)] = ratio
            text += f" {statistics.median(cell.seconds) * 1e6:>10.2f} {ratio:>6.2f}"
        rows.append(row)
        print_line(text)
    wrong = sum(row["wrong"] for row in rows)
    findings = judge.growth([(row["bytes"], row["time_us"]["median"]) for row in rows])
    for finding in findings:
        print_line(f"- {finding}")
    print_line(counted(wrong, "wrong value"))
    return {
        "ok": wrong == 0,
        "ranks": ranks,
        **machine,
        "settings": {
            "memory": options.memory,
            "calls": options.calls,
            "inputs": options.inputs,
            "turns": options.turns,
            "burst_s": options.burst,
        },
        "rows": rows,
        "peers": {contestant.name: contestant.version for contestant in contestants[1:]},
        "ratio": ratios,
        "findings": findings,
    }


def engine_setting(name: str) -> str:
    """The effective value of a setting in this world."""
    return world.current().values.text(name)
