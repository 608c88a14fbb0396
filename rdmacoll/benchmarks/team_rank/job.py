"""The work of a library for one cell of a comparison."""

from __future__ import annotations

from typing import Any, Callable, Protocol

from .values import Array, fill, gradient_value, wrong_gradients, wrong_sums

# A cell: {"what": "allreduce", "bytes": ..., "variant": "prepared"}, {"what": "gradients", "shapes": ...} ...
Work = dict[str, Any]


class Job(Protocol):
    """A timed call, and the check of its results. A job may have attributes. `each`: the number of
    measured units in one call. `warm_up_calls`: the calls before the first timed one, equal on all ranks."""

    @property
    def call(self) -> Callable[[], object]:
        """The timed call."""

    def check(self, turn: int) -> int:
        """Calls once with the values of this turn. Returns the number of wrong results on this rank."""

    def clear(self) -> None:
        """Prepares the inputs of the timed calls."""

    def after(self) -> int:
        """The number of wrong results after the timed calls."""


class Library(Protocol):
    """A library whose rank this process is. A library with a method `serve` needs the main thread for it."""

    rank: int
    ranks: int
    facts: dict[str, str]  # versions, and other facts that explain times

    def make(self, work: Work) -> Job:
        """Allocates memory and prepares the call of one cell."""


class SumInPlace:
    """An allreduce of one numpy array in place. The timed calls add zeros, which must stay zeros."""

    def __init__(self, buffer: Array, call: Callable[[], object], library: Library) -> None:
        self.call = call
        self._buffer = buffer
        self._rank, self._ranks = library.rank, library.ranks

    def check(self, turn: int) -> int:
        """Sums the values of this turn, and counts wrong sums."""
        fill(self._buffer, self._rank, turn)
        self.call()
        return wrong_sums(self._buffer, self._ranks, turn)

    def clear(self) -> None:
        """Sets all values to zero."""
        self._buffer[:] = 0

    def after(self) -> int:
        """The number of values that are not zero."""
        return int((self._buffer != 0).sum())


class GradientsInPlace:
    """Sums of many numpy arrays in place, as in a training step."""

    def __init__(self, arrays: list[Array], call: Callable[[], object], library: Library) -> None:
        self.call = call
        self._arrays = arrays
        self._rank, self._ranks = library.rank, library.ranks

    def check(self, turn: int) -> int:
        """Sums values that differ by rank and array, and counts wrong sums. All turns have the same
        values."""
        for index, array in enumerate(self._arrays):
            array[...] = gradient_value(self._rank, index)
        self.call()
        return wrong_gradients(self._arrays, self._ranks)

    def clear(self) -> None:
        """Sets all values to zero."""
        for array in self._arrays:
            array[...] = 0

    def after(self) -> int:
        """The number of arrays that are not zero."""
        return sum(bool(array.any()) for array in self._arrays)
