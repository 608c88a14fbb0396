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


def _check(run: engine.PreparedCall, array: Any, expected: Any, *, name: str) -> None:
    """Returns `expected` of the values that each rank has in a turn: an array, or None if the rank gets no
    result."""
    me, count = rdmacoll.rank(), rdmacoll.size()
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
        _check_kinds(rows)
    barrier = engine.prepare_barrier()
    assert [barrier() for _ in range(TURNS)] == [None] * TURNS


def _check_kinds(rows: int) -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    root = count - 1
    flat = np.empty(rows * count, np.float32)
    mine = slice(me * rows, (me + 1) * rows)
    out = np.empty_like(flat)
    _check(engine.prepare_broadcast(flat, root), flat, lambda all_: all_[root], name="broadcast")
    _check(
        engine.prepare_broadcast(flat, root, out=out),
        flat,
        lambda all_: all_[root],
        name="out of broadcast",
    )
    _check(engine.prepare_allgather(flat), flat, np.concatenate, name="allgather")
    _check(
        engine.prepare_reducescatter(flat, rdmacoll.Sum),
        flat,
        lambda all_: sum(all_)[mine],
        name="reducescatter",
    )
    _check(
        engine.prepare_alltoall(flat),
        flat,
        lambda all_: np.concatenate([array[mine] for array in all_]),
        name="alltoall",
    )
    _check(
        engine.prepare_reduce(flat, root, rdmacoll.Sum),
        flat,
        lambda all_: sum(all_) if me == root else None,
        name="reduce",
    )
    _check(
        engine.prepare_gather(flat, root),
        flat,
        lambda all_: np.concatenate(all_) if me == root else None,
        name="gather",
    )
    _check(engine.prepare_scatter(flat, root), flat, lambda all_: all_[root][mine], name="scatter")


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


PARTS = (allreduces, all_kinds, splits, rows_of_others_that_change)
