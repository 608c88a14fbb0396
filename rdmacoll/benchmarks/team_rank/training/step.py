"""The training steps of one worker, and the expected result of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..job import Work
from ..rpc.routes import RankContext
from ..values import Array
from .networks import batch_of, initial, loss_of

# Tolerance: a share of the largest change, and one of the largest value. It allows for the order of additions
# and for fused multiplications.
_OF_CHANGE, _OF_VALUE = 1e-3, 4e-7


class Side(Protocol):
    """One side of the comparison: the place of the variables, and the transport of the gradients."""

    rank: int
    workers: int
    tf: Any
    target: str  # target of sessions
    config: Any  # configuration of sessions

    def variables(self, values: Sequence[Array]) -> list[Any]:
        """Creates the variables of the model in the graph. values: their initial values."""

    def update(self, loss: Any, variables: list[Any]) -> tuple[Any, Any]:
        """A step of plain SGD in the graph: (the timed operation, the same step without waiting for other
        workers)."""

    def begin(self, session: Any, variables: list[Any], values: Sequence[Array]) -> None:
        """Sets the variables to these values, at the servers too."""

    def read(self, session: Any, variables: list[Any]) -> list[Array]:
        """The values at the servers. Variables of this worker itself have the same values afterwards."""

    def barrier(self) -> None:
        """Waits until all workers are here."""

    def applied_workers(self) -> list[int]:
        """The workers whose mean gradient the checked step applies. Empty: another worker takes that step."""


class Step:
    """A job: one step in a session."""

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
        """The loss of a worker's batch. The batch is in a variable of this process. It is no constant,
        since TensorFlow would compute with a constant before the first step."""
        tf, v1, work = self._side.tf, self._side.tf.compat.v1, self._work
        self._data, tensors = {}, []
        for values in batch_of(rank, work["batch"], work["image"], work["shapes"][-1][0]):
            placeholder = v1.placeholder(values.dtype, values.shape)
            self._data[placeholder] = values
            local = [v1.GraphKeys.LOCAL_VARIABLES]
            tensors.append(v1.Variable(placeholder, trainable=False, collections=local, use_resource=True))
        return loss_of(tf, work["model"], weights, tensors[0].read_value(), tensors[1].read_value())

    def check(self, _: int) -> int:
        """Compares one step with the same step computed in this process alone. Returns the number of wrong
        variables."""
        side = self._side
        side.barrier()  # from here on no worker takes steps
        if self._first_loss is None:
            self._first_loss = float(self._loss_now())
        wrong = self._wrong(side.applied_workers())
        side.barrier()
        return wrong

    def _wrong(self, workers: Sequence[int]) -> int:
        if not workers:
            return 0
        before = self._side.read(self._session, self._variables)
        changes = self._expected(before, workers)
        self._checked()
        own_values = self._session.run(self._variables)
        after = self._side.read(self._session, self._variables)
        return wrong_steps(before, changes, after) + sum(
            not np.array_equal(one, other) for one, other in zip(own_values, after)
        )

    def _expected(self, before: Sequence[Array], workers: Sequence[int]) -> list[Array]:
        """The changes of all variables by plain SGD, computed without servers."""
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
        """Resets the peak memory of this process, so that the steps alone determine it."""
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def after(self) -> int:
        """Checks that the loss of this worker's batch is a number and has fallen."""
        loss = float(self._loss_now())
        return 0 if self._first_loss is not None and loss < self._first_loss else 1


def wrong_steps(before: Sequence[Array], changes: Sequence[Array], after: Sequence[Array]) -> int:
    """The number of variables whose change is wrong. The tolerance is a thousandth of a variable's largest
    change, and the rounding of float32. A step that should change nothing counts as one wrong variable.

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


class LocalTraining:
    """A side without servers. Its steps show the time without communication."""

    target, config = "", None  # sessions run in this process, TensorFlow's default

    def __init__(self, tf: Any, context: RankContext, work: Work) -> None:
        self.tf, self.rank, self.workers = tf, context.rank, context.workers
        self.rate = work["rate"]

    def variables(self, values: Sequence[Array]) -> list[Any]:
        """The variables of this worker."""
        return own_variables(self.tf, values)

    def update(self, loss: Any, variables: list[Any]) -> tuple[Any, Any]:
        """The step of the plain optimizer."""
        step = self.tf.compat.v1.train.GradientDescentOptimizer(self.rate).minimize(loss, var_list=variables)
        return step, step

    def begin(self, session: Any, variables: list[Any], values: Sequence[Array]) -> None:
        """Sets the variables of this worker, the only ones."""
        load(session, variables, values)

    def read(self, session: Any, variables: list[Any]) -> list[Array]:
        """The values of this worker."""
        return list(session.run(variables))

    def barrier(self) -> None:
        """Waits for nobody."""

    def applied_workers(self) -> list[int]:
        """This worker."""
        return [self.rank]


def own_variables(tf: Any, values: Sequence[Array]) -> list[Any]:
    """Creates variables in this process, without a value."""
    v1 = tf.compat.v1
    return [
        v1.get_variable(f"w{number}", value.shape, tf.float32, use_resource=True)
        for number, value in enumerate(values)
    ]


def load(session: Any, variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Assigns the values one after the other. Together they might exceed the size of a message."""
    for variable, value in zip(variables, values):
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})
