"""Random shapes, dtypes and layouts, in a world of one and in the parts that need no world."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as extra

import rdmacoll
from rdmacoll import engine
from rdmacoll._base import channel
from rdmacoll._calls.submission import address_of
from rdmacoll._start.launch import first_host, split_address
from rdmacoll.cli.references import canonical_sum, data_of, dtype_of, rows_of, wrong_values
from rdmacoll.errors import error_from, error_from_json
from rdmacoll.operators import CODES, REDUCIBLE, ReduceOp, is_reducible

SHAPES = extra.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=4)


@pytest.fixture(autouse=True, scope="module")
def _world():
    rdmacoll.shutdown()
    rdmacoll.init(rank=0, size=1)
    yield
    rdmacoll.shutdown()


def layouts(array: np.ndarray) -> list[np.ndarray]:
    """The same values in other layouts."""
    found = [array, np.array(array, order="F"), np.array(array[::-1])[::-1] if array.ndim else array]
    if array.ndim:
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        wide[..., ::2] = array
        found.append(wide[..., ::2])
    if array.dtype.kind not in "V":
        found.append(array.astype(array.dtype.newbyteorder()))
    return found


@settings(deadline=None, max_examples=150)
@given(SHAPES, st.sampled_from(REDUCIBLE), st.sampled_from(list(ReduceOp)), st.integers(0, 2**31))
def test_a_world_of_one_gives_its_own_values_back(shape, name, op, seed):
    if not is_reducible(name, op):
        return
    values = data_of(0, shape, dtype_of(name), seed)
    for array in layouts(values):
        got = engine.allreduce(array, op)
        assert got.shape == shape
        assert got.dtype == values.dtype
        assert wrong_values(got, [values], op) == 0
        out = np.zeros(shape, values.dtype, order="F")
        assert engine.allreduce(array, op, out=out) is out
        assert wrong_values(out, [values], op) == 0


@settings(deadline=None, max_examples=150)
@given(SHAPES, st.sampled_from(sorted(CODES)), st.integers(0, 2**31))
def test_everything_moves_as_it_is(shape, name, seed):
    values = data_of(0, shape, dtype_of(name), seed)
    for array in layouts(values):
        assert engine.broadcast(array, 0).tobytes() == values.tobytes()
        gathered = engine.allgather(array)
        assert gathered.shape == (shape or (1,))
        assert gathered.tobytes() == values.tobytes()


@settings(deadline=None, max_examples=150)
@given(SHAPES.filter(bool), st.sampled_from(sorted(CODES)), st.integers(0, 2**31))
def test_what_is_cut_comes_back_as_it_is(shape, name, seed):
    values = data_of(0, shape, dtype_of(name), seed)
    for array in layouts(values):
        exchanged, received = engine.alltoall(array, [shape[0]])
        assert received.tolist() == [shape[0]]
        results = [exchanged, engine.alltoall(array), engine.gather(array, 0), engine.scatter(array, 0)]
        results += engine.grouped_allgather([array, array])
        op = rdmacoll.Max if name == "bool" else rdmacoll.Sum
        results += engine.grouped_reducescatter([array, array], op)
        if is_reducible(name, rdmacoll.Max):
            results += [engine.reduce(array, 0, rdmacoll.Max), engine.reducescatter(array, rdmacoll.Min)]
        for got in results:
            assert got.shape == shape
            assert got.dtype == values.dtype
            assert got.tobytes() == values.tobytes()


@given(st.integers(0, 1000), st.integers(1, 70))
def test_rows_are_cut_without_a_gap_and_nearly_even(rows, count):
    cut = [rows_of(rows, rank, count) for rank in range(count)]
    assert [part.start for part in cut] == [0, *[part.stop for part in cut[:-1]]]
    assert cut[-1].stop == rows
    sizes = [part.stop - part.start for part in cut]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(SHAPES, st.sampled_from(sorted(CODES)))
def test_addresses_are_numpys(shape, name):
    array = np.zeros(shape, dtype_of(name))
    assert array.size == 0 or address_of(array) == array.__array_interface__["data"][0]


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_the_canonical_tree_splits_at_powers_of_two(count, seed):
    arrays = [data_of(rank, (3,), np.dtype(np.float64), seed) for rank in range(count)]
    assert wrong_values(canonical_sum(arrays), arrays, ReduceOp.SUM) == 0
    if count == 3:
        assert (canonical_sum(arrays) == (arrays[0] + arrays[1]) + arrays[2]).all()
    if count == 5:
        left = (arrays[0] + arrays[1]) + (arrays[2] + arrays[3])
        assert (canonical_sum(arrays) == left + arrays[4]).all()


def test_the_reference_notices_a_wrong_value():
    arrays = [data_of(rank, (100,), np.dtype(np.float32), 1) for rank in range(3)]
    right = sum(array.astype(np.float64) for array in arrays).astype(np.float32)
    assert wrong_values(right, arrays, ReduceOp.SUM) == 0
    for position in (0, 57, 99):
        wrong = right.copy()
        wrong[position] *= np.float32(1.00001)
        assert wrong_values(wrong, arrays, ReduceOp.SUM) == 1
    assert wrong_values(right[:-1], arrays, ReduceOp.SUM) > 0
    assert wrong_values(np.full(100, np.nan, np.float32), arrays, ReduceOp.SUM) == 100


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_no_bytes_break_the_frame_reader(data, cuts):
    reader = channel.FrameReader(b"key", b"up", 200)
    try:
        for cut in [*cuts, len(data)]:
            reader.add(data[:cut])
            data = data[cut:]
            assert reader.take() is None  # random bytes have no valid signature
    except channel.ProtocolError:
        pass


@given(st.text(max_size=60))
def test_no_text_breaks_the_parsers(text):
    error_from_json(text)
    error_from(RuntimeError(text))
    first_host(text)
    try:
        host, port = split_address(text)
        assert host
        assert 0 < port < 65536
    except rdmacoll.ConfigError:
        pass
