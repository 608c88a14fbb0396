"""Times the same call of several libraries, turn by turn, in one run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

import numpy as np

from rdmacoll import engine
from rdmacoll.engine import bootstrap, world
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import Max, Sum

Array = np.ndarray[Any, Any]
_CALLS_MAX = 20_000
_WARM_UP_CALLS = 3


class Contestant(Protocol):
    """A library that can sum a buffer in place."""

    name: str
    version: str

    def prepare(self, buffer: Array) -> Callable[[], object]:
        """A call that sums `buffer` over all ranks, in place."""


class OwnContestant:
    """This library, by a prepared call."""

    name = "rdmacoll"
    version = ""

    def prepare(self, buffer: Array) -> Callable[[], object]:
        """`prepare_allreduce` in place."""
        return engine.prepare_allreduce(buffer, buffer, Sum)


class MpiContestant:
    """MPI through mpi4py's upper-case, in-place call: the same buffer, the same work."""

    def __init__(self, name: str, product: str) -> None:
        mpi = bootstrap.mpi_module()
        self.name = name
        self.version = " ".join(mpi.Get_library_version().split()[:3]).strip(" ,\0")
        if product not in mpi.Get_library_version():
            raise ConfigError(f"--peers {name}: mpi4py uses {self.version}, which is not {product}.")
        if mpi.COMM_WORLD.Get_size() != world.size():
            raise ConfigError(
                f"--peers {name}: MPI has {mpi.COMM_WORLD.Get_size()} ranks, this world {world.size()}: "
                "start with mpirun."
            )
        self._mpi = mpi

    def prepare(self, buffer: Array) -> Callable[[], object]:
        """MPI_Allreduce with MPI_IN_PLACE."""
        mpi, call = self._mpi, self._mpi.COMM_WORLD.Allreduce
        place, operand, total = mpi.IN_PLACE, [buffer, mpi.FLOAT], mpi.SUM
        return lambda: call(place, operand, total)


@dataclass
class Cell:
    """What one library did at one size: seconds per call of each turn, and wrong values."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0


def _fresh(rank: int, turn: int, count: int) -> Array:
    # Whole numbers, so that every order of addition is exact: the check needs no tolerance.
    start = (rank * 7919 + turn * 104_729) % 1021
    return ((np.arange(count, dtype=np.int64) * (rank + 1) + start) % 1021).astype(np.float32)


def check(call: Callable[[], object], buffer: Array, turn: int) -> int:
    """Sums fresh data of this turn; how many values are wrong, here."""
    count = buffer.size
    buffer[:] = _fresh(world.rank(), turn, count)
    expected = np.zeros(count, np.float32)
    for rank in range(world.size()):
        expected += _fresh(rank, turn, count)
    call()
    return int(np.count_nonzero(buffer != expected))


def _slowest(seconds: float) -> float:
    return float(engine.allreduce(np.array([seconds]), Max)[0])


def timed(call: Callable[[], object], buffer: Array, calls: int) -> tuple[float, int]:
    """(seconds per call at the slowest rank, wrong values) of a burst, on zeros that must stay zeros."""
    buffer[:] = 0
    engine.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - begin) / calls
    return _slowest(seconds), int(np.count_nonzero(buffer))


def _calls_for(call: Callable[[], object], buffer: Array, burst_s: float) -> int:
    buffer[:] = 0
    for _ in range(_WARM_UP_CALLS):
        call()
    per_call, _ = timed(call, buffer, 5)
    return max(2, min(_CALLS_MAX, int(burst_s / max(per_call, 1e-7))))


def interleaved(contestants: list[Contestant], buffer: Array, *, turns: int, burst_s: float) -> list[Cell]:
    """Lets all take turns on one buffer; who begins alternates. Wrong values are summed over ranks."""
    calls = [contestant.prepare(buffer) for contestant in contestants]
    cells = [Cell() for _ in contestants]
    counts = [_calls_for(call, buffer, burst_s) for call in calls]
    for turn in range(turns):
        order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
        for number in order:
            cells[number].wrong += check(calls[number], buffer, turn)
            seconds, wrong = timed(calls[number], buffer, counts[number])
            cells[number].seconds.append(seconds)
            cells[number].wrong += wrong
    wrong_everywhere = engine.allreduce(np.array([cell.wrong for cell in cells], np.int64), Sum)
    for cell, wrong in zip(cells, wrong_everywhere.tolist()):
        cell.wrong = int(wrong)
    return cells
