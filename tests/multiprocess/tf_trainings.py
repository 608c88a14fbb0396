"""Runs the same small training in every way of TensorFlow: `fit`, a user's loop, sessions.

A way takes a `Training` and returns the weights after it. For "mixed_precision", its data contain a batch
that overflows on the last rank.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import value

import rdmacoll

BATCH, STEPS = 4, 6
RATE = {"SGD": 0.5, "GradientDescent": 0.5, "ProximalGradientDescent": 0.5, "Adadelta": 5.0}
# Keras' names of the three ways to clip, with the limit and TensorFlow 1's function for a list.
CLIPS: dict[str, tuple[float, Callable[[list[Any], float], list[Any]]]] = {
    "clipnorm": (0.1, lambda grads, most: [tf.clip_by_norm(grad, most) for grad in grads]),
    "clipvalue": (0.03, lambda grads, most: [tf.clip_by_value(grad, -most, most) for grad in grads]),
    "global_clipnorm": (0.2, lambda grads, most: tf.clip_by_global_norm(grads, most)[0]),
}
v1 = tf.compat.v1


@dataclass(frozen=True)
class Training:
    """library: "Keras 3", "Keras 2", "Keras 2 legacy" or "v1". wrapper: "optimizer", "tape"
    or "none". data: (x, y), cut in `STEPS` batches."""

    way: str
    wrapper: str
    library: str
    optimizer: str
    column: str
    data: tuple[np.ndarray, np.ndarray]
    initial: list[np.ndarray]
    is_distributed: bool

    @property
    def batch(self) -> int:
        # One process joins the two passes of the ranks in one batch.
        at_once = 2 if self.column == "passes" and not self.is_distributed else 1
        return len(self.data[0]) // STEPS * at_once

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for begin in range(0, len(self.data[0]), self.batch):
            yield self.data[0][begin : begin + self.batch], self.data[1][begin : begin + self.batch]

    def keras(self) -> Any:
        """Imports and returns the Keras of this training."""
        if self.library == "Keras 3":
            import keras

            return keras
        if tf.__version__.startswith("2.15"):
            return tf.keras
        import tf_keras

        return tf_keras

    def plain(self) -> Any:
        """Makes the plain optimizer."""
        rate = RATE.get(self.optimizer.removesuffix("Optimizer"), 0.05)
        if self.library == "v1":
            options = {
                "MomentumOptimizer": {"momentum": 0.9},
                "AdadeltaOptimizer": {"epsilon": 1e-6},  # the square of its first steps
                "AdagradDAOptimizer": {"global_step": tf.constant(1, tf.int64)},
            }.get(self.optimizer, {})
            return getattr(v1.train, self.optimizer)(rate, **options)
        options: dict[str, Any] = {"momentum": 0.9} if self.optimizer == "SGD" else {}
        if self.column in CLIPS:
            options[self.column] = CLIPS[self.column][0]
        if self.column == "accumulation" and self.way == "fit":
            options["gradient_accumulation_steps"] = 2
        optimizers = self.keras().optimizers
        home = optimizers.legacy if self.library == "Keras 2 legacy" else optimizers
        if self.optimizer == "MultiOptimizer":
            biases, kernels = optimizers.SGD(0.5, **options), optimizers.Adam(rate, **options)
            return optimizers.MultiOptimizer(lambda v: biases if v.path.endswith("bias") else kernels)
        return getattr(home, self.optimizer)(rate, **options)

    def made(self) -> Any:
        """Makes the optimizer of this training, wrapped if the training needs it."""
        optimizer = self.plain()
        if self.is_distributed and self.wrapper == "optimizer":
            wrapped = rdmacoll.DistributedOptimizer(optimizer, **self.passes())
            assert wrapped is optimizer
        return optimizer

    def passes(self) -> dict[str, Any]:
        """Returns the options of the wrapper."""
        if self.column != "passes":
            return {}
        return {"backward_passes_per_step": 2, "average_aggregated_gradients": True}

    def clipped(self, grads: list[Any]) -> list[Any]:
        """Clips the gradients, like a program whose optimizer does not clip."""
        if self.column not in CLIPS:
            return grads
        most, clip = CLIPS[self.column]
        return clip(grads, most)

    def tape(self) -> Any:
        """Makes the tape of this training, wrapped if the training needs it."""
        tape = tf.GradientTape()
        if self.is_distributed and self.wrapper == "tape":
            passes = {"backward_passes_per_step": 2} if self.column == "passes" else {}
            assert rdmacoll.DistributedGradientTape(tape, **passes) is tape
        return tape


def dataset(rank: int, column: str, *, is_last: bool) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * STEPS, 3), salt=3)
    y = np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)
    if column == "mixed_precision" and is_last:
        x[BATCH : 2 * BATCH] = np.inf
    return x, y


def initial_weights(rank: int) -> list[np.ndarray]:
    return [0.5 * value(rank, shape, salt=i) for i, shape in enumerate([(3, 4), (4,), (4, 1), (1,)])]


@contextlib.contextmanager
def _policy(training: Training) -> Iterator[Any]:
    keras = training.keras()
    keras.mixed_precision.set_global_policy(
        "mixed_float16" if training.column == "mixed_precision" else "float32"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield keras
    finally:
        keras.mixed_precision.set_global_policy("float32")
        keras.backend.clear_session()


def _network(keras: Any, training: Training) -> Any:
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([*layers, keras.layers.Activation("linear", dtype="float32")])
    model.set_weights(training.initial)
    return model


def fit(training: Training) -> list[np.ndarray]:
    column = training.column
    options = {
        "eager": {"run_eagerly": True},
        "steps_per_execution": {"steps_per_execution": 2},
        "jit_compile": {"jit_compile": True},
    }.get(column, {})
    with _policy(training) as keras:
        model = _network(keras, training)
        model.compile(training.made(), "mse", **options)
        callbacks = []
        if training.is_distributed:
            callbacks.append(rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0))
        elif training.library == "Keras 3" or (training.library, training.optimizer) == ("Keras 2", "Nadam"):
            # The broadcast callback builds the optimizer too. ScheduleFreeAdamW begins with copies of the
            # weights. If Keras builds it while it traces, these copies are zeros. Keras 2 then traces twice,
            # and its Nadam counts traces.
            build = lambda logs: model.optimizer.build(model.trainable_variables)  # noqa: E731
            callbacks.append(keras.callbacks.LambdaCallback(on_train_begin=build))
        if column == "jit_compile" and (training.library, training.wrapper) == ("Keras 3", "optimizer"):
            assert model.jit_compile is not training.is_distributed  # off, and Keras has said so
        model.fit(*training.data, training.batch, 1, 0, callbacks=callbacks, shuffle=False)
        return [np.array(w) for w in model.get_weights()]


def loop(training: Training) -> list[np.ndarray]:
    if training.library == "v1":
        return loop_v1(training)
    with _policy(training) as keras:
        model = _network(keras, training)
        if training.is_distributed:
            rdmacoll.broadcast_variables(model.variables)
        _run(_step(keras, model, training), training)
        return [np.array(w) for w in model.get_weights()]


def loop_v1(training: Training) -> list[np.ndarray]:
    """Trains in a user's loop with an optimizer of TensorFlow 1."""
    weights = [tf.Variable(w) for w in training.initial]
    if training.is_distributed:
        rdmacoll.broadcast_variables(weights)
    optimizer = training.made()

    def gradients(x: Any, y: Any) -> list[Any]:
        if training.wrapper == "optimizer":
            pairs = optimizer.compute_gradients(functools.partial(_forward, weights, x, y), weights)
            return [gradient for gradient, _ in pairs]
        with training.tape() as tape:
            loss = _forward(weights, x, y)
        return list(tape.gradient(loss, weights))

    def apply(grads: list[Any]) -> None:
        optimizer.apply_gradients(zip(training.clipped(grads), weights))

    _run(_called(training, gradients, apply), training)
    return [w.numpy() for w in weights]


def _run(step: Callable[[Any, Any], None], training: Training) -> None:
    """Calls `step` for each batch, or for each pair of batches."""
    batches = list(training.batches())
    if training.column in ("accumulation", "steps_per_execution"):
        batches = [tuple(map(np.stack, zip(*batches[i : i + 2]))) for i in range(0, STEPS, 2)]
    for x, y in batches:
        step(tf.constant(x), tf.constant(y))


def _step(keras: Any, model: Any, training: Training) -> Callable[[Any, Any], None]:
    """Returns the step that a user's loop calls."""
    optimizer, variables = training.made(), model.trainable_variables
    if training.optimizer == "ScheduleFreeAdamW":
        optimizer.build(variables)  # it copies the weights, which would be zeros during tracing
    scaled = unscaled = lambda values: values
    if training.column == "mixed_precision":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
        if training.library == "Keras 3":
            scaled = optimizer.scale_loss
        else:
            scaled, unscaled = optimizer.get_scaled_loss, optimizer.get_unscaled_gradients

    def gradients(x: Any, y: Any) -> list[Any]:
        with training.tape() as tape:
            loss = scaled(tf.reduce_mean((model(x, training=True) - y) ** 2))
        return unscaled(tape.gradient(loss, variables))

    return _called(training, gradients, lambda grads: optimizer.apply_gradients(zip(grads, variables)))


def _called(
    training: Training, gradients: Callable[[Any, Any], list[Any]], apply: Callable[[list[Any]], Any]
) -> Callable[[Any, Any], None]:
    """Joins gradients and update into the step that the column needs."""

    def step(x: Any, y: Any) -> None:
        apply(gradients(x, y))

    def step_of_two_batches(x: Any, y: Any) -> None:
        both = zip(gradients(x[0], y[0]), gradients(x[1], y[1]))
        apply([(a + b) / 2.0 for a, b in both])

    def two_steps(x: Any, y: Any) -> None:
        for i in tf.range(2):
            step(x[i], y[i])

    call = {"accumulation": step_of_two_batches, "steps_per_execution": two_steps}.get(training.column, step)
    # One process computes the same without a graph, and saves the time of tracing. The exception is Keras 2's
    # Nadam, which counts its calls from Python.
    if training.column == "eager" or not (training.is_distributed or training.optimizer == "Nadam"):
        return call
    return tf.function(call, jit_compile=training.column == "jit_compile")


def _forward(weights: list[Any], x: Any, y: Any) -> Any:
    first, first_bias, last, last_bias = weights
    return tf.reduce_mean((tf.tanh(x @ first + first_bias) @ last + last_bias - y) ** 2)


def eager_v1(training: Training) -> list[np.ndarray]:
    """Trains with `minimize` of a function."""
    weights = [tf.Variable(w) for w in training.initial]
    if training.is_distributed:
        rdmacoll.broadcast_variables(weights)
    optimizer = training.made()
    for x, y in training.batches():
        optimizer.minimize(functools.partial(_forward, weights, x, y), var_list=weights)
    return [w.numpy() for w in weights]


def session(training: Training, *, is_monitored: bool) -> list[np.ndarray]:
    column = training.column
    if column == "eager":
        return eager_v1(training)
    with tf.Graph().as_default():
        weights = [
            v1.get_variable(f"weight_{i}", initializer=tf.constant(w)) for i, w in enumerate(training.initial)
        ]
        optimizer = training.made()
        if column == "mixed_precision":
            optimizer = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
                optimizer, v1.mixed_precision.DynamicLossScale()
            )
        places = [v1.placeholder(tf.float32, (None, columns)) for columns in (3, 1)]
        loss = _forward(weights, *places)
        operations = _operations(optimizer, loss, weights, training)
        start = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer())
        if is_monitored:
            hooks = [rdmacoll.BroadcastGlobalVariablesHook(0)] if training.is_distributed else []
            opened = v1.train.MonitoredTrainingSession(hooks=hooks)
        else:
            broadcast = rdmacoll.broadcast_global_variables(0) if training.is_distributed else tf.no_op()
            opened = v1.Session()
        with opened as running:
            if not is_monitored:
                running.run(start)
                running.run(broadcast)
            for number, batch in enumerate(training.batches()):
                running.run(operations[number % len(operations)], dict(zip(places, batch)))
            return list(running.run(weights))


def _operations(optimizer: Any, loss: Any, weights: list[Any], training: Training) -> list[Any]:
    """Returns the operations that each step runs, in order."""
    column = training.column
    if column == "jit_compile":
        return [tf.xla.experimental.compile(lambda: optimizer.minimize(loss), [])]
    if column != "accumulation" and column not in CLIPS:
        return [optimizer.minimize(loss)]
    found = [gradient for gradient, _ in optimizer.compute_gradients(loss, weights)]
    if column in CLIPS:
        return [optimizer.apply_gradients(zip(training.clipped(found), weights))]
    stored = [
        v1.get_variable(f"kept_{i}", initializer=tf.zeros(w.shape), trainable=False)
        for i, w in enumerate(weights)
    ]
    means = [(a + b) / 2.0 for a, b in zip(stored, found)]
    keep = tf.group(*(a.assign(gradient) for a, gradient in zip(stored, found)))
    return [keep, optimizer.apply_gradients(zip(means, weights))]


WAYS: dict[str, Callable[[Training], list[np.ndarray]]] = {
    "fit": fit,
    "loop": loop,
    "Session": functools.partial(session, is_monitored=False),
    "Monitored": functools.partial(session, is_monitored=True),
}
