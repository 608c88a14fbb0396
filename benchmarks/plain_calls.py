"""Measures plain numpy calls: through the extension, through ctypes, prepared, and beside mpi4py's.

    mpirun -np 2 python benchmarks/plain_calls.py [--bytes 8] [--turns 40] [--json FILE]

All ways take turns in one run on the same array, so other work of the machine meets each of them. A turn is
the mean of 200 calls. The table has the median and the smallest turn of rank 0, in microseconds.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rdmacoll.benchmarks.machine import machine_facts, machine_line

CALLS = 200


def ways(size: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """The measured ways to call, by collective. An allreduce and a broadcast are in place."""
    from mpi4py import MPI

    import rdmacoll
    from rdmacoll import engine

    rdmacoll.init()
    world, array = MPI.COMM_WORLD, np.ones(max(size // 4, 1), np.float32)
    rows = np.empty((rdmacoll.size(), *array.shape), np.float32)
    collectives = {
        engine.allreduce: (
            lambda call: call(array, op=rdmacoll.Max, out=array),
            lambda: world.Allreduce(MPI.IN_PLACE, array, MPI.MAX),
        ),
        engine.broadcast: (lambda call: call(array, 0, out=array), lambda: world.Bcast(array, 0)),
        engine.allgather: (lambda call: call(array), lambda: world.Allgather(array, rows)),
        engine.barrier: (lambda call: call(), world.Barrier),
    }
    found = {}
    for call, (use, mpi) in collectives.items():
        python = getattr(call, "__wrapped__", call)  # the Python function, which goes through ctypes
        found[call.__name__] = {"mpi4py": mpi, "ctypes": functools.partial(use, python)}
        if python is not call:
            found[call.__name__]["extension"] = functools.partial(use, call)
    found["allreduce"]["prepared"] = engine.prepare_allreduce(array, op=rdmacoll.Max, out=array)
    return found


Times = dict[str, dict[str, list[float]]]


def measure(collectives: dict[str, dict[str, Callable[[], Any]]], turns: int) -> Times:
    """Returns the mean time of a call for each turn, in microseconds, by collective and way."""
    times: Times = {name: {way: [] for way in calls} for name, calls in collectives.items()}
    for _ in range(turns):
        for name, calls in collectives.items():
            for way, call in calls.items():
                begin = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[name][way].append((time.perf_counter() - begin) / CALLS * 1e6)
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
        for name, found in times.items():
            base = statistics.median(found["mpi4py"])
            for way, values in found.items():
                median = statistics.median(values)
                print(
                    f"{name:10} {way:10} median {median:8.2f}  least {min(values):8.2f}"
                    f"  mpi4py / it {base / median:5.2f}"
                )
        if options.json:
            with open(options.json, "w") as file:
                json.dump({**machine_facts(), "ranks": rdmacoll.size(), "times_us": times}, file)
    rdmacoll.shutdown()


if __name__ == "__main__":
    main()
