"""Measures allreduce while other processes want the same cores, beside mpi4py's in the same run.

    mpirun --bind-to none -np 2 python benchmarks/busy.py [--others 4] [--turns 12] [--json FILE]

Rank 0 starts processes that compute all the time, as input pipelines and other threads of a training do.
Both libraries take turns on the same array. A turn is the mean of some calls. Its first result is checked.
The table has the median of the turns of rank 0, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.cli.bench_machine import shown_machine

SIZES = (64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
OTHER = "while True: sum(range(10000))"


def turn(call: Callable[[], Any], array: np.ndarray, ranks: int, calls: int) -> float:
    """Returns the mean time of a call in microseconds. Raises RuntimeError if the first result is wrong."""
    array.fill(1)
    call()
    if not (array == ranks).all():
        raise RuntimeError(
            f"a wrong sum of {array.nbytes} bytes: {array.min()} to {array.max()}, not {ranks}"
        )
    array.fill(0)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def measure(turns: int) -> list[dict[str, float]]:
    from mpi4py import MPI

    import rdmacoll
    from rdmacoll import engine

    ranks = rdmacoll.size()
    rows = []
    for size in SIZES:
        array = np.ones(size // 4, np.float32)
        ways = {
            "mpi4py": lambda array=array: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array, MPI.SUM),
            "rdmacoll": lambda array=array: engine.allreduce(array, op=rdmacoll.Sum, out=array),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(turns):
            for name, call in ways.items():
                engine.barrier()
                times[name].append(turn(call, array, ranks, 4))
        rows.append({"bytes": size, **{name: statistics.median(found) for name, found in times.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--others", type=int, default=4, help="processes that compute all the time")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import rdmacoll

    rdmacoll.init()
    others = []
    try:
        if rdmacoll.rank() == 0:
            others = [subprocess.Popen([sys.executable, "-c", OTHER]) for _ in range(options.others)]
        rows = measure(options.turns)
    finally:
        for other in others:
            other.kill()
            other.wait()
    if rdmacoll.rank() != 0:
        return
    machine = shown_machine()
    print(f"{machine_line()}; {rdmacoll.size()} ranks, {options.others} other processes")
    print(f"{'bytes':>10} {'mpi4py, us':>12} {'rdmacoll, us':>13} {'mpi4py / rdmacoll':>18}")
    for row in rows:
        ratio = row["mpi4py"] / row["rdmacoll"]
        print(f"{row['bytes']:>10} {row['mpi4py']:>12.1f} {row['rdmacoll']:>13.1f} {ratio:>18.2f}")
    if options.json:
        options.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
