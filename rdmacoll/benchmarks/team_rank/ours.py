"""Ranks of rdmacoll with numpy."""

from __future__ import annotations

import importlib
import time
from typing import Any, Callable

import numpy as np

from .job import Collective, GradientsInPlace, Job, SumInPlace, Work
from .kinds import KINDS, RankOfWorld, Run
from .values import Array


class OurLibrary:
    """rdmacoll.engine, in place."""

    def __init__(self) -> None:
        begin = time.monotonic()
        import rdmacoll

        imported = time.monotonic()
        rdmacoll.init()
        self.start_s = {"import": imported - begin, "init": time.monotonic() - imported}
        self._engine = rdmacoll.engine
        self._sum = rdmacoll.Sum
        self.rank, self.ranks = rdmacoll.rank(), rdmacoll.size()
        self.facts = {
            "version": rdmacoll.__version__,
            "numpy": np.__version__,
            "transport": _transport(),
        }

    @property
    def barrier(self) -> Callable[[], object]:
        """A prepared barrier."""
        found: Callable[[], object] = self._engine.prepare_barrier()
        return found

    def make(self, work: Work) -> Job:
        """The job of a work, with numpy arrays. prepared: `prepare_allreduce`. plain: `allreduce`. The same
        for other collectives."""
        engine, total = self._engine, self._sum
        if work["what"] == "gradients":
            arrays = [np.zeros(shape, np.float32) for shape in work["shapes"]]
            return GradientsInPlace(
                arrays, lambda: engine.grouped_allreduce(arrays, total, "gradients", arrays), self
            )
        is_plain = work["variant"] == "plain"
        if work["what"] != "allreduce":
            kind = KINDS[work["what"]]

            def prepare(input_array: Array, _: int, place: RankOfWorld) -> Run:
                return (kind.plain if is_plain else kind.ours)(engine, input_array, place)

            return Collective(work, self, prepare)
        buffer = np.zeros(work["bytes"] // 4, np.float32)
        if is_plain:
            return SumInPlace(work, buffer, lambda: engine.allreduce(buffer, total, out=buffer), self)
        return SumInPlace(work, buffer, engine.prepare_allreduce(buffer, buffer, total), self)


def _transport() -> str:
    """The engine's transport. No public name tells it, and another build may have another private name."""
    try:
        world = importlib.import_module("rdmacoll._world.world")
        return str(world.describe().get("transport"))
    except (ImportError, AttributeError):
        return "unknown"


def join(_: dict[str, Any]) -> OurLibrary:
    """Joins rdmacoll's world as a rank."""
    return OurLibrary()
