"""The expected results of collectives, computed with numpy from the data of all ranks."""

from __future__ import annotations

import functools
import zlib
from typing import Any, Callable

import numpy as np

from rdmacoll._abi.arguments import Array
from rdmacoll.operators import ReduceOp

_PAIRWISE: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_EPSILON.update(complex64=_EPSILON["float32"], complex128=_EPSILON["float64"])


def dtype_of(name: str) -> np.dtype[Any] | None:
    """The numpy dtype of a name, or None when it needs a package that is missing."""
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            return None
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


def data_of(rank: int, shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
    """A rank's values: they differ by rank and by seed."""
    source = np.random.default_rng([seed, rank, *shape])
    values: Any
    if dtype.kind in "iu":
        information = np.iinfo(dtype)
        values = source.integers(information.min, information.max, shape, dtype, endpoint=True)
    elif dtype.kind == "b":
        values = source.integers(0, 2, shape)
    elif dtype.kind == "c":
        values = _around_one(source, shape) + 1j * _around_one(source, shape)
    else:
        values = _around_one(source, shape)
    return np.array(values, dtype)


def _around_one(source: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Values of magnitude 0.5 to 1.5 with either sign, so that products of many stay in range."""
    values = source.uniform(-1.0, 1.0, shape)
    return values + np.copysign(0.5, values)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def reduced(arrays: list[Array], op: ReduceOp) -> Array:
    """The reduction: exact (wrapping) for integers and booleans, in float64 for floats, in complex128 for
    complex."""
    if arrays[0].dtype.kind in "iub":
        with np.errstate(over="ignore"):
            return np.asarray(functools.reduce(_PAIRWISE[op], arrays))
    wide = [array.astype(_wide(array.dtype)) for array in arrays]
    total = functools.reduce(_PAIRWISE[op], wide)
    return np.asarray(total / len(arrays) if op is ReduceOp.AVERAGE else total)


def wrong_values(got: Array, arrays: list[Array], op: ReduceOp) -> int:
    """The number of elements of `got` that are not the reduction of `arrays`. Floats may differ by
    rounding."""
    expected = reduced(arrays, op)
    if got.shape != expected.shape or got.dtype != arrays[0].dtype:
        return max(1, got.size)
    if got.dtype.kind in "iub":
        return int(np.count_nonzero(got != expected))
    actual = got.astype(_wide(got.dtype))
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        return int(np.count_nonzero(~((actual == expected) | (np.isnan(actual) & np.isnan(expected)))))
    wide = [np.abs(array.astype(_wide(array.dtype))) for array in arrays]
    size = functools.reduce(np.multiply if op is ReduceOp.PRODUCT else np.add, wide)
    size = size / len(arrays) if op is ReduceOp.AVERAGE else size
    allowed = _EPSILON[got.dtype.name] * (len(arrays) + 1) * size
    return int(np.count_nonzero(~(np.abs(actual - expected) <= allowed)))


def rows_of(rows: int, rank: int, count: int) -> slice:
    """A rank's default share of the first dimension. If the rows do not divide evenly, the first ranks get
    one more.

    >>> [rows_of(5, rank, 3) for rank in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    each, more = divmod(rows, count)
    begin = rank * each + min(rank, more)
    return slice(begin, begin + each + (rank < more))


def canonical_sum(arrays: list[Array]) -> Array:
    """The sum in the order of RDMACOLL_ORDER=canonical: one binary tree over the ranks, split at the
    largest power of two below the count. Types of 16 bits are added in float32 and rounded once."""
    narrow = arrays[0].dtype
    wide = np.dtype(np.float32) if narrow.itemsize == 2 else narrow

    def tree(first: int, last: int) -> Array:
        if last - first == 1:
            return arrays[first].astype(wide)
        half = 1 << (last - first - 1).bit_length() - 1
        return np.asarray(tree(first, first + half) + tree(first + half, last))

    return tree(0, len(arrays)).astype(narrow)


def fingerprint(array: Array) -> int:
    """A checksum: equal bits have equal ones."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())
