"""`rdmacoll sim scale`: what an allreduce and a training step take on many ranks, on modelled links."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rdmacoll.benchmarks import resnet50
from rdmacoll.cli import curves
from rdmacoll.cli.report import Findings, bytes_text, command, is_speaker, parse_bytes, parse_range, say
from rdmacoll.engine import scale as simulated
from rdmacoll.optimizer import buckets

_AUTO = "auto"


def worlds_of(first: int, last: int) -> list[int]:
    """Numbers of ranks from `first` to `last`, doubling.

    >>> worlds_of(2, 20)
    [2, 4, 8, 16, 20]
    """
    worlds = [first]
    while worlds[-1] < last:
        worlds.append(min(2 * worlds[-1], last))
    return worlds


def resnet_step(backward_us: float, bucket_bytes: int) -> list[tuple[int, float]]:
    """The buckets of ResNet-50's gradients, as the optimizer wrapper cuts them: bytes, and when the last of
    the bucket's gradients is there, which come one after the other in equal times.

    >>> resnet_step(161.0, 26214400)[0]
    (4000, 1.0)
    """
    shapes = resnet50.shapes()
    entries = [buckets.Entry("float32", shape, 4 * math.prod(shape)) for shape in shapes]
    made = []
    for bucket in buckets.cut(entries, bucket_bytes=bucket_bytes):
        size = sum(entries[index].bytes or 0 for index in bucket.indices)
        ready = len(shapes) - min(bucket.indices)
        made.append((size, backward_us * ready / len(shapes)))
    return made


@click.command("scale")
@click.option("--ranks", default="2:64", show_default=True, help="From:to, doubling.")
@click.option("--per-node", default=1, show_default=True, type=click.IntRange(1), help="Ranks of a node.")
@click.option("--bytes", "sizes", default="64K,1M,16M", show_default=True, help="Of the allreduces.")
@click.option("--algorithms", default="auto,ring,halving_doubling,two_level", show_default=True)
@click.option("--link", type=click.Choice(list(simulated.PRESETS)), default="10gbit", show_default=True)
@click.option("--latency-us", type=float, help="Of the network between nodes, if not the preset's.")
@click.option("--overhead-us", type=float, help="Of the processor, at each end of a transfer.")
@click.option("--gap-us", type=float, help="From one transfer to the next at a port, at least.")
@click.option("--gbit", type=float, help="Of a node's port, in each direction.")
@click.option("--rack-nodes", default=0, type=click.IntRange(0), help="Nodes that share an uplink; 0: none.")
@click.option("--oversubscription", default=1.0, show_default=True, type=click.FloatRange(1.0))
@click.option("--forward-ms", default=60.0, show_default=True, type=click.FloatRange(0.0))
@click.option(
    "--backward-ms", default=120.0, show_default=True, type=click.FloatRange(0.0), help="0: no training step."
)
@click.option("--bucket-bytes", default=26214400, show_default=True, type=click.IntRange(4))
@click.option("--transfers", default=2_000_000, show_default=True, type=click.IntRange(1), help="Of a step.")
@click.option("--plot", metavar="FILE", help="Draws the curves there, as SVG.")
@command("sim scale")
def scale(
    *,
    ranks: str,
    per_node: int,
    sizes: str,
    algorithms: str,
    link: str,
    latency_us: float | None,
    overhead_us: float | None,
    gap_us: float | None,
    gbit: float | None,
    rack_nodes: int,
    oversubscription: float,
    forward_ms: float,
    backward_ms: float,
    bucket_bytes: int,
    transfers: int,
    plot: str | None,
) -> Findings:
    """Steps the real engines under a virtual clock on modelled links (LogGP with ports that transfers share):
    the time of an allreduce, and of a step of ResNet-50 whose sums overlap its backward pass.

    The model knows nothing of memory that ranks of a node compete for, of processors that are missing, or of
    ranks that are late. Above 64 ranks or 64 MiB of all ranks bytes have a size and no content.
    """
    first, last = parse_range(ranks)
    if not 2 <= first <= last <= 4096:
        raise click.BadParameter(f"--ranks {ranks}: from 2 to 4096, the smaller one first")
    rate = None if gbit is None else gbit * simulated.BYTES_PER_US_OF_GBIT
    model = simulated.with_network(
        replace(simulated.PRESETS[link], rack_nodes=rack_nodes, oversubscription=oversubscription),
        latency_us=latency_us,
        overhead_us=overhead_us,
        gap_us=gap_us,
        bytes_per_us=rate,
    )
    names = algorithms.split(",")
    steps: dict[str, list[tuple[int, float]]] = {}
    for size in sizes.split(","):
        count = max(4, parse_bytes(size) // 4 * 4)
        steps[bytes_text(count)] = [(count, 0.0)]
    if backward_ms > 0:
        steps["ResNet-50"] = resnet_step(backward_ms * 1e3, bucket_bytes)
    compute_us = (forward_ms + backward_ms) * 1e3
    rows: list[dict[str, Any]] = []
    for what, operations in steps.items():
        is_training = what == "ResNet-50"
        say(_title(what, is_training, forward_ms, backward_ms, operations))
        say(_line(["ranks", *names, *(["scaling"] if is_training else [])]))
        for world in worlds_of(first, last):
            row: dict[str, Any] = {"what": what, "ranks": world, "time_us": {}}
            for name in names:
                found = simulated.simulate(
                    model,
                    ranks=world,
                    per_node=per_node,
                    operations=operations,
                    algorithm=None if name == _AUTO else name,
                    transfers_max=transfers,
                )
                time = found["time_us"]
                if is_training and time is not None:
                    time += forward_ms * 1e3
                row["time_us"][name] = time
                row["moved"] = found["moved"]
                if name == _AUTO:
                    row["chosen"] = sorted(set(found["algorithms"]))
            if is_training:
                known = [time for time in row["time_us"].values() if time is not None]
                row["scaling"] = compute_us / min(known) if known else None
            rows.append(row)
            if is_speaker():
                say(_row(row, names))
        say()
    if plot is not None and is_speaker():
        Path(plot).write_text(_picture(rows, names), encoding="utf-8")
    say("Milliseconds. -: more transfers than --transfers allows. auto: what the engine chooses, behind it.")
    return {"ok": True, "rows": rows, "model": asdict(model), "per_node": per_node}


def _picture(rows: list[dict[str, Any]], names: list[str]) -> str:
    panels: list[str] = []
    for what in dict.fromkeys(row["what"] for row in rows):
        mine = [row for row in rows if row["what"] == what]
        known = {
            name: [(row["ranks"], row["time_us"][name] / 1e3) for row in mine if row["time_us"][name]]
            for name in names
        }
        panels.append(curves.panel(what, known, at=len(panels)))
    return curves.picture(panels)


def _title(
    what: str, is_training: bool, forward_ms: float, backward_ms: float, operations: list[tuple[int, float]]
) -> str:
    if not is_training:
        return f"allreduce of {what} bytes"
    return (
        f"a step of ResNet-50: {forward_ms:g} ms forward, {backward_ms:g} ms backward, "
        f"{sum(size for size, _ in operations) / 1e6:.0f} MB in {len(operations)} buckets"
    )


def _line(cells: list[str]) -> str:
    return " ".join(f"{cell:>17}" if at else f"{cell:>6}" for at, cell in enumerate(cells))


def _row(row: dict[str, Any], names: list[str]) -> str:
    cells = [str(row["ranks"])]
    for name in names:
        time = row["time_us"][name]
        cells.append("-" if time is None else f"{time / 1e3:.3f}")
    if "scaling" in row:
        cells.append("-" if row["scaling"] is None else f"{100 * row['scaling']:.1f} %")
    chosen = ", ".join(row.get("chosen", []))
    return f"{_line(cells)}  {chosen}{'' if row['moved'] else ' (sizes alone)'}"
