"""The collectives that can be measured: the input of a rank, its expected result, and the calls. Sizes are
those of nccl-tests: the larger one of a rank's input and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from rdmacoll import engine
from rdmacoll.cli.references import rows_of
from rdmacoll.engine.operators import Sum

Array = np.ndarray[Any, Any]
# Calls once and returns the result, or None on ranks that get none.
Run = Callable[[], Optional[Array]]
ROOT = 0


@dataclass(frozen=True)
class Place:
    """A rank, and the number of ranks."""

    rank: int
    ranks: int


@dataclass(frozen=True)
class Kind:
    """A row of the table."""

    name: str
    busbw: Callable[[int], float]  # bus bandwidth / algorithm bandwidth, by the number of ranks
    given: Callable[[int, Place], int]  # input elements of a rank, by the size in elements
    expected: Callable[[list[Array], Place], Array | None]
    ours: Callable[[Array], Run]
    mpi: Callable[[Any, Array, int, Place], Run]  # mpi4py's MPI, the input, the size in elements
    is_cut: bool = True  # the size is a multiple of the number of ranks


def _all(count: int, _: Place) -> int:
    return count


def _part(count: int, place: Place) -> int:
    return count // place.ranks


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(_: int) -> float:
    return 1.0


def _mine(array: Array, place: Place) -> Array:
    return array[rows_of(array.size, place.rank, place.ranks)]


def _at_root(place: Place, array: Array) -> Array | None:
    return array if place.rank == ROOT else None


def _sum(values: list[Array]) -> Array:
    return np.asarray(np.sum(values, axis=0, dtype=np.float32))


def _mpi_allreduce(mpi: Any, given: Array, _: int, place: Place) -> Run:
    call, operand = mpi.COMM_WORLD.Allreduce, [given, mpi.FLOAT]
    in_place, total = mpi.IN_PLACE, mpi.SUM

    def run() -> Array:
        call(in_place, operand, total)
        return given

    return run


def _mpi_call(name: str, out_count: Callable[[int, Place], int], *more: str, root: bool = False) -> Any:
    """A call of mpi4py from the given array into another array, which is allocated before."""

    def prepare(mpi: Any, given: Array, count: int, place: Place) -> Run:
        out = np.empty(out_count(count, place), np.float32)
        call, source, target = getattr(mpi.COMM_WORLD, name), [given, mpi.FLOAT], [out, mpi.FLOAT]
        rest = [getattr(mpi, word) for word in more] + ([ROOT] if root else [])
        result = _at_root(place, out) if name in ("Reduce", "Gather") else out

        def run() -> Array | None:
            call(source, target, *rest)
            return result

        return run

    return prepare


def _mpi_broadcast(mpi: Any, given: Array, _: int, place: Place) -> Run:
    call, operand = mpi.COMM_WORLD.Bcast, [given, mpi.FLOAT]

    def run() -> Array:
        call(operand, ROOT)
        return given

    return run


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "allreduce",
            lambda ranks: 2 * _share(ranks),
            _all,
            lambda values, _: _sum(values),
            lambda given: engine.prepare_allreduce(given, given, Sum),
            _mpi_allreduce,
            is_cut=False,
        ),
        Kind(
            "reducescatter",
            _share,
            _all,
            lambda values, place: _mine(_sum(values), place),
            lambda given: engine.prepare_reducescatter(given, Sum),
            _mpi_call("Reduce_scatter_block", _part, "SUM"),
        ),
        Kind(
            "allgather",
            _share,
            _part,
            lambda values, _: np.concatenate(values),
            engine.prepare_allgather,
            _mpi_call("Allgather", _all),
        ),
        Kind(
            "alltoall",
            _share,
            _all,
            lambda values, place: np.concatenate([_mine(value, place) for value in values]),
            engine.prepare_alltoall,
            _mpi_call("Alltoall", _all),
        ),
        Kind(
            "broadcast",
            _one,
            _all,
            lambda values, _: values[ROOT],
            lambda given: engine.prepare_broadcast(given, ROOT, out=given),
            _mpi_broadcast,
            is_cut=False,
        ),
        Kind(
            "reduce",
            _one,
            _all,
            lambda values, place: _at_root(place, _sum(values)),
            lambda given: engine.prepare_reduce(given, ROOT, Sum),
            _mpi_call("Reduce", _all, "SUM", root=True),
            is_cut=False,
        ),
        Kind(
            "gather",
            _share,
            _part,
            lambda values, place: _at_root(place, np.concatenate(values)),
            lambda given: engine.prepare_gather(given, ROOT),
            _mpi_call("Gather", _all, root=True),
        ),
        Kind(
            "scatter",
            _share,
            _all,
            lambda values, place: _mine(values[ROOT], place),
            lambda given: engine.prepare_scatter(given, ROOT),
            _mpi_call("Scatter", _part, root=True),
        ),
    )
}
