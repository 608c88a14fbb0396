"""What a library does for one cell of a comparison."""

from __future__ import annotations

from typing import Any, Callable, Protocol

from .values import Array, fill, gradient_value, wrong_gradients, wrong_sums

# A cell: {"what": "allreduce", "bytes": ..., "variant": "prepared"}, {"what": "gradients", "shapes": ...} ...
Work = dict[str, Any]


class Job(Protocol):
    """A call that is timed, and how its results are checked. One with an attribute `each` does that many of
    what is timed in a call."""

    @property
    def call(self) -> Callable[[], object]:
        """What is timed."""

    def check(self, turn: int) -> int:
        """Calls once with values of this turn; how many results are wrong, here."""

    def clear(self) -> None:
        """Makes what the timed calls work on."""

    def after(self) -> int:
        """How many results are wrong after the timed calls."""


class Library(Protocol):
    """A library that this process is a rank of. One with a method `serve` needs the main thread for it."""

    rank: int
    ranks: int
    facts: dict[str, str]  # versions, and what else tells times apart

    def make(self, work: Work) -> Job:
        """Memory and a call for one cell."""


class SumInPlace:
    """An allreduce of one numpy array in place; the timed calls add zeros, which must stay zeros."""

    def __init__(self, buffer: Array, call: Callable[[], object], library: Library) -> None:
        self.call = call
        self._buffer = buffer
        self._rank, self._ranks = library.rank, library.ranks

    def check(self, turn: int) -> int:
        """Sums this turn's values."""
        fill(self._buffer, self._rank, turn)
        self.call()
        return wrong_sums(self._buffer, self._ranks, turn)

    def clear(self) -> None:
        """Zeros."""
        self._buffer[:] = 0

    def after(self) -> int:
        """What is no zero any more."""
        return int((self._buffer != 0).sum())


class GradientsInPlace:
    """Sums of many numpy arrays in place, as a training step has them."""

    def __init__(self, arrays: list[Array], call: Callable[[], object], library: Library) -> None:
        self.call = call
        self._arrays = arrays
        self._rank, self._ranks = library.rank, library.ranks

    def check(self, turn: int) -> int:
        """Sums values that tell ranks and arrays apart; the same in each turn."""
        for index, array in enumerate(self._arrays):
            array[...] = gradient_value(self._rank, index)
        self.call()
        return wrong_gradients(self._arrays, self._ranks)

    def clear(self) -> None:
        """Zeros."""
        for array in self._arrays:
            array[...] = 0

    def after(self) -> int:
        """What is no zero any more."""
        return sum(bool(array.any()) for array in self._arrays)
