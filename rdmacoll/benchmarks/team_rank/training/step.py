"""One worker's training steps, and what must come out of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..job import Work
from ..rpc.routes import Here
from ..values import Array
from .networks import batch_of, initial, loss_of

# Of what a step changes at most, and of the largest value: order of additions, fused multiplications.
_OF_CHANGE, _OF_VALUE = 1e-3, 4e-7


class Side(Protocol):
    """Where variables are, and how gradients come there."""

    rank: int
    workers: int
    tf: Any
    target: str  # of sessions
    config: Any  # of sessions

    def variables(self, values: Sequence[Array]) -> list[Any]:
        """In the graph; the model is computed of these. values: what they begin with."""

    def update(self, loss: Any, variables: list[Any]) -> tuple[Any, Any]:
        """A step of plain SGD in the graph: what is timed, and the same without waiting for other workers."""

    def begin(self, session: Any, variables: list[Any], values: Sequence[Array]) -> None:
        """The variables have these values, at the servers too."""

    def read(self, session: Any, variables: list[Any]) -> list[Array]:
        """What the servers have; where this worker has variables of its own, these are so too."""

    def barrier(self) -> None:
        """All workers are here."""

    def whose(self) -> list[int]:
        """Of the checked step: the workers whose gradients' mean it applies. None: somebody else takes it."""


class Step:
    """A job: the session's run of one step."""

    def __init__(self, side: Side, work: Work) -> None:
        self._side, self._work = side, work
        tf, v1 = side.tf, side.tf.compat.v1
        values = initial(work["shapes"])
        with tf.Graph().as_default():
            self._variables = side.variables(values)
            loss = self._loss(side.rank, self._variables)
            timed, checked = side.update(loss, self._variables)
            self._session = v1.Session(side.target, config=side.config)
            self._session.run(v1.local_variables_initializer(), self._data)
            side.begin(self._session, self._variables, values)
            self.call = self._session.make_callable(timed)
            self._checked = self._session.make_callable(checked)
            self._loss_now = self._session.make_callable(loss)
        self._first_loss: float | None = None

    def _loss(self, rank: int, weights: Sequence[Any]) -> Any:
        """Of a worker's batch, which lies in this process: no constant, or TensorFlow computes with it before
        the first step."""
        tf, v1, work = self._side.tf, self._side.tf.compat.v1, self._work
        self._data, tensors = {}, []
        for values in batch_of(rank, work["batch"], work["image"], work["shapes"][-1][0]):
            given = v1.placeholder(values.dtype, values.shape)
            self._data[given] = values
            local = [v1.GraphKeys.LOCAL_VARIABLES]
            tensors.append(v1.Variable(given, trainable=False, collections=local, use_resource=True))
        return loss_of(tf, work["model"], weights, tensors[0].read_value(), tensors[1].read_value())

    def check(self, _: int) -> int:
        """One step beside the same one computed here alone: how many variables are not what they must be."""
        side = self._side
        side.barrier()  # nobody takes steps
        if self._first_loss is None:
            self._first_loss = float(self._loss_now())
        wrong = self._wrong(side.whose())
        side.barrier()
        return wrong

    def _wrong(self, workers: Sequence[int]) -> int:
        if not workers:
            return 0
        before = self._side.read(self._session, self._variables)
        changes = self._expected(before, workers)
        self._checked()
        mine = self._session.run(self._variables)
        after = self._side.read(self._session, self._variables)
        return wrong_steps(before, changes, after) + sum(
            not np.array_equal(one, other) for one, other in zip(mine, after)
        )

    def _expected(self, before: Sequence[Array], workers: Sequence[int]) -> list[Array]:
        """What plain SGD adds to each variable, without any server."""
        tf, v1 = self._side.tf, self._side.tf.compat.v1
        sums = [np.zeros_like(values) for values in before]
        for worker in workers:
            with tf.Graph().as_default():
                weights = [v1.placeholder(tf.float32, values.shape) for values in before]
                loss = self._loss(worker, weights)
                with v1.Session() as session:
                    session.run(v1.local_variables_initializer(), self._data)
                    fed = dict(zip(weights, before))
                    gradients = session.run(tf.gradients(loss, weights), fed)
            for total, gradient in zip(sums, gradients):
                total -= np.float32(self._work["rate"] / len(workers)) * gradient
        return sums

    def clear(self) -> None:
        """The most memory of this process is that of steps from here on."""
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def after(self) -> int:
        """The loss of this worker's batch is a number, and has fallen."""
        loss = float(self._loss_now())
        return 0 if self._first_loss is not None and loss < self._first_loss else 1


def wrong_steps(before: Sequence[Array], changes: Sequence[Array], after: Sequence[Array]) -> int:
    """How many variables were not changed as they must be, within a thousandth of the largest change of each
    and the rounding of float32; one where nothing changes at all.

    >>> zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    >>> wrong_steps([zero], [one], [one]), wrong_steps([zero], [one], [zero])
    (0, 1)
    >>> wrong_steps([one], [zero], [one])
    1
    """
    wrong = 0 if any(change.any() for change in changes) else 1
    for was, change, found in zip(before, changes, after):
        allowed = _OF_CHANGE * np.abs(change).max() + _OF_VALUE * np.abs(was).max()
        wrong += not np.abs(found - (was + change)).max() <= allowed
    return wrong


class Alone:
    """A side without servers: what a step takes that communicates nothing."""

    target, config = "", None  # of sessions: this process, as TensorFlow is by itself

    def __init__(self, tf: Any, here: Here, work: Work) -> None:
        self.tf, self.rank, self.workers = tf, here.rank, here.workers
        self.rate = work["rate"]

    def variables(self, values: Sequence[Array]) -> list[Any]:
        """This worker's."""
        return own_variables(self.tf, values)

    def update(self, loss: Any, variables: list[Any]) -> tuple[Any, Any]:
        """Of the plain optimizer."""
        step = self.tf.compat.v1.train.GradientDescentOptimizer(self.rate).minimize(loss, var_list=variables)
        return step, step

    def begin(self, session: Any, variables: list[Any], values: Sequence[Array]) -> None:
        """They are here alone."""
        load(session, variables, values)

    def read(self, session: Any, variables: list[Any]) -> list[Array]:
        """Its own."""
        return list(session.run(variables))

    def barrier(self) -> None:
        """Nobody is waited for."""

    def whose(self) -> list[int]:
        """Its own."""
        return [self.rank]


def own_variables(tf: Any, values: Sequence[Array]) -> list[Any]:
    """In this process, without a value."""
    v1 = tf.compat.v1
    return [
        v1.get_variable(f"w{number}", value.shape, tf.float32, use_resource=True)
        for number, value in enumerate(values)
    ]


def load(session: Any, variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Assigns, one after the other: together they might be more than a message may have."""
    for variable, value in zip(variables, values):
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})
