"""Times the same call of several libraries, turn by turn, in one run."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

import numpy as np

from rdmacoll import engine
from rdmacoll._start import bootstrap
from rdmacoll._world import world
from rdmacoll.benchmarks.team_rank.kinds import Kind, RankOfWorld, Run, wrong_values
from rdmacoll.benchmarks.team_rank.values import Array, fill
from rdmacoll.cli.bench_memory import HostMemory, Memory
from rdmacoll.errors import ConfigError
from rdmacoll.operators import Max, Sum

_CALLS_MAX = 20_000
_VERSION_WORDS = 4  # "Intel(R) MPI Library 2021.19"


class Contestant(Protocol):
    """A library with the collectives."""

    name: str
    version: str

    def prepare(self, kind: Kind, input_array: Array, count: int, place: RankOfWorld) -> Run:
        """A call whose input is `input_array`. count: the size in elements."""

    def barrier(self) -> Callable[[], object]:
        """A call that waits for all ranks."""


class OurContestant:
    """This library, through prepared or plain calls."""

    name = "rdmacoll"
    version = ""

    def __init__(self, is_plain: bool = False) -> None:
        self._is_plain = is_plain

    def prepare(self, kind: Kind, input_array: Array, count: int, place: RankOfWorld) -> Run:
        """The call. A prepared one looks its arrays up beforehand, as the peers' calls do."""
        return (kind.plain if self._is_plain else kind.ours)(engine, input_array, place)

    def barrier(self) -> Callable[[], object]:
        """The prepared barrier."""
        return engine.prepare_barrier()


class MpiContestant:
    """MPI through mpi4py's upper-case calls, with the same input. The outputs are allocated beforehand."""

    def __init__(self, name: str, product: str, is_plain: bool = False) -> None:
        mpi = bootstrap.mpi_module()
        self.name = name
        self._is_plain = is_plain
        self.version = " ".join(mpi.Get_library_version().split()[:_VERSION_WORDS]).strip(" ,\0")
        if product not in mpi.Get_library_version():
            raise ConfigError(f"--peers {name}: mpi4py uses {self.version}, which is not {product}.")
        if mpi.COMM_WORLD.Get_size() != world.size():
            raise ConfigError(
                f"--peers {name}: MPI has {mpi.COMM_WORLD.Get_size()} ranks, this world {world.size()}: "
                "start with mpirun."
            )
        self._mpi = mpi

    def prepare(self, kind: Kind, input_array: Array, count: int, place: RankOfWorld) -> Run:
        """The call. Unless calls are plain, its buffers name their datatype, so that mpi4py does not search
        for it."""
        return kind.mpi(self._mpi, input_array, count, place, not self._is_plain)

    def barrier(self) -> Callable[[], object]:
        """MPI_Barrier."""
        found: Callable[[], object] = self._mpi.COMM_WORLD.Barrier
        return found


def rank_of_world(root: int = 0) -> RankOfWorld:
    """This rank, for calls with this root."""
    return RankOfWorld(world.rank(), world.size(), root)


@dataclass
class Cell:
    """The result of one library at one size: seconds per call of each turn, and the number of wrong
    values."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0


def check(entry: Entry, turn: int) -> int:
    """Calls once with the values and the root of this turn. Returns the number of wrong results on this
    rank."""
    values = []
    for rank in range(world.size()):
        values.append(np.empty(entry.input_array.shape, entry.input_array.dtype))
        fill(values[-1], rank, turn)
    entry.memory.put(entry.input_array, values[world.rank()])
    root = turn % len(entry.runs)
    return wrong_values(
        entry.memory.get(entry.runs[root]()), entry.kind.expected(values, rank_of_world(root))
    )


def _slowest(seconds: float) -> float:
    return float(engine.allreduce(np.array([seconds]), Max)[0])


def timed(entry: Entry, calls: int) -> tuple[float, int]:
    """Times a burst of calls on zeros, which must stay zeros. The roots of `entry.runs` take turns. Returns
    (seconds per call at the slowest rank, wrong values on this rank)."""
    entry.memory.put(entry.input_array, 0.0)
    engine.barrier()
    seconds, result = (_in_a_row if entry.barrier is None else _written)(entry, calls)
    values = entry.memory.get(result)
    return _slowest(seconds / calls), 0 if values is None else int(np.count_nonzero(values))


def _in_a_row(entry: Entry, calls: int) -> tuple[float, Any]:
    """The seconds of all calls, and the last result. Nothing happens between calls."""
    result = None
    begin = time.perf_counter()
    for run in itertools.islice(itertools.cycle(entry.runs), calls):
        result = run()
    entry.memory.finish()
    return time.perf_counter() - begin, result


def _written(entry: Entry, calls: int) -> tuple[float, Any]:
    """The seconds of all calls, and the last result. Before each call, ranks write their inputs and wait for
    each other, which is not timed."""
    assert entry.barrier is not None
    result, seconds = None, 0.0
    writes = entry.kind.reads_input(rank_of_world())
    for run in itertools.islice(itertools.cycle(entry.runs), calls):
        if writes:
            entry.memory.put(entry.input_array, 0.0)
        entry.barrier()
        begin = time.perf_counter()
        result = run()
        entry.memory.finish()
        seconds += time.perf_counter() - begin
    return seconds, result


def _calls_for(entry: Entry, burst_s: float) -> int:
    entry.memory.put(entry.input_array, 0.0)
    entry.memory.warm_up(entry.runs)
    per_call, _ = timed(entry, 5 * len(entry.runs))
    return max(2, min(_CALLS_MAX, int(burst_s / max(per_call, 1e-7))))


@dataclass(frozen=True)
class Entry:
    """One participant of the turns: the collective, the call for each root, and the calls' input. barrier:
    before each call, ranks write their inputs and call it."""

    kind: Kind
    runs: list[Run]
    input_array: Any
    memory: Memory = field(default_factory=HostMemory)
    barrier: Callable[[], object] | None = None


def interleaved(
    contestants: list[Contestant],
    kind: Kind,
    count: int,
    memory: Memory,
    *,
    turns: int,
    burst_s: float,
    is_written: bool = False,
) -> list[Cell]:
    """Lets all contestants take turns on one input of `count` elements. burst_s: seconds. is_written: ranks
    write their inputs before each call, and begin it together."""
    input_array = memory.allocate(kind.input_elements(count, rank_of_world()), np.dtype(np.float32))
    places = [rank_of_world(root) for root in kind.roots(world.size(), has_barriers=is_written)]
    entries = [
        Entry(
            kind,
            [one.prepare(kind, input_array, count, place) for place in places],
            input_array,
            memory,
            one.barrier() if is_written else None,
        )
        for one in contestants
    ]
    return take_turns(entries, turns=turns, burst_s=burst_s)


def take_turns(entries: list[Entry], *, turns: int, burst_s: float) -> list[Cell]:
    """Measures a burst of each entry in each turn. The order alternates. Wrong values are summed over the
    ranks."""
    cells = [Cell() for _ in entries]
    counts = [_calls_for(entry, burst_s) for entry in entries]
    for turn in range(turns):
        order = range(len(entries)) if turn % 2 == 0 else reversed(range(len(entries)))
        for number in order:
            entry, cell = entries[number], cells[number]
            cell.wrong += check(entry, turn)
            seconds, wrong = timed(entry, counts[number])
            cell.seconds.append(seconds)
            cell.wrong += wrong
    wrong_everywhere = engine.allreduce(np.array([cell.wrong for cell in cells], np.int64), Sum)
    for cell, wrong in zip(cells, wrong_everywhere.tolist()):
        cell.wrong = int(wrong)
    return cells
