"""Tests reductions of 16-bit floats with factors. They are computed in float32 and rounded once.

It also tests sums of the dtypes that other packages lack."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from ranks import report
from refusal import refusal

import rdmacoll
from rdmacoll import engine
from rdmacoll.operators import Average, Max, Min, Product, ReduceOp, Sum

SEED = 20261126
REDUCE = {Sum: np.sum, Average: np.mean, Min: np.min, Max: np.max, Product: np.prod}


def largest(dtype: Any) -> float:
    """Returns the largest finite value."""
    return 65504.0 if dtype is np.float16 else 3.3895313892515355e38


def ulps(got: Any, want: Any, dtype: Any) -> float:
    """Returns the largest distance, in steps of the dtype."""
    step = np.maximum(np.abs(want), 2.0**-14) * (2.0**-10 if dtype is np.float16 else 2.0**-7)
    return float(np.max(np.abs(got.astype(np.float64) - want) / step, initial=0.0))


def check(dtype: Any, op: ReduceOp, before: float, after: float, size: int) -> None:
    rank, ranks = rdmacoll.rank(), rdmacoll.size()
    sources = [
        np.random.default_rng([SEED, one, size]).uniform(0.5, 1.5, size).astype(dtype) for one in range(ranks)
    ]
    wide = np.stack(sources).astype(np.float64)
    want = REDUCE[op](wide * np.float64(np.float32(before)), axis=0) * after
    factors = {"prescale_factor": before, "postscale_factor": after}
    for got in (
        engine.allreduce(sources[rank], op, **factors),
        engine.grouped_allreduce([sources[rank], sources[rank][:3]], op, **factors)[0],
        engine.allreduce_async(sources[rank].copy(), op, **factors).wait(),
    ):
        # One rounding is at most half a step, and two are more. The order of the float32 sum has no effect.
        assert ulps(got, want, dtype) <= 0.51, (dtype, op, before, after, size, ulps(got, want, dtype))


def edges(dtype: Any) -> None:
    """Tests intermediate values that overflow 16 bits, with results that do not."""
    most = np.full(9, largest(dtype), dtype)
    ranks = rdmacoll.size()
    part = 3 if dtype is np.float16 else 8  # bfloat16 has the range of float32
    for op in (Average, Min, Max):
        got = engine.allreduce(most, op, prescale_factor=1 / part, postscale_factor=part)
        assert got.tolist() == most.tolist(), (dtype, op, got)
    got = engine.allreduce(most, Sum, prescale_factor=1 / 3 / ranks, postscale_factor=3)
    assert got.tolist() == most.tolist(), (dtype, got)
    assert engine.allreduce(most, Min, prescale_factor=-0.5).tolist() == (most * dtype(-0.5)).tolist()


def further_dtypes() -> None:
    rank, ranks = rdmacoll.rank(), rdmacoll.size()
    for dtype in (np.uint16, np.uint32, np.uint64, np.int16):
        sources = [
            np.arange(1000).astype(dtype) + dtype(60_000 % (np.iinfo(dtype).max // 2)) * dtype(one)
            for one in range(ranks)
        ]
        for op in (Sum, Min, Max, Product):
            want = sources[0].copy()
            for other in sources[1:]:
                want = {Sum: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}[op](want, other)
            assert engine.allreduce(sources[rank], op).tolist() == want.tolist(), (dtype, op)
    for dtype in (np.complex64, np.complex128):
        sources = [(np.arange(1000) * (1 + one) - 7j * one).astype(dtype) for one in range(ranks)]
        total = sum(sources[1:], sources[0])
        assert engine.allreduce(sources[rank], Sum).tolist() == total.tolist(), dtype
        got = engine.allreduce(sources[rank], Average, prescale_factor=0.5)
        np.testing.assert_allclose(got, total / ranks / 2, rtol=1e-6)
        rows = engine.reducescatter(sources[rank], Sum)
        assert rows.tolist() == np.array_split(total, ranks)[rank].tolist()
        for op in (Min, Max, Product):
            assert "complex numbers take Sum and Average" in refusal(
                partial(engine.allreduce, sources[rank], op)
            )


def main() -> None:
    rdmacoll.init()
    for dtype in (np.float16, bfloat16):
        for op in (Sum, Average, Product):
            for before, after in ((1 / 3, 3.0), (0.1, 7.0), (3.0, 1.0)):
                for size in (1, 1000, 70_000):
                    check(dtype, op, before, after, size)
        edges(dtype)
    further_dtypes()
    report("right")
    rdmacoll.shutdown()


main()
