"""Tests uneven data: ranks join one after the other, in the log and in plans. Runs on every rank."""

from __future__ import annotations

import sys

import numpy as np
from ranks import report
from refusal import refusal

import rdmacoll
from rdmacoll import engine


def uneven(turn: int, name: str | None, **options) -> None:
    """Returns the number of sums that rank r of the set has."""
    one = options.get("process_set", rdmacoll.global_process_set)
    place, size = one.rank(), one.size()
    steps = [5 + 40 * ((rank + turn) % size) for rank in range(size)]
    for step in range(steps[place]):
        givers = [rank for rank in range(size) if step < steps[rank]]
        array = np.full(300, float(place + 1))
        total = sum(rank + 1 for rank in givers)
        got = engine.allreduce(array, rdmacoll.Sum, name=name, **options)
        assert (got == total).all(), (turn, step, got[0], total)
        group = engine.grouped_allreduce([array, array * 2], **options)
        assert np.allclose(group[1], 2 * total / size), "the average is of all ranks"
    assert rdmacoll.join(**options) == one.ranks[int(np.argmax(steps))]


def refusals() -> None:
    me, size = rdmacoll.rank(), rdmacoll.size()
    if me == size - 1:
        assert rdmacoll.join() in range(size)
        return
    for call in (
        lambda: engine.broadcast(np.ones(3), 0, name="b"),
        lambda: engine.allreduce(np.ones(3), rdmacoll.Max, name="m"),
        lambda: engine.allgather(np.ones(3), name="g"),
    ):
        answers = refusal(call)
        assert f"rank {size - 1}" in answers, answers
        assert "joined" in answers, answers
    engine.barrier()
    rdmacoll.join()


def main() -> None:
    rdmacoll.init()
    for turn in range(4):
        uneven(turn, None)
        uneven(turn, "named")
        everybody = engine.allgather(np.array([rdmacoll.rank()]))
        assert everybody.tolist() == list(range(rdmacoll.size()))
    refusals()
    assert (engine.allreduce(np.ones(3), rdmacoll.Sum) == rdmacoll.size()).all()
    if rdmacoll.size() > 2:
        one = rdmacoll.add_process_set([0, rdmacoll.size() - 1])
        if one.included():
            uneven(1, None, process_set=one)
    engine.barrier()
    metrics = rdmacoll.metrics()
    rank = rdmacoll.rank()
    rdmacoll.shutdown()
    report({"plans": metrics["plans"], "plans_left": metrics["plans_left"]}, rank=rank)


assert len(sys.argv) == 1
main()
