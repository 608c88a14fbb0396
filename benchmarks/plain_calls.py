"""Measures plain numpy calls: through the extension, through ctypes, prepared, and beside mpi4py's.

    mpirun -np 2 python benchmarks/plain_calls.py [--bytes 8] [--turns 40] [--json FILE]

All ways take turns in one run on the same array, so other work of the machine meets each of them. A turn is
the mean of 200 calls. The table has the median and the smallest turn of rank 0, in microseconds. The root
moves on by one with each call: with one root, a loop would measure how many messages fit an MPI's queues.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rdmacoll.benchmarks.machine import machine_line
from rdmacoll.cli.bench_machine import shown_machine

CALLS = 200


def ways(size: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """The measured ways to call, by collective. An allreduce and a broadcast are in place. mpi4py has arrays
    for all results; ours makes those of the other collectives. `size`: bytes of a rank's input."""
    from mpi4py import MPI

    import rdmacoll
    from rdmacoll import engine

    rdmacoll.init()
    world, ranks = MPI.COMM_WORLD, rdmacoll.size()
    array = np.ones(max(size // 4, 1), np.float32)
    rows = np.ones((ranks, *array.shape), np.float32)
    result = np.empty_like(array)
    cut = np.ones(-(-array.size // ranks) * ranks, np.float32)  # for equal parts
    parts, part = np.empty_like(cut), np.empty(cut.size // ranks, np.float32)

    def roots() -> Callable[[], int]:
        return itertools.cycle(range(ranks)).__next__

    def with_root(
        use: Callable[[Any, int], Any], mpi: Callable[[int], Any]
    ) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
        ours, theirs = roots(), roots()
        return lambda call: use(call, ours()), lambda: mpi(theirs())

    collectives = {
        engine.allreduce: (
            lambda call: call(array, op=rdmacoll.Max, out=array),
            lambda: world.Allreduce(MPI.IN_PLACE, array, MPI.MAX),
        ),
        engine.broadcast: with_root(
            lambda call, root: call(array, root, out=array), lambda root: world.Bcast(array, root)
        ),
        engine.reduce: with_root(
            lambda call, root: call(array, root, rdmacoll.Max),
            lambda root: world.Reduce(array, result, MPI.MAX, root),
        ),
        engine.gather: with_root(
            lambda call, root: call(array, root), lambda root: world.Gather(array, rows, root)
        ),
        engine.scatter: with_root(
            lambda call, root: call(rows, root), lambda root: world.Scatter(rows, result, root)
        ),
        engine.allgather: (lambda call: call(array), lambda: world.Allgather(array, rows)),
        engine.alltoall: (lambda call: call(cut), lambda: world.Alltoall(cut, parts)),
        engine.reducescatter: (
            lambda call: call(cut, rdmacoll.Max),
            lambda: world.Reduce_scatter_block(cut, part, MPI.MAX),
        ),
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
        machine = shown_machine()
        print(f"{machine_line()}; {rdmacoll.size()} ranks, {options.bytes} bytes, {options.turns} turns")
        for name, found in times.items():
            base = statistics.median(found["mpi4py"])
            for way, values in found.items():
                median = statistics.median(values)
                print(
                    f"{name:13} {way:10} median {median:8.2f}  least {min(values):8.2f}"
                    f"  mpi4py / it {base / median:5.2f}"
                )
        if options.json:
            with open(options.json, "w") as file:
                json.dump({**machine, "ranks": rdmacoll.size(), "times_us": times}, file)
    rdmacoll.shutdown()


if __name__ == "__main__":
    main()
