"""Starts and stops many times in one process, which must leave nothing behind. Runs on every rank."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
from ranks import report

import rdmacoll

WARM_UP = 10


def counts() -> dict[str, int]:
    gc.collect()
    process = Path("/proc/self")
    return {
        "descriptors": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
        "maps": len((process / "maps").read_text().splitlines()),
    }


def once(turn: int) -> None:
    rdmacoll.init()
    me, size = rdmacoll.rank(), rdmacoll.size()
    stored = rdmacoll.engine.empty(1000)
    stored[:] = me
    total = rdmacoll.engine.allreduce(stored, rdmacoll.Sum)
    assert (total == size * (size - 1) / 2).all()
    gathered = rdmacoll.engine.allgather(np.float64(me + turn))
    run = rdmacoll.engine.prepare_allreduce(np.ones(10), op=rdmacoll.Sum)
    assert run()[0] == size
    rdmacoll.shutdown()
    rdmacoll.shutdown()
    assert gathered.tolist() == [rank + turn for rank in range(size)]  # outlives the world


def main() -> None:
    turns = int(sys.argv[1])
    rdmacoll.init()
    me = rdmacoll.rank()
    rdmacoll.shutdown()
    for turn in range(WARM_UP):
        once(turn)
    before = counts()
    for turn in range(turns):
        once(turn)
    report([before, counts()], rank=me)


if __name__ == "__main__":
    main()
