"""The inputs of ranks and the expected results. They are whole numbers, so that every order of addition is
exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# The period of the values. It is a prime, so that no part of an array begins like another.
PERIOD = 262_139
_MODULUS = 1021


def pattern(rank: int, turn: int, count: int = PERIOD) -> Array:
    """The first values of a rank in a turn. They differ by rank and by turn."""
    start = (rank * 7919 + turn * 104_729) % _MODULUS
    values = (np.arange(min(count, PERIOD), dtype=np.int64) * (rank + 1) + start) % _MODULUS
    return values.astype(np.float32)


def _pieces(array: Array) -> Iterator[Array]:
    for begin in range(0, array.size, PERIOD):
        yield array[begin : begin + PERIOD]


def fill(array: Array, rank: int, turn: int) -> None:
    """Fills an array with a rank's values of this turn."""
    values = pattern(rank, turn, array.size)
    for piece in _pieces(array):
        piece[:] = values[: piece.size]


def wrong_sums(array: Array, ranks: int, turn: int) -> int:
    """The number of elements that are not the sum of all ranks' values of this turn.

    >>> array = np.empty(3, np.float32)
    >>> fill(array, 0, 5)
    >>> wrong_sums(array, 1, 5), wrong_sums(array, 2, 5), wrong_sums(array, 1, 6)
    (0, 3, 3)
    """
    expected = np.zeros(min(array.size, PERIOD), np.float32)
    for rank in range(ranks):
        expected += pattern(rank, turn, array.size)
    return sum(int(np.count_nonzero(piece != expected[: piece.size])) for piece in _pieces(array))


def gradient_value(rank: int, index: int) -> float:
    """The value of all elements of a gradient."""
    return float((rank + 1) * (index % 7 + 1))


def wrong_gradients(arrays: list[Array], ranks: int) -> int:
    """The number of summed gradients with a wrong value."""
    expected = [sum(gradient_value(rank, index) for rank in range(ranks)) for index in range(len(arrays))]
    return sum(not (array == value).all() for array, value in zip(arrays, expected))
