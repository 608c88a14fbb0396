"""Tests prepared calls of every kind. Each run has other values, and its results have the same addresses."""

from __future__ import annotations

from typing import Any

import numpy as np

import rdmacoll
from rdmacoll import engine

TURNS = 30


def allreduces() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    for size in (1, 1000, 300_000):
        array, out = np.empty(size, np.float32), np.empty(size, np.float32)
        run = engine.prepare_allreduce(array, out, rdmacoll.Sum)
        for turn in range(TURNS):
            array[:] = me + turn
            assert run() is out
            assert (out == count * turn + count * (count - 1) / 2).all()
        in_place = engine.prepare_allreduce(array, array)
        for turn in range(TURNS):
            array[:] = me + turn
            assert (in_place() == np.float32(turn + (count - 1) / 2)).all()


def _check(
    run: engine.PreparedCall, array: Any, expected: Any, ranks: rdmacoll.ProcessSet, *, name: str
) -> None:
    """Compares the results of `ranks` with `expected` of the values that each rank has in a turn: an array,
    or None if this rank gets no result."""
    me, count = ranks.rank(), ranks.size()
    first = None
    for turn in range(TURNS):
        array[:] = me + turn
        result = run()
        wanted = expected([np.full(array.shape, rank + turn, array.dtype) for rank in range(count)])
        if wanted is None:
            assert result is None, name
            continue
        assert result.tolist() == wanted.tolist(), f"{name} in turn {turn}"
        first = result if first is None else first
        assert result is first, f"{name}: another array in turn {turn}"


def all_kinds() -> None:
    for rows in (1, 50):
        _check_kinds(rows, rdmacoll.global_process_set)


def kinds_in_a_process_set() -> None:
    """Tests that sets use their own ranks, and that a root is a rank of the world."""
    if rdmacoll.size() < 3:
        return
    others = rdmacoll.add_process_set(range(1, rdmacoll.size()))
    if others.included():
        _check_kinds(50, others)
    rdmacoll.remove_process_set(others)


def _check_kinds(rows: int, ranks: rdmacoll.ProcessSet) -> None:
    me, count = ranks.rank(), ranks.size()
    root, is_root = ranks.ranks[-1], me == count - 1
    flat = np.empty(rows * count, np.float32)
    mine = slice(me * rows, (me + 1) * rows)
    out = np.empty_like(flat)

    def check(name: str, expected: Any, *arguments: Any, **options: Any) -> None:
        run = getattr(engine, f"prepare_{name}")(flat, *arguments, process_set=ranks, **options)
        _check(run, flat, expected, ranks, name=name)

    check("allreduce", sum, op=rdmacoll.Sum)
    check("broadcast", lambda all_: all_[-1], root)
    check("broadcast", lambda all_: all_[-1], root, out=out)
    check("allgather", np.concatenate)
    check("reducescatter", lambda all_: sum(all_)[mine], rdmacoll.Sum)
    check("alltoall", lambda all_: np.concatenate([array[mine] for array in all_]))
    check("reduce", lambda all_: sum(all_) if is_root else None, root, rdmacoll.Sum)
    check("gather", lambda all_: np.concatenate(all_) if is_root else None, root)
    check("scatter", lambda all_: all_[-1][mine], root)
    barrier = engine.prepare_barrier(process_set=ranks)
    assert [barrier() for _ in range(TURNS)] == [None] * TURNS


def splits() -> None:
    """Tests rows: rank r sends r + k rows to rank k."""
    me, count = rdmacoll.rank(), rdmacoll.size()
    sources = [me + rank for rank in range(count)]
    array = np.repeat(np.arange(count, dtype=np.float64), sources)
    run = engine.prepare_alltoall(array, sources)
    for turn in range(TURNS):
        array[:] = me * 100 + turn
        received, numbers = run()
        assert numbers.tolist() == sources
        assert received.tolist() == [rank * 100.0 + turn for rank in range(count) for _ in range(rank + me)]


def rows_of_others_that_change() -> None:
    """Tests a result at a new address. The memory of the earlier result exists as long as its array."""
    me, count = rdmacoll.rank(), rdmacoll.size()
    if count == 1:
        return
    array = np.empty((2, 3))
    run = engine.prepare_allgather(array)
    last = count - 1
    stored = []
    for change in range(4):
        for turn in range(TURNS):
            value = float(change * 100 + turn)
            array[:] = value + me
            data_of_others = np.full((2 + change, 3), value + me)
            result = engine.allgather(data_of_others) if me == last else run()
            rows = [rank for rank in range(count) for _ in range(2 + change if rank == last else 2)]
            assert result[:, 0].tolist() == [value + rank for rank in rows]
        stored.append((result, result.copy()))
    for change, (result, copied) in enumerate(stored):
        assert result.shape == (2 * count + change, 3)
        assert me != last or result.tolist() == copied.tolist()
        result[:] = 0


PARTS = (allreduces, all_kinds, kinds_in_a_process_set, splits, rows_of_others_that_change)
