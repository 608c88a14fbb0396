"""The work of a library for one cell of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Callable, Protocol

import numpy as np

from .kinds import ITEMSIZE, KINDS, RankOfWorld, Run, wrong_values
from .values import Array, fill, gradient_value, wrong_gradients, wrong_sums

# A cell: {"what": "allreduce", "bytes": ..., "variant": "prepared", "inputs": "kept"}, {"what": "gradients",
# "shapes": ...} ...
Work = dict[str, Any]


class Job(Protocol):
    """A timed call, and the check of its results. A job may have attributes. `each`: the number of
    measured units in one call. `warm_up_calls`: the calls before the first timed one, equal on all ranks.
    `before`: the work of this rank before each call, which is not timed."""

    @property
    def call(self) -> Callable[[], object]:
        """The timed call."""

    def check(self, turn: int) -> int:
        """Calls once with the values of this turn. Returns the number of wrong results on this rank."""

    def clear(self) -> None:
        """Prepares the inputs of the timed calls."""

    def after(self) -> int:
        """The number of wrong results after the timed calls."""


class HasWorld(Protocol):
    """A rank of a world with a barrier."""

    rank: int
    ranks: int

    @property
    def barrier(self) -> Callable[[], object]:
        """Waits for all ranks."""


class Library(Protocol):
    """A library whose rank this process is. A library with a method `serve` needs the main thread for it."""

    rank: int
    ranks: int
    facts: dict[str, str]  # versions, and other facts that explain times

    def make(self, work: Work) -> Job:
        """Allocates memory and prepares the call of one cell."""


def _barrier_of(library: HasWorld, work: Work) -> Callable[[], object] | None:
    """The barrier before each call, or None: ranks write inputs between calls, or they keep them."""
    return library.barrier if work.get("inputs") == "written" else None


class SumInPlace:
    """An allreduce of one numpy array in place. The timed calls add zeros, which must stay zeros."""

    def __init__(self, work: Work, buffer: Array, call: Callable[[], object], library: HasWorld) -> None:
        self.call = call
        self._barrier = _barrier_of(library, work)
        self._buffer = buffer
        self._rank, self._ranks = library.rank, library.ranks

    def check(self, turn: int) -> int:
        """Sums the values of this turn, and counts wrong sums."""
        fill(self._buffer, self._rank, turn)
        self.call()
        return wrong_sums(self._buffer, self._ranks, turn)

    @property
    def before(self) -> Callable[[], None] | None:
        """Writes the input and waits for all ranks, if the work requests it."""
        return None if self._barrier is None else self._write

    def _write(self) -> None:
        assert self._barrier is not None
        self.clear()
        self._barrier()

    def clear(self) -> None:
        """Sets all values to zero."""
        self._buffer[:] = 0

    def after(self) -> int:
        """The number of values that are not zero."""
        return int((self._buffer != 0).sum())


class Collective:
    """A collective of numpy arrays. Calls before and after the timed ones check results. prepare: a call with
    this input and this root, by the size in elements."""

    def __init__(
        self, work: Work, library: HasWorld, prepare: Callable[[Array, int, RankOfWorld], Run]
    ) -> None:
        self._kind = KINDS[work["what"]]
        count = work["bytes"] // ITEMSIZE
        self._barrier = _barrier_of(library, work)
        roots = self._kind.roots(library.ranks, has_barriers=self._barrier is not None)
        self._places = [RankOfWorld(library.rank, library.ranks, root) for root in roots]
        self._input = np.zeros(self._kind.input_elements(count, self._places[0]), np.float32)
        self._runs = [prepare(self._input, count, place) for place in self._places]
        self.call = self._runs[0] if len(self._runs) == 1 else _in_turn(self._runs)

    @property
    def before(self) -> Callable[[], None] | None:
        """Writes the input and waits for all ranks, if the work requests it."""
        return None if self._barrier is None else self._write

    def _write(self) -> None:
        assert self._barrier is not None
        if self._kind.reads_input(self._places[0]):
            self._input[:] = 0
        self._barrier()

    def check(self, turn: int) -> int:
        """Calls once with the values and the root of this turn, and counts wrong results."""
        place = self._places[turn % len(self._places)]
        values = [np.empty_like(self._input) for _ in range(place.ranks)]
        for rank, array in enumerate(values):
            fill(array, rank, turn)
        self._input[:] = values[place.rank]
        return wrong_values(self._runs[place.root](), self._kind.expected(values, place))

    def clear(self) -> None:
        """Sets all values to zero."""
        self._input[:] = 0

    def after(self) -> int:
        """The number of values that are not zero in the result of one more call."""
        result = self._runs[0]()
        return 0 if result is None else int(np.count_nonzero(result))


def _in_turn(runs: Sequence[Run]) -> Run:
    """A call that runs all of them in turn."""
    turns = itertools.cycle(runs)
    return lambda: next(turns)()


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
