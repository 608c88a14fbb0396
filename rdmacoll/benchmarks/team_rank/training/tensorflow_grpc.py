"""TensorFlow's own parameter servers over gRPC, as of TensorFlow 1: `tf.distribute.Server`, a graph on each
worker with variables on the servers. The servers apply the gradients of each worker when they arrive.

Synchronous training works as `cross_replica_sync` of tf_cnn_benchmarks: queues of tokens on a server end a
step when the steps of all workers have ended. SyncReplicasOptimizer is not used: it drops late gradients, so
that workers with a fixed number of steps could wait for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..job import Job, Work
from ..rpc.routes import NoWork, RankContext, rank_context, shared
from ..rpc.tensorflow_grpc import server_of
from ..values import Array
from .step import LocalTraining, Step, load


class TensorFlow:
    """A task of the cluster."""

    def __init__(self, context: RankContext) -> None:
        import tensorflow as tf

        self._tf, self._context = tf, context
        self.rank, self.ranks = context.rank, context.ranks
        self.facts = {"version": f"TensorFlow {tf.__version__}"}
        self._config = tf.compat.v1.ConfigProto()
        self._server = server_of(tf, context, self._config)

    def make(self, work: Work) -> Job:
        """The steps of a work, with or without servers."""
        if self._context.is_server:
            return NoWork()
        if work["updates"] == "none":
            return Step(LocalTraining(self._tf, self._context, work), work)
        return Step(Servers(self._tf, self._context, work, (self._server.target, self._config)), work)


class Servers(LocalTraining):
    """The variables are on the servers alone, and shared by name."""

    def __init__(self, tf: Any, context: RankContext, work: Work, session: tuple[str, Any]) -> None:
        super().__init__(tf, context, work)
        self.target, self.config = session
        self._context, self._is_sync = context, work["updates"] == "sync"
        self._barrier_session: Any = None

    def variables(self, values: Sequence[Array]) -> list[Any]:
        """Creates the variables. Servers share them by bytes, as with the greedy strategy of
        replica_device_setter."""
        v1 = self.tf.compat.v1
        sizes = [4 * math.prod(value.shape) for value in values]
        server_of = {
            number: server
            for server, part in enumerate(shared(sizes, self._context.servers))
            for number in part
        }
        found = []
        for number, value in enumerate(values):
            with v1.device(self._context.task_of(self.workers + server_of[number])):
                found.append(v1.get_variable(f"w{number}", value.shape, use_resource=True))
        return found

    def update(self, loss: Any, variables: list[Any]) -> tuple[Any, Any]:
        """The step of the plain optimizer. TensorFlow places its updates beside the variables."""
        step, _ = super().update(loss, variables)
        if not self._is_sync:
            return step, step
        with self.tf.control_dependencies([step]):
            return self._wait("step"), step

    def _wait(self, name: str) -> Any:
        """Gives a token to each other worker, and takes one from each of them."""
        v1 = self.tf.compat.v1
        with v1.device(self._context.task_of(self.workers)):
            queues = [
                v1.FIFOQueue(2 * self.workers, [self.tf.bool], [[]], shared_name=f"{name}_{worker}")
                for worker in range(self.workers)
            ]
            enqueued = [queue.enqueue(False) for worker, queue in enumerate(queues) if worker != self.rank]
            dequeued = queues[self.rank].dequeue_many(self.workers - 1)
            return v1.group(*enqueued, dequeued.op)

    def begin(self, session: Any, variables: list[Any], values: Sequence[Array]) -> None:
        """Sets the variables, on worker 0 only."""
        if self.rank == 0:
            load(session, variables, values)
        with self.tf.Graph().as_default():
            self._session = self.tf.compat.v1.Session(self.target, config=self.config)
            self._meet = self._session.make_callable(self._wait("meet"))

    def barrier(self) -> None:
        """Waits for all workers, by tokens."""
        self._meet()

    def applied_workers(self) -> list[int]:
        """Worker 0, while the others push nothing."""
        return [0] if self.rank == 0 else []


def join(options: dict[str, Any]) -> TensorFlow:
    """Joins the cluster as a worker or a server."""
    return TensorFlow(rank_context(options))
