"""Ranks of rdmacoll that send a payload to every other rank: an allgather of all its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..job import Job, Work
from ..values import Array
from .routes import Here, buffers_of, here_of, payload_of, wrong_buffers


class OurRanks:
    """rdmacoll.engine."""

    def __init__(self, here: Here) -> None:
        import rdmacoll

        rdmacoll.init()
        self.engine = rdmacoll.engine
        self.here, self.rank, self.ranks = here, here.rank, here.ranks
        self.facts = {"version": rdmacoll.__version__, "numpy": np.__version__}

    def make(self, work: Work) -> Job:
        """Of numpy arrays."""
        return _Gathering(self, payload_of(work))


class _Gathering:
    def __init__(self, library: OurRanks, sizes: list[int]) -> None:
        self._library, self._sizes, self._turn = library, sizes, 0
        self._buffers: list[Array]  # by `check`, without which nothing may be timed
        self._gathered: list[Array] = []

    def call(self) -> None:
        """Everybody has everybody's payload."""
        self._gathered = self._library.engine.grouped_allgather(self._buffers, "payload")

    def check(self, turn: int) -> int:
        """Of values of this turn."""
        self._turn = turn
        self._buffers = buffers_of(self._library.rank, turn, self._sizes)
        self.call()
        return self.after()

    def clear(self) -> None:
        """What was gathered."""
        self._gathered = []

    def after(self) -> int:
        """Each buffer is those of all ranks, one after the other."""
        of_ranks = [buffers_of(rank, self._turn, self._sizes) for rank in range(self._library.ranks)]
        return wrong_buffers(self._gathered, [np.concatenate(same) for same in zip(*of_ranks)])


def join(told: dict[str, Any]) -> OurRanks:
    """This process as a rank."""
    return OurRanks(here_of(told))
