"""`rdmacoll plan --measure`: the times of an operation beside those that the cost model predicts."""

from __future__ import annotations

import statistics
from typing import Any

import click
import numpy as np

from rdmacoll import engine
from rdmacoll._abi.plan_query import explain
from rdmacoll._base.text import bytes_text, counted
from rdmacoll._world import world
from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.benchmarks.team_rank.kinds import KINDS, Kind, RankOfWorld, Run
from rdmacoll.benchmarks.team_rank.values import Array
from rdmacoll.cli import bench_memory, measure
from rdmacoll.cli.bench_machine import shown_machine
from rdmacoll.cli.report import Findings, print_line, print_prose

_SIZES = [64 << 10 << 2 * power for power in range(6)]
_TURNS = 7
_BURST_S = 0.1
_DTYPE = np.dtype(np.float32)


class _OwnResults(measure.OurContestant):
    """Calls as the model has them: a root sends from its input and has a result of its own."""

    def prepare(self, kind: Kind, input_array: Array, count: int, place: RankOfWorld) -> Run:
        """The prepared call."""
        if kind.name != "broadcast":
            return super().prepare(kind, input_array, count, place)
        run: Run = engine.prepare_broadcast(input_array, place.root)
        return run


def time_text(time_us: float) -> str:
    """A time with its unit.

    >>> time_text(269.1), time_text(39410.8)
    ('269.1 us', '39.4 ms')
    """
    return f"{time_us:.1f} us" if time_us < 10_000 else f"{time_us / 1e3:.1f} ms"


def measured_beside_model(operation: str, size: int | None) -> Findings:
    """Measures the operation on the ranks of this launcher. size: in bytes; None: from 64 KiB to 64 MiB.

    Raises click's usage error in a world of one, and if the ranks are on several nodes: the model compares
    networks, and does not predict their times."""
    world.init(tune="off")  # all sums go the way that the model predicts
    ranks = world.size()
    if ranks < 2:
        raise click.UsageError(
            "--measure needs several ranks: mpirun --bind-to none -np 2 rdmacoll plan --measure"
        )
    nodes = len(set(world.describe()["nodes"]))
    if nodes > 1:
        raise click.UsageError(
            f"--measure needs ranks of one node, and these are on {nodes}: the model does not predict "
            "networks. Start all ranks on one node."
        )
    kind, memory = KINDS[operation], bench_memory.HostMemory()
    print_line(f"{operation}, {counted(ranks, 'rank')} of one node; {machine_line()}")
    machine = shown_machine()
    print_line(f"{'size':>8} {'algorithm':<20} {'model':>10} {'measured':>10} {'least':>10} {'ratio':>6}")
    rows: list[dict[str, Any]] = []
    contestant = _OwnResults()
    for one_size in _SIZES if size is None else [size]:
        count = max(1, one_size // _DTYPE.itemsize // ranks) * ranks
        found = explain(operation, ranks=ranks, nodes=1, count=count * _DTYPE.itemsize)
        model_us = next(row["time_us"] for row in found["costs"] if row["algorithm"] == found["algorithm"])
        # The model has one root, and ranks that begin together.
        cell = measure.interleaved(
            [contestant], kind, count, memory, turns=_TURNS, burst_s=_BURST_S, is_written=kind.has_root
        )[0]
        median_us = statistics.median(cell.seconds) * 1e6
        rows.append(
            {
                "bytes": count * _DTYPE.itemsize,
                "algorithm": found["algorithm"],
                "model_us": model_us,
                "time_us": {
                    "median": median_us,
                    "min": min(cell.seconds) * 1e6,
                    "max": max(cell.seconds) * 1e6,
                },
                "ratio": model_us / median_us,
                "wrong": cell.wrong,
            }
        )
        print_line(
            f"{bytes_text(count * _DTYPE.itemsize):>8} {found['algorithm']:<20} {time_text(model_us):>10} "
            f"{time_text(median_us):>10} {time_text(min(cell.seconds) * 1e6):>10} "
            f"{model_us / median_us:>6.2f}"
        )
    print_prose(
        "ratio: model / measured, the median of the turns. A prediction is good between 0.8 and 1.25."
    )
    if ranks > (cores := machine["cores"]):
        print_prose(f"{counted(ranks, 'rank')} share {counted(cores, 'core')} here, as in the model.")
    return {
        "ok": all(row["wrong"] == 0 for row in rows),
        "operation": operation,
        "ranks": ranks,
        **machine,
        "rows": rows,
    }
