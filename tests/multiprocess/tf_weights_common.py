"""Functions for the programs about ranks whose weights differ. Their argument is 3 (Keras 3), 2 (Keras 2's
new optimizers) or legacy."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import SEED, raised, value

import rdmacoll

KIND = sys.argv[1]
os.environ["KERAS_BACKEND"] = "tensorflow"
keras = importlib.import_module("keras") if KIND == "3" else tf.keras
BATCH, STEPS = 4, 4
OPTIMIZERS = keras.optimizers.legacy if KIND == "legacy" else keras.optimizers


rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
LAST = SIZE - 1


def begin(**settings: object) -> None:
    """Starts a new world with these settings."""
    rdmacoll.shutdown()
    rdmacoll.init(**settings)


def with_settings(**settings: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def decorated(check: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(check)
        def run() -> None:
            begin(**settings)
            try:
                check()
            finally:
                begin()

        return run

    return decorated


def data(steps: int = STEPS, salt: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = value(RANK, (BATCH * steps, 5), salt=salt)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def network(*, seed: int | None = None) -> Any:
    """Makes a network. Without a seed, each rank has other initial weights."""
    keras.utils.set_random_seed(SEED + (RANK if seed is None else seed))
    layers = [keras.layers.Input((5,)), keras.layers.Dense(6, activation="tanh")]
    return keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(1)])


def small(*, seed: int | None = None) -> Any:
    """Makes a smaller network without batch normalization."""
    keras.utils.set_random_seed(SEED + (RANK if seed is None else seed))
    return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])


def sgd(**options: Any) -> Any:
    return rdmacoll.DistributedOptimizer(OPTIMIZERS.SGD(0.05, momentum=0.9), **options)


def slots(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    found = variables() if callable(variables) and not isinstance(variables, list) else variables
    return [one for one in found if len(one.shape) > 0]


def broadcast() -> Any:
    return rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)


class Sends(keras.callbacks.Callback):
    """A program's own broadcast after the first batch, as in Horovod's recipe for loops."""

    is_done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.is_done:
            self.is_done = True
            optimizer = self.model.optimizer
            rdmacoll.broadcast_variables([*self.model.variables, *slots(optimizer)], 0)


def fit(
    model: Any, optimizer: Any, *callbacks: Any, epochs: int = 2, steps: int = STEPS, **options: Any
) -> None:
    model.compile(optimizer=optimizer, loss="mse", **options)
    x, y = data(steps)
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def apart(call: Callable[[], Any], *parts: str) -> str:
    """Checks that `call` raises a MismatchError on every rank, with `parts` in its text. Returns the text."""
    found = raised(Exception, call)
    error = rdmacoll.error_from(found)
    assert isinstance(error, rdmacoll.MismatchError), repr(found)
    for part in [*parts, "train apart", "RDMACOLL_CHECK_WEIGHTS_TOLERANCE="]:
        assert part in str(error), (part, str(error))
    return str(error)


@contextlib.contextmanager
def lines() -> Iterator[list[str]]:
    """Collects the lines that are written to stderr in its block."""
    found: list[str] = []
    kept, sys.stderr = sys.stderr, io.StringIO()
    try:
        yield found
    finally:
        found += sys.stderr.getvalue().splitlines()
        sys.stderr = kept


def warned(call: Callable[[], Any]) -> str:
    """Returns the one warning of the ranks' differences, which rank 0 writes. Without one, returns ""."""
    with lines() as said:
        call()
    found = [line for line in said if "train apart" in line]
    counts = rdmacoll.engine.allgather(np.array([len(found)]))
    assert counts.tolist() in ([0] * (LAST + 1), [1] + [0] * LAST), (counts, said)
    return found[0] if found else ""


class At(keras.callbacks.Callback):
    """Calls `act(model)` on one rank: after a batch or an epoch, each counted from 0."""

    def __init__(self, act: Callable[[Any], None], rank: int, *, batch: int = -1, epoch: int = -1) -> None:
        super().__init__()
        self._act, self._rank, self._batch, self._epoch = act, rank, batch, epoch
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._batches == self._batch and self._rank == RANK:
            self._act(self.model)
        self._batches += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._epoch and self._rank == RANK:
            self._act(self.model)


def moved(variable: Any, by: float = 0.25) -> None:
    variable.assign(np.asarray(variable) + np.float32(by))


def loop(model: Any, optimizer: Any, steps: int, *, after: Callable[[int], None] | None = None) -> None:
    """Trains in a user's loop. As in Horovod's recipe, the broadcast comes after the first step."""

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    for number in range(steps):
        x, y = data(1, salt=number)
        step(tf.constant(x), tf.constant(y))
        if after is not None:
            after(number)
