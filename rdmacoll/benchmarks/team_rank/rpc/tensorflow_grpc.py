"""TensorFlow's own parameter servers over gRPC: `tf.distribute.Server`, graphs across devices, sessions.

The buffers of a payload are tensors. TensorFlow sends each by a call of its own. A session costs more than
its transfers, so one `session.run` moves several payloads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..job import Job, Work
from ..values import Array
from .routes import NoWork, RankContext, buffers_of, payload_of, rank_context, wrong_buffers

_ROUND_TRIPS = 8  # in one `session.run`, one after the other


class TensorFlow:
    """A task of the cluster. A task that calls others has a session at its own server."""

    def __init__(self, context: RankContext) -> None:
        import tensorflow as tf

        self.tf, self.v1 = tf, tf.compat.v1
        self.context, self.rank, self.ranks = context, context.rank, context.ranks
        self.facts = {"version": f"TensorFlow {tf.__version__}"}
        # TensorFlow runs the graphs as they are written: it folds, merges and drops nothing.
        self.config = self.v1.ConfigProto()
        self.config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.config.graph_options.optimizer_options.opt_level = -1
        self.server = server_of(tf, context, self.config)

    def make(self, work: Work) -> Job:
        """The graph and the session of a work."""
        return NoWork() if self.context.is_server else _Graph(self, work)


def server_of(tf: Any, context: RankContext, config: Any) -> Any:
    """The server of this rank. Its sessions see the tasks that this rank calls, and no others."""
    config.device_filters.extend(context.task_of(rank) for rank in [context.rank, *context.called])
    job, _, task = context.task_of(context.rank)[len("/job:") :].partition("/task:")
    return tf.distribute.Server(context.cluster, job_name=job, task_index=int(task), config=config)


class _Graph:
    def __init__(self, library: TensorFlow, work: Work) -> None:
        self._context, self._sizes, self._exchange_kind = library.context, payload_of(work), work["what"]
        self._buffers: list[Array]  # set by `check`, which comes before any timed call
        self._v1, self._own_device = library.v1, library.context.task_of(library.rank)
        self.each = _ROUND_TRIPS if self._exchange_kind == "round-trip" else work["under_way"]
        with library.tf.Graph().as_default():
            routes = self._context.routes(self._sizes)
            # (number of a buffer, device to which it goes)
            self._routes = [
                (number, library.context.task_of(rank)) for rank, part in routes for number in part
            ]
            self._inputs = [self._variable("given", route, self._own_device) for route in self._routes]
            self._at_servers = [self._variable("there", route, route[1]) for route in self._routes]
            self._last = [self._variable("last", route, self._own_device) for route in self._routes]
            tensors = [*self._inputs, *self._at_servers, *self._last]
            fed = [self._v1.placeholder(library.tf.float32, tensor.shape) for tensor in tensors]
            loads = [tensor.assign(value).op for tensor, value in zip(tensors, fed)]
            do = {"round-trip": self._round_trips, "push": self._pushes, "pull": self._pulls}[
                self._exchange_kind
            ]()
            self._session = self._v1.Session(library.server.target, config=library.config)
            self._load = self._session.make_callable(loads, feed_list=fed)
            stored = self._at_servers if self._exchange_kind == "push" else self._last
            self._read = self._session.make_callable([tensor.read_value() for tensor in stored])
            self.call = self._session.make_callable(do)

    def _variable(self, label: str, route: tuple[int, str], device: str) -> Any:
        # The name is unique, since servers keep variables by their names.
        size, task_name = self._sizes[route[0]], route[1].strip("/").replace("/", "_").replace(":", "_")
        payload = f"{len(self._sizes)}_{sum(self._sizes)}"
        name = f"{label}_{self._context.rank}_{task_name}_{payload}_{route[0]}_{size}"
        with self._v1.device(device):
            return self._v1.get_variable(name, [size // 4], use_resource=True, trainable=False)

    def _at(self, device: str, tensors: list[Any]) -> list[Any]:
        with self._v1.device(device):
            return [self._v1.identity(tensor) for tensor in tensors]

    def _round_trips(self) -> Any:
        with self._v1.device(self._own_device):
            local = [variable.read_value() for variable in self._inputs]
        for _ in range(_ROUND_TRIPS):
            # The whole payload is back before the next one leaves.
            with self._v1.control_dependencies(local):
                leaving = self._at(self._own_device, local)
            remote = [self._at(route[1], [tensor])[0] for route, tensor in zip(self._routes, leaving)]
            local = self._at(self._own_device, remote)
        return self._store(local)

    def _pushes(self) -> Any:
        done = []
        for _ in range(self.each):
            # A run sends a tensor to a device only once, so each payload has tensors of its own.
            leaving = self._at(self._own_device, [variable.read_value() for variable in self._inputs])
            for (_, device), variable, tensor in zip(self._routes, self._at_servers, leaving):
                with self._v1.device(device):
                    done.append(variable.assign(tensor).op)
        return self._all(done)

    def _pulls(self) -> Any:
        local: list[Any] = []
        arrived: list[Any] = []
        for _ in range(self.each):
            remote = []
            for (_, device), variable in zip(self._routes, self._at_servers):
                with self._v1.device(device):
                    remote.append(variable.read_value())
            local = self._at(self._own_device, remote)
            arrived += local
        return self._all([self._store(local), *(tensor.op for tensor in arrived)])

    def _store(self, local: list[Any]) -> Any:
        with self._v1.device(self._own_device):
            return self._all([last.assign(tensor).op for last, tensor in zip(self._last, local)])

    def _all(self, done: list[Any]) -> Any:
        with self._v1.device(self._own_device):
            return self._v1.group(*done)

    def check(self, turn: int) -> int:
        """Runs the graph with the values of this turn, and counts wrong buffers."""
        buffers = buffers_of(self._context.rank, turn, self._sizes)
        self._buffers = [buffers[number] for number, _ in self._routes]
        zeros = [np.zeros_like(buffer) for buffer in self._buffers]
        self._load(*self._buffers, *(self._buffers if self._exchange_kind == "pull" else zeros), *zeros)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Changes nothing: the timed calls go on with the same values."""

    def after(self) -> int:
        """The number of wrong buffers after the last run."""
        return wrong_buffers(self._read(), self._buffers)


def join(options: dict[str, Any]) -> TensorFlow:
    """Joins the cluster as a worker or a server."""
    return TensorFlow(rank_context(options))
