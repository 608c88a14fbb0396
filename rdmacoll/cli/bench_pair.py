"""`rdmacoll bench pair`: latency and bandwidth of the path between two ranks, to compare with perftest."""

from __future__ import annotations

from typing import Any

import click

from rdmacoll._abi.mirror import BANDWIDTH, EXCHANGE, LATENCY
from rdmacoll._base.text import bytes_text, counted
from rdmacoll._world import pairs
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.cli import bench_pair_memory
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.number_option import Number
from rdmacoll.cli.report import Findings, command, parse_bytes, print_line
from rdmacoll.cli.transport_option import TransportName
from rdmacoll.errors import ConfigError, RdmacollError

_TITLES = ("size", "latency", "min", "max", "exchange", "forward", "back", "both")
_UNITS = ("(B)", "(us)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "(GB/s)")
_KEYS = (
    *("latency_us", "latency_us_min", "latency_us_max", "exchange_us"),
    *("GB_per_s_forward", "GB_per_s_back", "GB_per_s_both"),
)
_SIZE_MAX = 1 << 30


def sizes_of(text: str) -> list[int]:
    """The sizes of "8,64K:1M" in bytes, in rising order. A range stands for its first size and the doubled
    ones up to its last.

    >>> sizes_of("8:64"), sizes_of("1M,8,64K:128K")
    ([8, 16, 32, 64], [8, 65536, 131072, 1048576])
    """
    sizes: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition(":")
        size, largest = parse_bytes(first), parse_bytes(last or first)
        if not 1 <= size <= largest <= _SIZE_MAX:
            raise click.BadParameter(f"--sizes {part}: from 1 to 1G, the smaller one first")
        while size <= largest:
            sizes.add(size)
            size *= 2
    return sorted(sizes)


def _line(cells: tuple[str, ...]) -> str:
    return " ".join(f"{cell:>9}" for cell in cells)


def _row_line(row: dict[str, Any]) -> str:
    return _line((bytes_text(row["bytes"]), *(f"{row[key]:.{3 if 'GB' in key else 2}f}" for key in _KEYS)))


@click.command("pair")
@click.option(
    "--transport",
    type=TransportName(),
    help="The transport. Default: as in a training.",
)
@click.option("--sizes", default="8:1M", show_default=True, help="Sizes in bytes: 8, 8:1M, 8,1M:4M.")
@click.option(
    "--repeat", default=5, show_default=True, type=click.IntRange(1, 1000), help="Bursts for each size."
)
@click.option("--burst", default=0.05, show_default=True, type=Number(0.0001, 60), help="Seconds of a burst.")
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=Number(1, 86400),
    help="The limit of the whole run, in seconds.",
)
@click.option(
    "--memory",
    type=click.Choice(["host", "cuda"]),
    default="host",
    show_default=True,
    help="cuda: host to host, host to GPU and GPU to GPU.",
)
@command("bench pair")
def pair(
    *, transport: str | None, sizes: str, repeat: int, burst: float, timeout: float, memory: str
) -> Findings:
    """Measures the path between two ranks.

    Start it so: rdmacoll run -np 2 rdmacoll bench pair

    latency is half of a ping-pong (the median; min and max of all rounds), exchange the time until both
    ranks, who send at once, have the other's data. forward, back and both are streams with several
    transfers in flight: from rank 0 to rank 1, the other way, and both at once (their sum). GB are 10^9
    bytes.

    With --memory cuda, transfers are broadcasts, one after another. "of copies" compares their bandwidth
    with that of the pinned copies to and from the GPU that they need, which is measured in the same run.
    """
    if memory == "cuda":
        return bench_pair_memory.measured(transport, sizes_of(sizes), repeat, burst, timeout)
    test = pairs.Test(
        {"transport": transport},
        LATENCY | EXCHANGE | BANDWIDTH,
        sizes_of(sizes),
        repeats=repeat,
        burst_s=burst,
        limit_s=timeout,
    )
    with pairs.rank_group() as group:
        if group.launch.size != 2:
            raise ConfigError(
                "bench pair measures the path between 2 ranks, and here "
                f"{counted(group.launch.size, 'rank')} started ({group.launch.source}): "
                "rdmacoll run -np 2 rdmacoll bench pair."
            )
        outcome = pairs.measure(group, [(0, 1)], test, "bench")[0, 1]
        if not outcome.is_ok:
            raise RdmacollError(" ".join(problem for problem in outcome.problems if problem))
    found = dict(outcome.found)
    over = ", ".join([found["transport"], *found["rails"]])
    print_line(f"2 ranks over {over}, eager up to {found['acc_size']} B; {machine_line()}")
    machine = shown_machine()
    print_line(_line(_TITLES))
    print_line(_line(_UNITS))
    for row in found["rows"]:
        print_line(_row_line(row))
    return {
        "ok": True,
        **machine,
        "settings": {"repeat": repeat, "burst_s": burst},
        **found,
    }
