"""Workers and servers of rdmacoll, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..job import Job, Work
from ..rpc.routes import Here, Nothing, here_of
from ..values import Array
from .step import Alone, Step, load


class OurServer:
    """A server, which needs the main thread. It needs no TensorFlow."""

    def __init__(self, here: Here, *, is_sync: bool) -> None:
        import rdmacoll

        self._here, self._is_sync = here, is_sync
        self.rank, self.ranks = here.rank, here.ranks
        self.facts = {"version": rdmacoll.__version__}

    def make(self, _: Work) -> Job:
        """The job of a server, which answers by itself."""
        return Nothing()

    def serve(self) -> None:
        """Serves until the workers have left."""
        import rdmacoll

        rdmacoll.init(mode="ps", num_servers=self._here.servers, sync=self._is_sync)


class OurWorker:
    """A worker."""

    def __init__(self, here: Here, *, is_sync: bool) -> None:
        import tensorflow as tf

        import rdmacoll

        rdmacoll.init(mode="ps", num_servers=here.servers, sync=is_sync)
        self._here, self._tf = here, tf
        self.rank, self.ranks = here.rank, here.ranks
        self.facts = {"version": rdmacoll.__version__, "tensorflow": tf.__version__}

    def make(self, work: Work) -> Job:
        """The steps of a work, with or without servers."""
        sides = {"sync": Synchronous, "async": Asynchronous, "none": Alone}
        return Step(sides[work["updates"]](self._tf, self._here, work), work)


class Synchronous(Alone):
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

    def whose(self) -> list[int]:
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

    def whose(self) -> list[int]:
        """Worker 0, while the others push nothing."""
        return [0] if self.rank == 0 else []


def join(told: dict[str, Any]) -> OurWorker | OurServer:
    """Joins as a worker or a server."""
    here, is_sync = here_of(told), told["updates"] == "sync"
    return OurServer(here, is_sync=is_sync) if here.is_server else OurWorker(here, is_sync=is_sync)
