"""Workers and servers of rdmacoll, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..job import Job, Work
from ..rpc.routes import NoWork, RankContext, rank_context
from ..values import Array
from .step import LocalTraining, Step, load


class OurServer:
    """A server, which needs the main thread. It needs no TensorFlow."""

    def __init__(self, context: RankContext, *, is_sync: bool) -> None:
        import rdmacoll

        self._context, self._is_sync = context, is_sync
        self.rank, self.ranks = context.rank, context.ranks
        self.facts = {"version": rdmacoll.__version__}

    def make(self, _: Work) -> Job:
        """The job of a server, which answers by itself."""
        return NoWork()

    def serve(self) -> None:
        """Serves until the workers have left."""
        import rdmacoll

        rdmacoll.init(mode="ps", num_servers=self._context.servers, sync=self._is_sync)


class OurWorker:
    """A worker."""

    def __init__(self, context: RankContext, *, is_sync: bool) -> None:
        import tensorflow as tf

        import rdmacoll

        rdmacoll.init(mode="ps", num_servers=context.servers, sync=is_sync)
        self._context, self._tf = context, tf
        self.rank, self.ranks = context.rank, context.ranks
        self.facts = {"version": rdmacoll.__version__, "tensorflow": tf.__version__}

    def make(self, work: Work) -> Job:
        """The steps of a work, with or without servers."""
        sides = {"sync": Synchronous, "async": Asynchronous, "none": LocalTraining}
        return Step(sides[work["updates"]](self._tf, self._context, work), work)


class Synchronous(LocalTraining):
    """Servers sum the gradients. Every worker has variables of its own, which stay equal."""

    def update(self, loss: Any, variables: list[Any]) -> tuple[Any, Any]:
        """The step of the wrapped optimizer."""
        import rdmacoll

        plain = self.tf.compat.v1.train.GradientDescentOptimizer(self.rate)
        self._step = rdmacoll.DistributedOptimizer(plain).minimize(loss, var_list=variables)
        return self._step, self._step

    def barrier(self) -> None:
        """Waits for all workers, by the engine's barrier."""
        import rdmacoll

        rdmacoll.engine.barrier()

    def applied_workers(self) -> list[int]:
        """All workers."""
        return list(range(self.workers))


class Asynchronous(Synchronous):
    """Servers own the variables. A step pushes its gradients and receives the new values."""

    def begin(self, session: Any, variables: list[Any], values: Sequence[Array]) -> None:
        """Runs a first step: it gives the values to the servers, and makes its update."""
        super().begin(session, variables, values)
        session.run(self._step)

    def read(self, session: Any, variables: list[Any]) -> list[Array]:
        """The values at the servers, which this worker's variables get as well."""
        from rdmacoll import ps

        values = [ps.pull(variable.op.name) for variable in variables]
        load(session, variables, values)
        return values

    def applied_workers(self) -> list[int]:
        """Worker 0, while the others push nothing."""
        return [0] if self.rank == 0 else []


def join(options: dict[str, Any]) -> OurWorker | OurServer:
    """Joins as a worker or a server."""
    context, is_sync = rank_context(options), options["updates"] == "sync"
    return OurServer(context, is_sync=is_sync) if context.is_server else OurWorker(context, is_sync=is_sync)
