"""`rdmacoll sim scale`: the time of an allreduce and of a training step on many ranks, over modelled
links."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rdmacoll._abi import scale as simulated
from rdmacoll._base.text import bytes_text
from rdmacoll.benchmarks import gradients
from rdmacoll.cli import algorithm_option, curves
from rdmacoll.cli.algorithm_option import AUTO
from rdmacoll.cli.number_option import GBIT_MAX, GBIT_MIN, MICROSECONDS_MAX, Number
from rdmacoll.cli.report import (
    Findings,
    command,
    is_rank_0,
    parse_bytes,
    parse_range,
    print_line,
    print_prose,
)
from rdmacoll.optimizer import buckets

# The default of --transfers. A ring of 1024 ranks has about so many in a step of one segment, which takes
# over a minute to simulate (measured).
_TRANSFERS = 2_200_000
# Each cell has descriptors, and memory for up to 64 ranks.
_CELLS_AT_ONCE = 8


def worlds_of(first: int, last: int) -> list[int]:
    """Numbers of ranks from `first` to `last`, doubling.

    >>> worlds_of(2, 20)
    [2, 4, 8, 16, 20]
    """
    worlds = [first]
    while worlds[-1] < last:
        worlds.append(min(2 * worlds[-1], last))
    return worlds


def step_of(
    shapes: Sequence[tuple[int, ...]], backward_us: float, bucket_bytes: int
) -> list[tuple[int, float]]:
    """The buckets of a model's gradients, as the optimizer wrapper cuts them. Each is (bytes, time in us at
    which its last gradient is ready). Gradients become ready one after the other at equal intervals.

    >>> step_of(gradients.MODELS["resnet50"][1], 161.0, 26214400)[0]
    (4000, 1.0)
    """
    entries = [buckets.Entry("float32", shape, 4 * math.prod(shape)) for shape in shapes]
    made = []
    for bucket in buckets.cut(entries, bucket_bytes=bucket_bytes):
        size = sum(entries[index].bytes or 0 for index in bucket.indices)
        ready = len(shapes) - min(bucket.indices)
        made.append((size, backward_us * ready / len(shapes)))
    return made


def at_least(worlds: Sequence[int], times: Sequence[float | None]) -> list[float | None]:
    """Lower bounds for worlds that are too large to be simulated, in the unit of `times`; None for the
    others. If the time per added rank has not fallen over the last three known worlds, it does not fall
    later. A ring is an example. Then the bound grows with it. Otherwise the bound is the last known time.

    >>> at_least([2, 4, 8, 16], [1.0, 2.0, 4.0, None])
    [None, None, None, 8.0]
    >>> at_least([2, 4, 8, 16], [1.0, 3.0, 4.0, None])[3]
    4.0
    """
    known = [(world, time) for world, time in zip(worlds, times) if time is not None]
    if not known:
        return [None] * len(times)
    slopes = [(after - before) / (b - a) for (a, before), (b, after) in zip(known, known[1:])]
    slope = slopes[-1] if len(slopes) > 1 and slopes[-1] >= slopes[-2] else 0.0
    last, time_of_last = known[-1]
    return [
        time_of_last + slope * (world - last) if time is None else None for world, time in zip(worlds, times)
    ]


@click.command("scale")
@click.option(
    "--ranks",
    default="2:64",
    show_default=True,
    help="The smallest and the largest number of ranks, which doubles each time.",
)
@click.option(
    "--per-node", default=1, show_default=True, type=click.IntRange(1), help="The number of ranks of a node."
)
@click.option(
    "--bytes", "sizes", default="64K,1M,16M", show_default=True, help="Sizes of the allreduces; empty: none."
)
@click.option(
    "--algorithms",
    type=algorithm_option.algorithms,
    help="Algorithms, with commas. Default: auto, and all that it may choose between nodes.",
)
@click.option("--link", type=click.Choice(list(simulated.PRESETS)), default="10gbit", show_default=True)
@click.option(
    "--latency-us", type=Number(0, MICROSECONDS_MAX), help="The latency between nodes. Default: the preset's."
)
@click.option(
    "--overhead-us",
    type=Number(0, MICROSECONDS_MAX),
    help="The time of the processor at each end of a transfer.",
)
@click.option(
    "--gap-us",
    type=Number(0, MICROSECONDS_MAX),
    help="The least time from one transfer to the next at a port.",
)
@click.option("--gbit", type=Number(GBIT_MIN, GBIT_MAX), help="The rate of a node's port in each direction.")
@click.option(
    "--rack-nodes",
    default=0,
    type=click.IntRange(0),
    help="The number of nodes that share an uplink; 0: none share one.",
)
@click.option("--oversubscription", default=1.0, show_default=True, type=Number(1.0))
@click.option(
    "--model",
    default="resnet50",
    show_default=True,
    type=click.Choice(list(gradients.MODELS)),
    help="The model of the training step.",
)
@click.option("--forward-ms", default=60.0, show_default=True, type=Number(0.0))
@click.option(
    "--backward-ms",
    default=120.0,
    show_default=True,
    type=Number(0.0),
    help="The time of the backward pass; 0: no training step.",
)
@click.option("--bucket-bytes", default=26214400, show_default=True, type=click.IntRange(4))
@click.option(
    "--transfers",
    default=_TRANSFERS,
    show_default=True,
    type=click.IntRange(1),
    help="The largest number of transfers in a step.",
)
@click.option("--plot", metavar="FILE", help="Draws the curves there, as SVG.")
@command("sim scale")
def scale(
    *,
    ranks: str,
    per_node: int,
    sizes: str,
    algorithms: list[str] | None,
    link: str,
    latency_us: float | None,
    overhead_us: float | None,
    gap_us: float | None,
    gbit: float | None,
    rack_nodes: int,
    oversubscription: float,
    model: str,
    forward_ms: float,
    backward_ms: float,
    bucket_bytes: int,
    transfers: int,
    plot: str | None,
) -> Findings:
    """Times of allreduces and training steps on modelled links.

    The real engines are stepped under a virtual clock. Links are modelled by LogGP, with ports that transfers
    share. The sums of a training step overlap its backward pass.

    The model knows nothing of memory that ranks of a node compete for, of processors that are missing, or of
    ranks that are late. Above 64 ranks or 64 MiB of all ranks bytes have a size and no content.
    """
    first, last = parse_range(ranks)
    if not 2 <= first <= last <= 4096:
        raise click.BadParameter(f"--ranks {ranks}: from 2 to 4096, the smaller one first")
    rate = None if gbit is None else gbit * simulated.BYTES_PER_US_OF_GBIT
    links = simulated.with_network(
        replace(simulated.PRESETS[link], rack_nodes=rack_nodes, oversubscription=oversubscription),
        latency_us=latency_us,
        overhead_us=overhead_us,
        gap_us=gap_us,
        bytes_per_us=rate,
    )
    names = algorithms or algorithm_option.names_between_nodes()
    training, shapes = gradients.MODELS[model]
    steps: dict[str, list[tuple[int, float]]] = {}
    for size in filter(None, sizes.split(",")):
        count = max(4, parse_bytes(size) // 4 * 4)
        steps[bytes_text(count)] = [(count, 0.0)]
    if backward_ms > 0:
        steps[training] = step_of(shapes, backward_ms * 1e3, bucket_bytes)
    worlds = worlds_of(first, last)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(min(_CELLS_AT_ONCE, len(os.sched_getaffinity(0)))) as processors:

        def submit(operations: list[tuple[int, float]], world: int, name: str) -> Future[dict[str, Any]]:
            return processors.submit(
                simulated.simulate,
                links,
                ranks=world,
                per_node=per_node,
                operations=operations,
                algorithm=None if name == AUTO else name,
                transfers_max=transfers,
            )

        futures = {
            step_name: [{name: submit(operations, world, name) for name in names} for world in worlds]
            for step_name, operations in steps.items()
        }
        try:
            for step_name, operations in steps.items():
                is_training = step_name == training
                print_prose(_title(step_name, is_training, forward_ms, backward_ms, operations))
                for line in _titles(["ranks", *names, *(["scaling"] if is_training else [])]):
                    print_line(line)
                compute_us = (forward_ms + backward_ms) * 1e3 if is_training else 0.0
                own_rows: list[dict[str, Any]] = []
                for world, cells in zip(worlds, futures[step_name]):
                    found = {name: cell.result() for name, cell in cells.items()}
                    own_rows.append(_row_of(step_name, world, found, forward_ms * 1e3, compute_us))
                    for name in names:
                        least = at_least(worlds[: len(own_rows)], [row["time_us"][name] for row in own_rows])
                        own_rows[-1]["at_least_us"][name] = least[-1]
                    print_line(_text(own_rows[-1], names))
                rows += own_rows
                print_line()
        except BaseException:
            processors.shutdown(wait=False, cancel_futures=True)
            raise
    if plot is not None and is_rank_0():
        Path(plot).write_text(_picture(rows, names), encoding="utf-8")
    print_prose(
        "Milliseconds. auto: the engine's choice; * marks the algorithms that it chooses. >: more transfers "
        "than --transfers allows, so at least that, by what smaller worlds take. ~: bytes had a size and no "
        "content. scaling: time of the "
        f"computation / time of the step, of {AUTO if AUTO in names else 'the fastest algorithm'}."
    )
    return {"ok": True, "rows": rows, "model": asdict(links), "per_node": per_node}


def _row_of(
    step_name: str, world: int, found: dict[str, dict[str, Any]], forward_us: float, compute_us: float
) -> dict[str, Any]:
    """The JSON row of one world. compute_us: time of forward and backward pass; 0: no training."""
    before_us = forward_us if compute_us > 0 else 0.0
    times = {
        name: None if one["time_us"] is None else one["time_us"] + before_us for name, one in found.items()
    }
    row: dict[str, Any] = {"what": step_name, "ranks": world, "time_us": times, "at_least_us": {}}
    row["moved"] = all(one["moved"] for one in found.values())
    if AUTO in found:
        row["chosen"] = sorted(set(found[AUTO]["algorithms"]))
    if compute_us > 0:
        # An algorithm that was too large to be simulated might be the fastest one.
        judged = [times[AUTO]] if AUTO in times else list(times.values())
        known = [time for time in judged if time is not None]
        row["scaling"] = compute_us / min(known) if known and len(known) == len(judged) else None
    return row


def _picture(rows: list[dict[str, Any]], names: list[str]) -> str:
    panels: list[str] = []
    for step_name in dict.fromkeys(row["what"] for row in rows):
        own_rows = [row for row in rows if row["what"] == step_name]
        known = {
            name: [(row["ranks"], row["time_us"][name] / 1e3) for row in own_rows if row["time_us"][name]]
            for name in names
        }
        panels.append(curves.panel(step_name, known, at=len(panels)))
    return curves.picture(panels)


def _title(
    step_name: str,
    is_training: bool,
    forward_ms: float,
    backward_ms: float,
    operations: list[tuple[int, float]],
) -> str:
    if not is_training:
        return f"allreduce of {step_name} bytes"
    return (
        f"a step of {step_name}: {forward_ms:g} ms forward, {backward_ms:g} ms backward, "
        f"{sum(size for size, _ in operations) / 1e6:.0f} MB in {len(operations)} buckets"
    )


def _parts(name: str) -> tuple[str, str]:
    """The two lines of a column's head."""
    first, mark, last = name.rpartition("_") if len(name) > 7 else ("", "", name)
    return first, mark + last


def _line(cells: Sequence[str], names: Sequence[str]) -> str:
    """A line of the table whose columns have these names."""
    widths = [max(6 if at else 5, *map(len, _parts(name))) for at, name in enumerate(names)]
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))


def _titles(names: Sequence[str]) -> list[str]:
    """The heads of the columns, in two lines if a name is long.

    >>> _titles(["ranks", "short", "some_algorithm"])
    ['                   some', 'ranks  short _algorithm']
    """
    lines = list(zip(*map(_parts, names)))
    return [_line(cells, names) for cells in lines if any(cells)]


def _text(row: dict[str, Any], names: list[str]) -> str:
    cells = [f"{'' if row['moved'] else '~'}{row['ranks']}"]
    chosen = row.get("chosen", [])
    for name in names:
        time, least = row["time_us"][name], row["at_least_us"][name]
        known = f"> {least / 1e3:.0f}" if least is not None else "-"
        mark = "*" if name in chosen else ""
        cells.append((known if time is None else _milliseconds(time)) + mark)
    if "scaling" in row:
        cells.append("-" if row["scaling"] is None else f"{100 * row['scaling']:.1f} %")
    others = ", ".join(name for name in chosen if name not in names)
    return f"{_line(cells, ['ranks', *names, 'scaling'])} {others}".rstrip()


def _milliseconds(time_us: float) -> str:
    """The time in milliseconds, with four digits.

    >>> [_milliseconds(time) for time in (87, 9_999, 180_598, 1_180_598, 99_999_999)]
    ['0.087', '9.999', '180.6', '1181', '100000']
    """
    digits_before = len(str(int(time_us / 1e3)))
    return f"{time_us / 1e3:.{max(0, 4 - digits_before)}f}"
