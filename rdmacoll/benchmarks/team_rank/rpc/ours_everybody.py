"""Ranks of rdmacoll that send a payload to every other rank, by an allgather of all its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..job import Job, Work
from ..values import Array
from .routes import RankContext, buffers_of, payload_of, rank_context, wrong_buffers


class OurRanks:
    """A rank of rdmacoll.engine."""

    def __init__(self, context: RankContext) -> None:
        import rdmacoll

        rdmacoll.init()
        self.engine = rdmacoll.engine
        self.context, self.rank, self.ranks = context, context.rank, context.ranks
        self.facts = {"version": rdmacoll.__version__, "numpy": np.__version__}

    def make(self, work: Work) -> Job:
        """The job of a work, with numpy arrays."""
        return _Gathering(self, payload_of(work))


class _Gathering:
    def __init__(self, library: OurRanks, sizes: list[int]) -> None:
        self._library, self._sizes, self._turn = library, sizes, 0
        self._buffers: list[Array]  # set by `check`, which comes before any timed call
        self._gathered: list[Array] = []

    def call(self) -> None:
        """Gathers the payloads of all ranks on every rank."""
        self._gathered = self._library.engine.grouped_allgather(self._buffers, "payload")

    def check(self, turn: int) -> int:
        """Gathers the values of this turn, and counts wrong buffers."""
        self._turn = turn
        self._buffers = buffers_of(self._library.rank, turn, self._sizes)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Forgets the gathered buffers."""
        self._gathered = []

    def after(self) -> int:
        """The number of wrong buffers. A right one holds the buffers of all ranks, one after the other."""
        of_ranks = [buffers_of(rank, self._turn, self._sizes) for rank in range(self._library.ranks)]
        return wrong_buffers(self._gathered, [np.concatenate(of_buffer) for of_buffer in zip(*of_ranks)])


def join(options: dict[str, Any]) -> OurRanks:
    """Joins rdmacoll's world as a rank."""
    return OurRanks(rank_context(options))
