"""TensorFlow's own parameter servers over gRPC: `tf.distribute.Server`, graphs across devices, sessions.

The buffers of a payload are tensors. TensorFlow sends each by a call of its own. A session costs more than
its transfers, so one `session.run` moves several payloads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..job import Job, Work
from ..values import Array
from .routes import Here, Nothing, buffers_of, here_of, payload_of, wrong_buffers

_ROUND_TRIPS = 8  # in one `session.run`, one after the other


class TensorFlow:
    """A task of the cluster. A task that calls others has a session at its own server."""

    def __init__(self, here: Here) -> None:
        import tensorflow as tf

        self.tf, self.v1 = tf, tf.compat.v1
        self.here, self.rank, self.ranks = here, here.rank, here.ranks
        self.facts = {"version": f"TensorFlow {tf.__version__}"}
        # TensorFlow runs the graphs as they are written: it folds, merges and drops nothing.
        self.config = self.v1.ConfigProto()
        self.config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.config.graph_options.optimizer_options.opt_level = -1
        self.server = server_of(tf, here, self.config)

    def make(self, work: Work) -> Job:
        """The graph and the session of a work."""
        return Nothing() if self.here.is_server else _Graph(self, work)


def server_of(tf: Any, here: Here, config: Any) -> Any:
    """The server of this rank. Its sessions see the tasks that this rank calls, and no others."""
    config.device_filters.extend(here.task_of(rank) for rank in [here.rank, *here.called])
    job, _, task = here.task_of(here.rank)[len("/job:") :].partition("/task:")
    return tf.distribute.Server(here.cluster, job_name=job, task_index=int(task), config=config)


class _Graph:
    def __init__(self, library: TensorFlow, work: Work) -> None:
        self._here, self._sizes, self._what = library.here, payload_of(work), work["what"]
        self._buffers: list[Array]  # set by `check`, which comes before any timed call
        self._v1, self._own = library.v1, library.here.task_of(library.rank)
        self.each = _ROUND_TRIPS if self._what == "round-trip" else work["under_way"]
        with library.tf.Graph().as_default():
            routes = self._here.routes(self._sizes)
            # (number of a buffer, device to which it goes)
            self._ways = [(number, library.here.task_of(rank)) for rank, part in routes for number in part]
            self._given = [self._variable("given", way, self._own) for way in self._ways]
            self._there = [self._variable("there", way, way[1]) for way in self._ways]
            self._last = [self._variable("last", way, self._own) for way in self._ways]
            tensors = [*self._given, *self._there, *self._last]
            fed = [self._v1.placeholder(library.tf.float32, tensor.shape) for tensor in tensors]
            loads = [tensor.assign(value).op for tensor, value in zip(tensors, fed)]
            do = {"round-trip": self._round_trips, "push": self._pushes, "pull": self._pulls}[self._what]()
            self._session = self._v1.Session(library.server.target, config=library.config)
            self._load = self._session.make_callable(loads, feed_list=fed)
            kept = self._there if self._what == "push" else self._last
            self._read = self._session.make_callable([tensor.read_value() for tensor in kept])
            self.call = self._session.make_callable(do)

    def _variable(self, what: str, way: tuple[int, str], device: str) -> Any:
        # The name is unique, since servers keep variables by their names.
        size, place = self._sizes[way[0]], way[1].strip("/").replace("/", "_").replace(":", "_")
        name = f"{what}_{self._here.rank}_{place}_{len(self._sizes)}_{sum(self._sizes)}_{way[0]}_{size}"
        with self._v1.device(device):
            return self._v1.get_variable(name, [size // 4], use_resource=True, trainable=False)

    def _at(self, device: str, tensors: list[Any]) -> list[Any]:
        with self._v1.device(device):
            return [self._v1.identity(tensor) for tensor in tensors]

    def _round_trips(self) -> Any:
        with self._v1.device(self._own):
            here = [variable.read_value() for variable in self._given]
        for _ in range(_ROUND_TRIPS):
            # The whole payload is back before the next one leaves.
            with self._v1.control_dependencies(here):
                leaving = self._at(self._own, here)
            there = [self._at(way[1], [tensor])[0] for way, tensor in zip(self._ways, leaving)]
            here = self._at(self._own, there)
        return self._keep(here)

    def _pushes(self) -> Any:
        done = []
        for _ in range(self.each):
            # A run sends a tensor to a device only once, so each payload has tensors of its own.
            leaving = self._at(self._own, [variable.read_value() for variable in self._given])
            for (_, device), variable, tensor in zip(self._ways, self._there, leaving):
                with self._v1.device(device):
                    done.append(variable.assign(tensor).op)
        return self._all(done)

    def _pulls(self) -> Any:
        here: list[Any] = []
        arrived: list[Any] = []
        for _ in range(self.each):
            there = []
            for (_, device), variable in zip(self._ways, self._there):
                with self._v1.device(device):
                    there.append(variable.read_value())
            here = self._at(self._own, there)
            arrived += here
        return self._all([self._keep(here), *(tensor.op for tensor in arrived)])

    def _keep(self, here: list[Any]) -> Any:
        with self._v1.device(self._own):
            return self._all([last.assign(tensor).op for last, tensor in zip(self._last, here)])

    def _all(self, done: list[Any]) -> Any:
        with self._v1.device(self._own):
            return self._v1.group(*done)

    def check(self, turn: int) -> int:
        """Runs the graph with the values of this turn, and counts wrong buffers."""
        buffers = buffers_of(self._here.rank, turn, self._sizes)
        self._buffers = [buffers[number] for number, _ in self._ways]
        nothing = [np.zeros_like(buffer) for buffer in self._buffers]
        self._load(*self._buffers, *(self._buffers if self._what == "pull" else nothing), *nothing)
        self.call()
        return self.after()

    def clear(self) -> None:
        """Changes nothing: the timed calls go on with the same values."""

    def after(self) -> int:
        """The number of wrong buffers after the last run."""
        return wrong_buffers(self._read(), self._buffers)


def join(told: dict[str, Any]) -> TensorFlow:
    """Joins the cluster as a worker or a server."""
    return TensorFlow(here_of(told))
