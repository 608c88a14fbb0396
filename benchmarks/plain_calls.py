"""Measures plain numpy calls: through the extension, through ctypes, prepared, and beside mpi4py's.

    mpirun -np 2 python benchmarks/plain_calls.py [--bytes 8] [--turns 40] [--json FILE]

All ways take turns in one run on the same array, so other work of the machine meets each of them. A turn is
the mean of 200 calls. The table has the median and the smallest turn of rank 0, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rdmacoll.benchmarks.machine import machine_facts, machine_line

CALLS = 200


def ways(size: int) -> dict[str, Callable[[], Any]]:
    """The measured ways to call. Those of ours are an allreduce in place, a broadcast and a barrier."""
    from mpi4py import MPI

    import rdmacoll
    from rdmacoll import engine
    from rdmacoll._world.world import current

    rdmacoll.init()
    array = np.ones(max(size // 4, 1), np.float32)
    ours, plain = current(), current().plain_calls

    def without_extension(call: Callable[[], Any]) -> Callable[[], Any]:
        def called() -> Any:
            ours.plain_calls = None
            try:
                return call()
            finally:
                ours.plain_calls = plain

        return called

    def allreduce() -> Any:
        return engine.allreduce(array, op=rdmacoll.Max, out=array)

    def broadcast() -> Any:
        return engine.broadcast(array, 0, out=array)

    found = {
        "mpi4py, allreduce": lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array, MPI.MAX),
        "prepared allreduce": engine.prepare_allreduce(array, op=rdmacoll.Max, out=array),
    }
    for name, call in ("allreduce", allreduce), ("broadcast", broadcast), ("barrier", engine.barrier):
        if plain is not None:
            found[f"extension, {name}"] = call
        found[f"ctypes, {name}"] = without_extension(call)
    return found


def measure(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Returns the mean time of a call for each turn, in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--json")
    options = parser.parse_args()
    times = measure(ways(options.bytes), options.turns)

    import rdmacoll

    if rdmacoll.rank() == 0:
        print(f"{machine_line()}; {rdmacoll.size()} ranks, {options.bytes} bytes, {options.turns} turns")
        base = statistics.median(times["mpi4py, allreduce"])
        for name, values in times.items():
            median = statistics.median(values)
            print(
                f"{name:22} median {median:8.2f}  least {min(values):8.2f}  mpi4py / it {base / median:5.2f}"
            )
        if options.json:
            with open(options.json, "w") as file:
                json.dump({**machine_facts(), "ranks": rdmacoll.size(), "times_us": times}, file)
    rdmacoll.shutdown()


if __name__ == "__main__":
    main()
