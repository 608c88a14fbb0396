"""Ranks of an MPI through mpi4py: Open MPI, MPICH or Intel MPI, as in this environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from .job import Collective, GradientsInPlace, Job, SumInPlace, Work
from .kinds import KINDS, RankOfWorld, Run
from .values import Array


class MpiLibrary:
    """mpi4py's upper-case calls, MPI_Allreduce with MPI_IN_PLACE. A prepared call names the datatype, so that
    mpi4py does not search for it."""

    def __init__(self) -> None:
        import mpi4py
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.ranks = self._world.Get_rank(), self._world.Get_size()
        self.barrier = self._world.Barrier
        version = " ".join(MPI.Get_library_version().split("\n")[0].split()).strip(" ,\0")
        self.facts = {"version": version, "mpi4py": mpi4py.__version__, "numpy": np.__version__}

    def make(self, work: Work) -> Job:
        """The job of a work, with numpy arrays."""
        mpi, call, in_place, total = self._mpi, self._world.Allreduce, self._mpi.IN_PLACE, self._mpi.SUM
        if work["what"] == "gradients":
            arrays = [np.zeros(shape, np.float32) for shape in work["shapes"]]
            operands = [[array, mpi.FLOAT] for array in arrays]

            def one_by_one() -> None:
                for operand in operands:
                    call(in_place, operand, total)

            return GradientsInPlace(arrays, one_by_one, self)
        is_plain = work["variant"] == "plain"
        if work["what"] != "allreduce":
            kind = KINDS[work["what"]]

            def prepare(input_array: Array, count: int, place: RankOfWorld) -> Run:
                return kind.mpi(mpi, input_array, count, place, not is_plain)

            return Collective(work, self, prepare)
        buffer = np.zeros(work["bytes"] // 4, np.float32)
        if is_plain:
            return SumInPlace(work, buffer, lambda: call(in_place, buffer), self)
        spec: list[Any] = [buffer, mpi.FLOAT]
        return SumInPlace(work, buffer, lambda: call(in_place, spec, total), self)


def join(_: dict[str, Any]) -> MpiLibrary:
    """Joins MPI's world as a rank."""
    return MpiLibrary()
