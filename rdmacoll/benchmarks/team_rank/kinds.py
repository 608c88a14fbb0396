"""The collectives that can be measured: the input of a rank, its expected result, and the calls. Sizes are
those of nccl-tests: the larger one of a rank's input and output. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from .values import Array

ITEMSIZE = np.dtype(np.float32).itemsize  # all collectives have such elements
# Calls once and returns the result, or None on ranks that get none.
Run = Callable[[], Optional[Array]]


@dataclass(frozen=True)
class RankOfWorld:
    """A rank, the number of ranks, and the root of the collectives that have one."""

    rank: int
    ranks: int
    root: int = 0


@dataclass(frozen=True)
class Kind:
    """A row of the table."""

    name: str
    busbw: Callable[[int], float]  # bus bandwidth / algorithm bandwidth, by the number of ranks
    input_elements: Callable[[int, RankOfWorld], int]  # input elements of a rank, by the size in elements
    expected: Callable[[list[Array], RankOfWorld], Array | None]
    # rdmacoll's engine, the input, and the rank: the prepared call, and the plain one
    ours: Callable[[Any, Array, RankOfWorld], Run]
    plain: Callable[[Any, Array, RankOfWorld], Callable[[], Any]]
    # mpi4py's MPI, the input, the size in elements, the rank, and whether the call names the datatype
    mpi: Callable[[Any, Array, int, RankOfWorld, bool], Run]
    is_cut: bool = True  # the size is a multiple of the number of ranks
    has_root: bool = False
    of_root: bool = False  # only the root's input counts

    def reads_input(self, place: RankOfWorld) -> bool:
        """Whether a call reads the input of this rank."""
        return not self.of_root or place.rank == place.root

    def counts(self, sizes: Iterable[int], ranks: int) -> list[int]:
        """Sizes in bytes as numbers of elements, each once. If the collective cuts its data among the ranks,
        each has as much.

        >>> KINDS["allreduce"].counts([9], 4), KINDS["gather"].counts([8, 16, 40], 4)
        ([2], [4, 8])
        """
        each = ranks if self.is_cut else 1
        return list(dict.fromkeys(max(1, size // ITEMSIZE // each) * each for size in sizes))

    def roots(self, ranks: int, *, has_barriers: bool = False) -> range:
        """The roots of successive calls. Without barriers between calls the root moves on with each call.
        Otherwise a rank could run ahead of the others by many calls: an MPI's broadcast ends at its root
        before other ranks take part."""
        return range(ranks if self.has_root and not has_barriers else 1)


def _all(count: int, _: RankOfWorld) -> int:
    return count


def _part_elements(count: int, rank_of_world: RankOfWorld) -> int:
    return count // rank_of_world.ranks


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(_: int) -> float:
    return 1.0


def _own_rows(array: Array, rank_of_world: RankOfWorld) -> Array:
    return np.split(array, rank_of_world.ranks)[rank_of_world.rank]


def _at_root(rank_of_world: RankOfWorld, array: Array) -> Array | None:
    return array if rank_of_world.rank == rank_of_world.root else None


def _sum(values: list[Array]) -> Array:
    return np.asarray(np.sum(values, axis=0, dtype=np.float32))


def _operand(mpi: Any, array: Array, names_type: bool) -> Any:
    """An array as an operand of mpi4py. Without the name of its type, mpi4py searches for it in each call."""
    return [array, mpi.FLOAT] if names_type else array


def _mpi_allreduce(mpi: Any, input_array: Array, _: int, __: RankOfWorld, names_type: bool) -> Run:
    call, operand = mpi.COMM_WORLD.Allreduce, _operand(mpi, input_array, names_type)
    in_place, total = mpi.IN_PLACE, mpi.SUM

    def run() -> Array:
        call(in_place, operand, total)
        return input_array

    return run


def _mpi_call(name: str, out_count: Callable[[int, RankOfWorld], int], *more: str, root: bool = False) -> Any:
    """A call of mpi4py from the given array into another array, which is allocated before."""

    def prepare(
        mpi: Any, input_array: Array, count: int, rank_of_world: RankOfWorld, names_type: bool
    ) -> Run:
        out = np.empty(out_count(count, rank_of_world), np.float32)
        call = getattr(mpi.COMM_WORLD, name)
        source, target = (_operand(mpi, array, names_type) for array in (input_array, out))
        more_arguments = [getattr(mpi, word) for word in more] + ([rank_of_world.root] if root else [])
        result = _at_root(rank_of_world, out) if name in ("Reduce", "Gather") else out

        def run() -> Array | None:
            call(source, target, *more_arguments)
            return result

        return run

    return prepare


def _mpi_broadcast(mpi: Any, input_array: Array, _: int, rank_of_world: RankOfWorld, names_type: bool) -> Run:
    call, operand = mpi.COMM_WORLD.Bcast, _operand(mpi, input_array, names_type)
    root = rank_of_world.root

    def run() -> Array:
        call(operand, root)
        return input_array

    return run


def wrong_values(got: Array | None, expected: Array | None) -> int:
    """The number of wrong elements of a result. None: this rank has no result."""
    if got is None or expected is None or got.shape != expected.shape:
        return int(got is not None or expected is not None)
    return int(np.count_nonzero(got != expected))


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "allreduce",
            lambda ranks: 2 * _share(ranks),
            _all,
            lambda values, _: _sum(values),
            lambda engine, input_array, _: engine.prepare_allreduce(input_array, input_array, engine.Sum),
            lambda engine, input_array, _: lambda: engine.allreduce(input_array, engine.Sum, out=input_array),
            _mpi_allreduce,
            is_cut=False,
        ),
        Kind(
            "reducescatter",
            _share,
            _all,
            lambda values, rank_of_world: _own_rows(_sum(values), rank_of_world),
            lambda engine, input_array, _: engine.prepare_reducescatter(input_array, engine.Sum),
            lambda engine, input_array, _: lambda: engine.reducescatter(input_array, engine.Sum),
            _mpi_call("Reduce_scatter_block", _part_elements, "SUM"),
        ),
        Kind(
            "allgather",
            _share,
            _part_elements,
            lambda values, _: np.concatenate(values),
            lambda engine, input_array, _: engine.prepare_allgather(input_array),
            lambda engine, input_array, _: lambda: engine.allgather(input_array),
            _mpi_call("Allgather", _all),
        ),
        Kind(
            "alltoall",
            _share,
            _all,
            lambda values, rank_of_world: np.concatenate(
                [_own_rows(value, rank_of_world) for value in values]
            ),
            lambda engine, input_array, _: engine.prepare_alltoall(input_array),
            lambda engine, input_array, _: lambda: engine.alltoall(input_array),
            _mpi_call("Alltoall", _all),
        ),
        Kind(
            "broadcast",
            _one,
            _all,
            lambda values, rank_of_world: values[rank_of_world.root],
            lambda engine, input_array, place: engine.prepare_broadcast(
                input_array, place.root, out=input_array
            ),
            lambda engine, input_array, place: (
                lambda: engine.broadcast(input_array, place.root, out=input_array)
            ),
            _mpi_broadcast,
            is_cut=False,
            has_root=True,
            of_root=True,
        ),
        Kind(
            "reduce",
            _one,
            _all,
            lambda values, rank_of_world: _at_root(rank_of_world, _sum(values)),
            lambda engine, input_array, place: engine.prepare_reduce(input_array, place.root, engine.Sum),
            lambda engine, input_array, place: lambda: engine.reduce(input_array, place.root, engine.Sum),
            _mpi_call("Reduce", _all, "SUM", root=True),
            is_cut=False,
            has_root=True,
        ),
        Kind(
            "gather",
            _share,
            _part_elements,
            lambda values, rank_of_world: _at_root(rank_of_world, np.concatenate(values)),
            lambda engine, input_array, place: engine.prepare_gather(input_array, place.root),
            lambda engine, input_array, place: lambda: engine.gather(input_array, place.root),
            _mpi_call("Gather", _all, root=True),
            has_root=True,
        ),
        Kind(
            "scatter",
            _share,
            _all,
            lambda values, rank_of_world: _own_rows(values[rank_of_world.root], rank_of_world),
            lambda engine, input_array, place: engine.prepare_scatter(input_array, place.root),
            lambda engine, input_array, place: lambda: engine.scatter(input_array, place.root),
            _mpi_call("Scatter", _part_elements, root=True),
            has_root=True,
            of_root=True,
        ),
    )
}
