"""Compares the numpy interface with numpy on every rank. Prints the seed, and reports the number of
comparisons."""

from __future__ import annotations

import sys

import numpy as np
import numpy_parts
import numpy_prepared
from ranks import report

import rdmacoll
from rdmacoll import engine
from rdmacoll._world import world
from rdmacoll.cli.references import canonical_sum, data_of, dtype_of, fingerprint, wrong_values
from rdmacoll.operators import CODES, FLOATS, REDUCIBLE, ReduceOp, is_reducible

SEED = int(sys.argv[1])
SHAPES = [(), (0,), (1,), (5,), (3, 0, 2), (2, 3, 5), (1,) * 8, (1013,), (70_001,)]


def all_data(shape, dtype, salt=0):
    return [data_of(rank, shape, dtype, SEED + salt) for rank in range(rdmacoll.size())]


def equal_everywhere(arrays) -> bool:
    prints = engine.allgather(np.array([[fingerprint(array) for array in arrays]], np.int64))
    assert prints.shape == (rdmacoll.size(), len(arrays))
    return bool((prints == prints[0]).all())


def allreduces() -> int:
    me, cases = rdmacoll.rank(), 0
    is_canonical = world.current().values.text("RDMACOLL_ORDER") == "canonical"
    for name in numpy_parts.known(REDUCIBLE):
        dtype = dtype_of(name)
        data = {
            shape: all_data(shape, dtype, cases) for shape in SHAPES
        }  # most of the time goes to random numbers
        for op in ReduceOp:
            if not is_reducible(name, op):
                continue
            results = []
            for shape in SHAPES:
                arrays = data[shape]
                mine = arrays[me].copy()
                got = engine.allreduce(mine, op)
                assert got.shape == shape, (got.shape, shape)
                assert got is not mine
                assert wrong_values(got, arrays, op) == 0, (name, op, shape)
                assert mine.tobytes() == arrays[me].tobytes(), "the input was written to"
                results.append(got)
                if is_canonical and op is ReduceOp.SUM and name in FLOATS:
                    assert got.tobytes() == canonical_sum(arrays).tobytes(), (name, shape)
                cases += 1
            assert equal_everywhere(results), (name, op)
    return cases


def in_place_out_and_scales() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    arrays = all_data((4, 1000), np.dtype(np.float64))
    expected = sum(arrays)
    mine = arrays[me].copy()
    assert engine.allreduce(mine, rdmacoll.Sum, out=mine) is mine
    np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)
    out = np.full((4, 1000), 7.0)
    assert engine.allreduce(arrays[me], out=out) is out
    np.testing.assert_allclose(out, expected / count, rtol=1e-12, atol=1e-12)
    scaled = engine.allreduce(arrays[me], rdmacoll.Sum, prescale_factor=0.5, postscale_factor=3.0)
    np.testing.assert_allclose(scaled, expected * 1.5, rtol=1e-12, atol=1e-12)
    # Not contiguous, in and out; another byte order; a list; a Python number.
    strided = np.zeros((1000, 8))[:, ::2]
    result = engine.allreduce(arrays[me].T, rdmacoll.Sum, out=strided)
    assert result is strided
    np.testing.assert_allclose(strided, expected.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        engine.allreduce(arrays[me].astype(">f8"), rdmacoll.Sum), expected, rtol=1e-12, atol=1e-12
    )
    read_only = arrays[me].copy()
    read_only.flags.writeable = False
    np.testing.assert_allclose(engine.allreduce(read_only, rdmacoll.Sum), expected, rtol=1e-12, atol=1e-12)
    assert engine.allreduce([1.0 + me, 2.0], rdmacoll.Sum).tolist() == [
        count * (count + 1) / 2,
        2.0 * count,
    ]
    assert float(engine.allreduce(me, rdmacoll.Max)) == count - 1
    # In place on a part of a larger array: the rest of the array does not change.
    frame = np.full(3000, -1.0)
    frame[1000:2000] = me
    engine.allreduce(frame[1000:2000], rdmacoll.Sum, out=frame[1000:2000])
    assert (frame[:1000] == -1).all()
    assert (frame[2000:] == -1).all()
    assert (frame[1000:2000] == count * (count - 1) / 2).all()
    # Overlapping, yet not in place.
    shifted = np.arange(101.0) * (me + 1)
    total = np.arange(100.0) * (count * (count + 1) / 2)
    engine.allreduce(shifted[:100], rdmacoll.Sum, out=shifted[1:])
    assert (shifted[1:] == total).all()


def special_values() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    mine = np.array([1.0, np.nan if me == count - 1 else 2.0, np.inf, -np.inf, -0.0], np.float32)
    for op in (rdmacoll.Min, rdmacoll.Max, rdmacoll.Sum):
        got = engine.allreduce(mine, op)
        assert np.isnan(got[1]), op
        assert got[2] == np.inf
        assert got[3] == -np.inf
    top = engine.allreduce(np.array([127], np.int8), rdmacoll.Sum)
    assert top[0] == np.array([127 * count]).astype(np.int8)[0], "integer sums wrap"


def broadcasts_and_gathers() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    for number, name in enumerate(numpy_parts.known(CODES)):
        dtype = dtype_of(name)
        for shape in SHAPES:
            root = number % count
            arrays = all_data(shape, dtype, number)
            got = engine.broadcast(arrays[me], root)
            assert got.dtype == dtype
            assert got.shape == shape
            assert got.tobytes() == arrays[root].tobytes(), (name, shape)
            gathered = engine.allgather(arrays[me])
            right = np.concatenate([np.atleast_1d(array) for array in arrays])
            assert gathered.shape == right.shape, (gathered.shape, right.shape)
            assert gathered.dtype == dtype
            assert gathered.tobytes() == right.tobytes(), (name, shape)
    mine = np.full(10, float(me))
    assert engine.broadcast(mine, count - 1, out=mine) is mine
    assert (mine == count - 1).all()
    ragged = [data_of(rank, (rank * 37 % 5, 3), np.dtype(np.int64), SEED) for rank in range(count)]
    gathered = engine.allgather(ragged[me])
    assert gathered.tobytes() == np.concatenate(ragged).tobytes()
    gathered[...] = 1  # the result is the caller's own memory
    stored = [engine.allgather(np.full(1000, float(me + turn))) for turn in range(20)]
    for turn, array in enumerate(stored):
        assert array.reshape(count, 1000)[:, 0].tolist() == [rank + turn for rank in range(count)]


def groups() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    kinds = ["float32", "float64", "float32", "int32", "float16", "float32"]
    shapes = [(3, 4), (), (0,), (257,), (9,), (50_000,)]
    lists = [
        [data_of(rank, shape, np.dtype(kind), SEED + n) for n, (kind, shape) in enumerate(zip(kinds, shapes))]
        for rank in range(count)
    ]
    for name in (None, "a named group"):
        got = engine.grouped_allreduce(iter(lists[me]), rdmacoll.Sum, name=name)
        for position, array in enumerate(got):
            arrays = [lists[rank][position] for rank in range(count)]
            assert array.shape == shapes[position]
            assert wrong_values(array, arrays, ReduceOp.SUM) == 0
    assert engine.grouped_allreduce([], rdmacoll.Sum) == []
    floats = [array.copy() for array in lists[me] if array.dtype.kind == "f"]
    assert all(a is b for a, b in zip(engine.grouped_allreduce(floats, out=floats), floats))


def grouped_broadcasts() -> None:
    """Tests new arrays, in-place calls and both at once, also with booleans. Other memory does not change."""
    me, count = rdmacoll.rank(), rdmacoll.size()
    root = count - 1
    shapes = [((3, 4), "float32"), ((), "bool"), ((0,), "int64"), ((70_001,), "float32"), ((5,), "uint16")]
    lists = [
        [data_of(rank, shape, np.dtype(kind), SEED + n) for n, (shape, kind) in enumerate(shapes)]
        for rank in range(count)
    ]
    for name in (None, "a named group"):
        got = engine.grouped_broadcast(lists[me], root, name)
        assert [a.tobytes() for a in got] == [a.tobytes() for a in lists[root]]
        assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in lists[root]]
    mine = [array.copy() for array in lists[me]]
    handle = engine.grouped_broadcast_async(mine, root, out=mine)
    assert all(a is b for a, b in zip(handle.wait(), mine))
    assert [a.tobytes() for a in mine] == [a.tobytes() for a in lists[root]]
    frame = np.full((3, 10), me)
    engine.broadcast(frame[1], root, out=frame[1])
    assert frame.tolist() == [[me] * 10, [root] * 10, [me] * 10]
    strided = np.full((10, 2), me)
    engine.grouped_broadcast([strided[:, 0]], root, out=[strided[:, 0]])
    assert strided.tolist() == [[root, me]] * 10
    assert engine.grouped_broadcast([], root) == []


def many_at_once() -> None:
    """Tests hundreds of calls in flight. Each rank has its own order of named calls."""
    me, count = rdmacoll.rank(), rdmacoll.size()
    numbers = list(range(300))
    np.random.default_rng([SEED, me]).shuffle(numbers)
    handles = {
        n: engine.allreduce_async(np.full(n + 1, float(me + n)), rdmacoll.Sum, name=f"tensor {n}")
        for n in numbers
    }
    for n, handle in sorted(handles.items()):
        value = handle.wait()
        assert value.shape == (n + 1,)
        assert (value == count * n + count * (count - 1) / 2).all()
        assert handle.done()
        assert handle.wait() is value
    # Unnamed calls match by their order. The rank waits for the last one first.
    unnamed = [engine.allreduce_async(np.float64(me * n), rdmacoll.Sum) for n in range(100)]
    for n in reversed(range(100)):
        assert float(unnamed[n].wait()) == n * count * (count - 1) / 2
    # The program neither waits for these calls nor keeps their arrays.
    for n in range(100):
        engine.allreduce_async(np.full(10_000, float(n)), rdmacoll.Sum)
    engine.barrier()


def engine_memory() -> None:
    me, count = rdmacoll.rank(), rdmacoll.size()
    arrays = [engine.empty((rank + 1, 1000), np.float32) for rank in range(8)]
    for array in arrays:
        array[:] = me
    for array in arrays:
        engine.allreduce(array, rdmacoll.Sum, out=array)
        assert (array == count * (count - 1) / 2).all()
    view = arrays[3][1:, ::2]
    del arrays, array  # the view keeps its memory
    assert (view == count * (count - 1) / 2).all()
    assert engine.empty(0).shape == (0,)
    assert engine.empty((), np.int64).shape == ()


def main() -> None:
    print("seed", SEED)
    rdmacoll.init()
    assert 0 <= rdmacoll.local_rank() < rdmacoll.local_size() <= rdmacoll.size()
    assert 0 <= rdmacoll.cross_rank() < rdmacoll.cross_size() <= rdmacoll.size()
    cases = allreduces()
    for part in (
        in_place_out_and_scales,
        special_values,
        broadcasts_and_gathers,
        groups,
        grouped_broadcasts,
        many_at_once,
        *numpy_prepared.PARTS,
        engine_memory,
    ):
        part()
    cases += numpy_parts.check_all(SEED)
    metrics = rdmacoll.metrics()
    report(
        {
            "cases": cases,
            "dtypes": numpy_parts.known(CODES),
            "rank": rdmacoll.rank(),
            "size": rdmacoll.size(),
            "local_size": rdmacoll.local_size(),
            "cross_size": rdmacoll.cross_size(),
            "metrics": metrics,
            "transport": rdmacoll._world.world.describe()["transport"],
        }
    )
    rdmacoll.shutdown()


if __name__ == "__main__":
    main()
