"""Reduction operators and element types. Operators have Horovod's numbers here, and others in the C ABI."""

from __future__ import annotations

import enum
import operator
import sys
from typing import Any

import numpy as np

from rdmacoll.errors import ConfigError


class ReduceOp(enum.IntEnum):
    """The operators that reduce the ranks' values to one, with Horovod's numbers."""

    AVERAGE = 0
    SUM = 1
    MIN = 3
    MAX = 4
    PRODUCT = 5

    def __repr__(self) -> str:
        return self.name.capitalize()

    __str__ = __repr__


Sum = ReduceOp.SUM
Average = ReduceOp.AVERAGE
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

# The operators by their numbers in the C ABI, and these numbers by operator.
OPERATORS = (Sum, Average, Min, Max, Product)
OPERATOR_CODES = {op: code for code, op in enumerate(OPERATORS)}

CODES = {
    "uint8": 0,
    "int8": 1,
    "int32": 2,
    "int64": 3,
    "float16": 4,
    "bfloat16": 5,
    "float32": 6,
    "float64": 7,
    "bool": 8,
    "uint16": 9,
    "uint32": 10,
    "uint64": 11,
    "int16": 12,
    "complex64": 13,
    "complex128": 14,
}
REDUCIBLE = tuple(CODES)
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")


def is_reducible(dtype: str, op: ReduceOp) -> bool:
    """Whether reductions take this dtype with this operator.

    bool has "and" (Min) and "or" (Max). Complex numbers have sums.

    >>> [str(op) for op in ReduceOp if is_reducible("bool", op)]
    ['Min', 'Max']
    >>> [str(op) for op in ReduceOp if is_reducible("complex64", op)]
    ['Average', 'Sum']
    """
    if dtype in COMPLEX:
        return op in (Sum, Average)
    if op is Average:
        return dtype in FLOATS
    return dtype in REDUCIBLE and (dtype != "bool" or op in (Min, Max))


def check_reducible(dtype: str, op: ReduceOp) -> None:
    """Raises ConfigError when reductions do not take this dtype with this operator."""
    if is_reducible(dtype, op):
        return
    if dtype not in REDUCIBLE:
        text = f"{dtype} cannot be reduced: reductions take {', '.join(REDUCIBLE)}."
    elif dtype in COMPLEX:
        text = f"{op} of {dtype} is not defined: complex numbers take Sum and Average."
    elif dtype == "bool":
        text = (
            f"{op} of bool is not defined: use op=rdmacoll.Max for 'any', op=rdmacoll.Min for 'all', or cast "
            "to int32."
        )
    else:
        text = (
            f"Average of {dtype} would have to round: use op=rdmacoll.Sum and divide, or cast to a float "
            "dtype first."
        )
    raise ConfigError(text)


def _is_swapped(dtype: np.dtype[Any]) -> bool:
    foreign = ">" if sys.byteorder == "little" else "<"
    return dtype.byteorder == foreign


def reduction(op: Any) -> ReduceOp:
    """The operator, which may also be given by its number. Raises ConfigError."""
    try:
        if isinstance(op, (bool, np.bool_)):
            raise ValueError
        return ReduceOp(operator.index(op))
    except (TypeError, ValueError):
        raise ConfigError(
            f"op={op!r} is no reduction: use rdmacoll.Average, Sum, Min, Max or Product."
        ) from None


class DtypeTable:
    """Finds a dtype's number, and remembers it. The second look-up is one dictionary access."""

    def __init__(self) -> None:
        self.known_to_move: dict[np.dtype[Any], int] = {}  # the numbers that `moved` has found
        self._reducible: dict[int, dict[np.dtype[Any], int]] = {op: {} for op in ReduceOp}

    def known_to_reduce(self, op: ReduceOp) -> dict[np.dtype[Any], int]:
        """The numbers that `reduced` has found for this operator."""
        return self._reducible[op]

    def moved(self, dtype: np.dtype[Any]) -> int:
        """The number of a dtype for collectives that only move values. Raises ConfigError."""
        code = self.known_to_move.get(dtype)
        if code is None:
            code = CODES.get(dtype.name, -1)
            if code < 0 or _is_swapped(dtype):
                cure = "" if dtype.hasobject else ' Send its bytes: array.view("uint8").'
                raise ConfigError(
                    f"{dtype} cannot be sent: collectives that move values take {', '.join(CODES)}.{cure}"
                )
            self.known_to_move[dtype] = code
        return code

    def reduced(self, dtype: np.dtype[Any], op: int) -> int:
        """The number of a dtype for reductions with this operator. Raises ConfigError."""
        if type(op) is not ReduceOp:
            op = reduction(op)
        known = self._reducible[op]
        code = known.get(dtype)
        if code is not None:
            return code
        check_reducible(str(dtype) if _is_swapped(dtype) else dtype.name, ReduceOp(op))
        known[dtype] = CODES[dtype.name]
        return known[dtype]


DTYPES = DtypeTable()
