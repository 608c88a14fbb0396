"""Compares collectives with different parts for each rank with numpy. Runs on every rank."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import rdmacoll
from rdmacoll import engine
from rdmacoll._world import world
from rdmacoll.cli.references import canonical_sum, data_of, dtype_of, reduced, rows_of, wrong_values
from rdmacoll.operators import CODES, FLOATS, REDUCIBLE, ReduceOp, is_reducible

ROWS = (0, 1, 7, 1013, 60_000)


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    return got.shape == expected.shape and got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


def known(names: Iterable[str]) -> list[str]:
    """The dtypes that numpy has here. Without the package ml_dtypes it has no bfloat16."""
    return [name for name in names if dtype_of(name) is not None]


def all_arrays(shape, dtype, seed) -> list[np.ndarray]:
    return [data_of(rank, shape, dtype, seed) for rank in range(rdmacoll.size())]


def reductions(seed: int) -> int:
    me, count, cases = rdmacoll.rank(), rdmacoll.size(), 0
    is_canonical = world.current().values.text("RDMACOLL_ORDER") == "canonical"
    for number, name in enumerate(known(REDUCIBLE)):
        dtype = dtype_of(name)
        for rows in ROWS:
            shape = (rows,) if number % 2 else (rows, 2)
            arrays = all_arrays(shape, dtype, seed + rows)
            mine = rows_of(rows, me, count)
            for op in ReduceOp:
                if not is_reducible(name, op):
                    continue
                sources = arrays[me].copy()
                part = engine.reducescatter(sources, op)
                assert wrong_values(part, [array[mine] for array in arrays], op) == 0, (name, op, rows)
                assert sources.tobytes() == arrays[me].tobytes(), "the input was written to"
                root = (number + cases) % count
                whole = engine.reduce(sources, root, op)
                assert (whole is not None) == (me == root)
                if whole is not None:
                    assert wrong_values(whole, arrays, op) == 0, (name, op, rows)
                assert sources.tobytes() == arrays[me].tobytes(), "the input was written to"
                if is_canonical:  # the bits of allreduce
                    everywhere = engine.allreduce(sources, op)
                    assert same(part, everywhere[mine]), (name, op, rows)
                    assert whole is None or same(whole, everywhere), (name, op, rows)
                if is_canonical and op is ReduceOp.SUM and name in FLOATS:
                    assert same(part, canonical_sum(arrays)[mine]), (name, rows)
                cases += 1
    return cases


def scales_and_places(seed: int) -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    arrays = all_arrays((11, 300), np.dtype(np.float64), seed)
    for op in (rdmacoll.Sum, rdmacoll.Average):
        right = reduced(arrays, op) * 1.5
        part = engine.reducescatter(arrays[me], op, prescale_factor=0.5, postscale_factor=3.0)
        np.testing.assert_allclose(part, right[rows_of(11, me, count)], rtol=1e-12, atol=1e-12)
        for root in range(count):
            got = engine.reduce(arrays[me], root, op, prescale_factor=0.5, postscale_factor=3.0)
            if me == root:
                np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-12)
    right = reduced(arrays, ReduceOp.SUM)
    large = all_arrays((150_001, 2), np.dtype(np.float64), seed)  # between nodes by another algorithm
    for op in (rdmacoll.Sum, rdmacoll.Max):
        part = engine.reducescatter(large[me], op, prescale_factor=2.0)
        sources = [2.0 * array[rows_of(150_001, me, count)] for array in large]
        assert wrong_values(part, sources, op) == 0
    place, root = arrays[me].copy(), count - 1
    got = engine.reduce(place, root, rdmacoll.Sum, out=place)
    if me == root:
        assert got is place
        np.testing.assert_allclose(place, right, rtol=1e-12, atol=1e-12)
    else:
        assert got is None
        assert place.tobytes() == arrays[me].tobytes()
    strided = np.zeros((300, 22))[:, ::2]
    got = engine.reduce_async(arrays[me].T, 0, rdmacoll.Sum, out=strided).wait()
    if me == 0:
        assert got is strided
        np.testing.assert_allclose(strided, right.T, rtol=1e-12, atol=1e-12)


def moves(seed: int) -> int:
    me, count, cases = rdmacoll.rank(), rdmacoll.size(), 0
    for number, name in enumerate(known(CODES)):
        dtype = dtype_of(name)
        root = number % count
        for row in ((), (3,), (2, 0), (5, 67)):
            ragged = [data_of(rank, ((rank * 37 + number) % 5, *row), dtype, seed) for rank in range(count)]
            gathered = engine.gather(ragged[me], root)
            assert (gathered is not None) == (me == root)
            assert gathered is None or same(gathered, np.concatenate(ragged)), (name, row)

            for rows in (0, 1, count + 2, 1000):
                whole = data_of(root, (rows, *row), dtype, seed + rows)
                sources = whole if me == root else np.empty((0, *row), dtype)
                assert same(engine.scatter(sources, root), whole[rows_of(rows, me, count)]), (name, rows)
                cases += 1

            # splits[i][j]: the number of rows that rank i sends to rank j
            splits = np.random.default_rng([seed, number, len(row)]).integers(0, 40, (count, count))
            splits[number % count] = 0
            ends = np.cumsum(splits, axis=1)
            arrays = [data_of(rank, (ends[rank, -1], *row), dtype, seed) for rank in range(count)]
            pieces = [
                arrays[rank][ends[rank, me] - splits[rank, me] : ends[rank, me]] for rank in range(count)
            ]
            got, received = engine.alltoall(arrays[me], splits[me])
            assert same(got, np.concatenate(pieces)), (name, row)
            assert received.dtype == np.int64
            assert received.tolist() == splits[:, me].tolist()

            mine = splits[root].tolist()
            whole = arrays[root]
            sources = whole if me == root else np.empty((9, *row), dtype)
            part = engine.scatter(sources, root, mine)
            assert same(part, whole[ends[root, me] - mine[me] : ends[root, me]]), (name, row)

            even = [data_of(rank, (count * (rank % 3), *row), dtype, seed) for rank in range(count)]
            right = [np.split(array, count)[me] for array in even]
            assert same(engine.alltoall(even[me]), np.concatenate(right)), (name, row)
            cases += 4
    large = [data_of(rank, (count * 50_000, 3), np.dtype(np.float32), seed) for rank in range(count)]
    right = np.concatenate([np.split(array, count)[me] for array in large])
    assert same(engine.alltoall(large[me]), right)
    scalars = engine.gather(np.float32(me), 0)
    assert scalars is None or scalars.tolist() == list(range(count))
    return cases


def groups(seed: int) -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    kinds = ["float32", "float64", "float32", "int32", "float16", "float32"]
    shapes = [(3, 4), (1,), (0, 2), (257,), (9, 1, 2), (50_000,)]
    # Collectives move these and never reduce them. Two of one dtype are one operation.
    moved = [("bool", (7, 3)), ("uint16", (2,)), ("bool", (3, 1000)), ("complex64", (4, 2)), ("bool", (1, 0))]
    numbered = list(enumerate([*zip(kinds, shapes), *moved]))
    lists = [
        [data_of(rank, shape, np.dtype(kind), seed + n) for n, (kind, shape) in numbered]
        for rank in range(count)
    ]
    ragged = [[array[: len(array) - rank % 2] for array in arrays] for rank, arrays in enumerate(lists)]
    for name in (None, "a named group"):
        parts = engine.grouped_reducescatter(lists[me][: len(kinds)], rdmacoll.Sum, name)
        wholes = engine.grouped_allgather(ragged[me], name)
        for position, part in enumerate(parts):
            arrays = [lists[rank][position][rows_of(shapes[position][0], me, count)] for rank in range(count)]
            assert wrong_values(part, arrays, ReduceOp.SUM) == 0, position
        assert len(wholes) == len(numbered)
        for position, whole in enumerate(wholes):
            assert same(whole, np.concatenate([ragged[rank][position] for rank in range(count)])), position
        del wholes[::2]  # the memory of the others lives on
        engine.barrier()
        assert same(wholes[0], np.concatenate([ragged[rank][1] for rank in range(count)]))
    assert engine.grouped_reducescatter([]) == []
    assert engine.grouped_allgather([]) == []


def many_at_once(seed: int) -> None:
    """Tests all kinds in flight together. Each rank has its own order."""
    me, count = rdmacoll.rank(), rdmacoll.size()
    order = list(range(120))
    np.random.default_rng([seed, me]).shuffle(order)

    def start(n: int) -> engine.Handle:
        array, name, root = np.full((count * n, 2), float(me + n)), f"part {n}", n % count
        return [
            lambda: engine.reducescatter_async(array, rdmacoll.Sum, name),
            lambda: engine.alltoall_async(array, name=name),
            lambda: engine.reduce_async(array, root, rdmacoll.Sum, name),
            lambda: engine.gather_async(array, root, name),
            lambda: engine.scatter_async(array, root, name=name),
        ][n % 5]()

    handles = {n: start(n) for n in order}
    for n, handle in handles.items():
        got, root = handle.wait(), n % count
        total = count * n + count * (count - 1) / 2
        each = np.repeat(np.arange(count) + float(n), n)
        right = [
            np.full(n, total),
            each,
            np.full(count * n, total) if me == root else None,
            np.repeat(np.arange(count) + float(n), count * n) if me == root else None,
            np.full(n, float(root + n)),
        ][n % 5]
        assert (got is None) == (right is None), n
        assert got is None or same(got, np.repeat(right[:, None], 2, axis=1)), n
        assert handle.wait() is got
    for n in range(40):  # the program neither waits for these nor keeps their arrays
        engine.alltoall_async(np.full((count * 5000,), float(n)))
    for _ in range(4):  # as many as batches run at once, so later calls wait for these
        engine.barrier()


def check_all(seed: int) -> int:
    cases = reductions(seed) + moves(seed)
    scales_and_places(seed)
    groups(seed)
    many_at_once(seed)
    return cases
