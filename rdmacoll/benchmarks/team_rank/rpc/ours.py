"""Workers and servers of an asynchronous parameter server of rdmacoll, with numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import numpy as np

from ..job import Job, Work
from ..values import Array
from .routes import NoWork, RankContext, buffers_of, payload_of, rank_context, wrong_buffers

# The update is a subtraction, since no optimizer costs less.
_RULE = "optimizer=sgd\nschedule=constant\ninitial_learning_rate=1.0\n"


def _start(servers: int) -> None:
    """Joins the world. On a server it returns when all workers have left."""
    import rdmacoll

    rdmacoll.init(mode="ps", num_servers=servers, sync=False)


def _moves() -> tuple[Callable[..., object], Callable[..., object]]:
    """(push, pull), each for a mapping from names to arrays, in one request to each server."""
    from rdmacoll._abi import mirror
    from rdmacoll.ps import calls

    move = calls.current().move
    return lambda arrays: move(mirror.PS_PUSH, arrays), lambda arrays: move(mirror.PS_PULL, arrays)


class OurServers:
    """A worker. Each worker has variables of its own, with the sizes of its payload's buffers."""

    def __init__(self, context: RankContext) -> None:
        import rdmacoll

        self.context, self.rank, self.ranks = context, context.rank, context.ranks
        self.facts = {"version": rdmacoll.__version__, "numpy": np.__version__}
        # The expected values at the servers, by sizes.
        self._stored: dict[tuple[int, ...], list[Array]] = {}
        if not context.is_server:
            _start(context.servers)

    def make(self, work: Work) -> Job:
        """The job of a work. round-trip: `exchange`. push, pull: of the same variables, also in one
        request."""
        return NoWork() if self.context.is_server else _Calls(self, work)

    def stored(self, sizes: Sequence[int]) -> tuple[list[str], list[Array]]:
        """The names of this worker's variables of these sizes, and their expected values at the servers."""
        from rdmacoll import ps

        key = tuple(sizes)
        if key not in self._stored:
            number = len(self._stored)
            of_all = {
                f"{number}/{worker}/{index}": np.zeros(size // 4, np.float32)
                for worker in range(self.context.workers)
                for index, size in enumerate(sizes)
            }
            ps.declare(of_all, ps.Rule(_RULE))
            self._stored[key] = [np.zeros(size // 4, np.float32) for size in sizes]
        number = list(self._stored).index(key)
        return [f"{number}/{self.rank}/{index}" for index in range(len(sizes))], self._stored[key]


class OurServer(OurServers):
    """A server, which needs the main thread."""

    def serve(self) -> None:
        """Serves until the workers have left."""
        _start(self.context.servers)


class _Calls:
    """All timed pushes send the same gradients. So each variable must have fallen by its gradient times
    the number of pushes."""

    def __init__(self, library: OurServers, work: Work) -> None:
        from rdmacoll import ps

        self._rank, self._exchange_kind, self._sizes = library.rank, work["what"], payload_of(work)
        self._names, self._stored = library.stored(self._sizes)
        self._push, self._pull = _moves()
        self._exchange = ps.exchange
        self._gradients: dict[str, Array]  # set by `check`, which comes before any timed call
        self._values = {name: np.empty(stored.shape, np.float32) for name, stored in self._named()}
        self._pushes = 0
        # A call returns when the servers have done it. So each payload in flight needs a thread.
        self.each = work["under_way_of_ours"]
        self._threads = ThreadPoolExecutor(self.each) if self.each > 1 else None

    def _named(self) -> Iterator[tuple[str, Array]]:
        return zip(self._names, self._stored)

    def call(self) -> None:
        """Moves one payload, or one by each thread."""
        if self._threads is None:
            self._one()
        else:
            for one in [self._threads.submit(self._one) for _ in range(self.each)]:
                one.result()
        self._pushes += self.each if self._exchange_kind != "pull" else 0

    def _one(self) -> None:
        if self._exchange_kind == "push":
            self._push(self._gradients)
        elif self._exchange_kind == "pull":
            self._pull(self._values)
        else:
            self._values = self._exchange(self._gradients)

    def check(self, turn: int) -> int:
        """Calls with the gradients of this turn, and counts wrong buffers."""
        self._gradients = dict(zip(self._names, buffers_of(self._rank, turn, self._sizes)))
        if self._exchange_kind == "pull":
            self._push(self._gradients)
            self._pushes += 1
        self.call()
        return self.after()

    def clear(self) -> None:
        """Overwrites the received values. The timed calls go on with the same gradients."""
        for values in self._values.values():
            values[...] = np.nan

    def after(self) -> int:
        """The number of wrong buffers: at the servers after all pushes, compared exactly, and in the last
        call's answer."""
        pushes, self._pushes = self._pushes, 0
        for stored, gradient in zip(self._stored, self._gradients.values()):
            stored -= np.float32(pushes) * gradient
        # With several exchanges at once, any of them may have been the last.
        returns_values = self._exchange_kind == "pull" or (
            self._exchange_kind == "round-trip" and self.each == 1
        )
        wrong = wrong_buffers(list(self._values.values()), self._stored) if returns_values else 0
        self._pull(self._values)
        return wrong + wrong_buffers(list(self._values.values()), self._stored)


def join(options: dict[str, Any]) -> OurServers:
    """Joins as a worker or a server."""
    context = rank_context(options)
    return OurServer(context) if context.is_server else OurServers(context)
