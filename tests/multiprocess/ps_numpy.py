"""Tests parameter servers with numpy. Runs on every rank, also on servers, and in allreduce mode, which must
give the same bits. Reports digests of the sums."""

from __future__ import annotations

import hashlib
import os
import sys

import numpy as np
from ranks import report

import rdmacoll
from rdmacoll import engine
from rdmacoll.cli.references import data_of, dtype_of, wrong_values
from rdmacoll.operators import REDUCIBLE, ReduceOp, is_reducible

SIZES = (1, 3, 130, 5_000, 70_003)


def sums() -> dict[str, str]:
    me, count = rdmacoll.rank(), rdmacoll.size()
    digests = {}
    for number, name in enumerate(REDUCIBLE):
        dtype = dtype_of(name)
        for size in SIZES:
            arrays = [data_of(rank, (size,), dtype, 11 + number) for rank in range(count)]
            for op in ReduceOp:
                if not is_reducible(name, op):
                    continue
                got = rdmacoll.push_pull(arrays[me], op)
                assert wrong_values(got, arrays, op) == 0, (name, size, op)
                digests[f"{name} {size} {op.name}"] = hashlib.sha256(got.tobytes()).hexdigest()
    return digests


def groups_and_scales() -> str:
    me = rdmacoll.rank()
    arrays = [data_of(me, (size,), np.dtype(np.float32), 5) for size in (10, 40_000, 0, 7)]
    found = engine.grouped_allreduce(arrays, rdmacoll.Average, prescale_factor=0.5, postscale_factor=3.0)
    return hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest()


def others() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    assert engine.allgather(np.array([me])).tolist() == list(range(count))
    assert (engine.broadcast(np.full(9, me), count - 1) == count - 1).all()
    assert engine.alltoall(np.full(count, me)).tolist() == list(range(count))
    engine.barrier()
    if count > 2:
        few = rdmacoll.add_process_set([0, count - 1])
        if few.included():
            assert engine.allreduce(np.ones(5), rdmacoll.Sum, process_set=few).tolist() == [2.0] * 5
        engine.barrier()
        rdmacoll.remove_process_set(few)


def plans() -> None:
    """Repeats one order of sums, with one unexpected sum, and then with ranks that have joined."""
    me, count = rdmacoll.rank(), rdmacoll.size()
    for step in range(60):
        got = engine.allreduce(np.full(20_000, me + step, np.float32), rdmacoll.Sum, name="a")
        assert (got == count * step + count * (count - 1) / 2).all()
        engine.allreduce(np.ones(3), name="b")
        if step in (20, 45):
            engine.allreduce(np.ones(4), name="c")
    for _ in range(5 + 10 * me):
        engine.allreduce(np.ones(30), name="uneven")
    assert rdmacoll.join() == count - 1
    assert (engine.allreduce(np.ones(3), rdmacoll.Sum) == count).all()


try:
    rdmacoll.init()
except SystemExit:
    report(f"served, tensorflow: {'tensorflow' in sys.modules}", rank=int(os.environ["RDMACOLL_RANK"]))
    raise
found = {**sums(), "groups": groups_and_scales()}
others()
plans()
places = [rdmacoll.local_rank(), rdmacoll.local_size(), rdmacoll.cross_rank(), rdmacoll.cross_size()]
report({"size": rdmacoll.size(), "places": places, "sums": found, "plans": rdmacoll.metrics()["plans"]})
