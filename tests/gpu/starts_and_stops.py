"""Starts and stops many times in one process, with arrays in GPU memory, which must leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import time

import gpu_arrays
import numpy as np
from ranks import report

import rdmacoll
from rdmacoll import engine

WARM_UP = 4


def threads() -> int:
    """The least number of threads within 20 ms: /proc shows one that was joined for a moment more."""
    found = []
    for _ in range(5):
        found.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.005)
    return min(found)


def once(turn: int, source: object) -> dict[str, int]:
    """Returns the counts: of the driver's memory while no rank works, and the others after the end."""
    rdmacoll.init()
    me, size = rdmacoll.rank(), rdmacoll.size()
    engine.barrier()
    free = gpu_arrays.calls().free_bytes()
    engine.barrier()
    total = engine.allreduce(source, rdmacoll.Sum)
    rows = engine.allgather(source)
    lent = engine.empty((3, 1000), device="cuda:0")
    prepared = engine.prepare_broadcast(source, size - 1)
    assert prepared().get()[7] == size - 1
    assert (total.get() == size * (size - 1) / 2).all()
    rdmacoll.shutdown()
    assert rows.get()[:: len(source.get())].tolist() == list(range(size))  # outlives the world
    assert lent.shape == (3, 1000)
    del total, rows, lent, prepared
    gc.collect()
    report({"turn": turn}, rank=me)
    return {
        "free memory of the GPU": free,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threads(),
    }


def main() -> None:
    rdmacoll.init()
    me = rdmacoll.rank()
    rdmacoll.shutdown()
    source = gpu_arrays.cupy().array(np.full(100_000, me, np.float32))
    found = [once(turn, source) for turn in range(WARM_UP + int(sys.argv[1]))]
    report(found[WARM_UP:], rank=me)


if __name__ == "__main__":
    main()
