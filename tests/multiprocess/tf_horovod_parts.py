"""Tests models of which each rank holds another part: local variables that differ between ranks in their
number, shapes and places. Two variables are shared, one of them with sparse gradients.

Argument: the folder of `tf_keras`, or "" in TensorFlow 2.15.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
if sys.argv[1]:
    sys.path.append(sys.argv[1])
import keras
import numpy as np
import tensorflow as tf
from tf_common import all_values, close, equal_on_all_ranks, raised, run_all, value

import rdmacoll
import rdmacoll.keras as hvd_keras
import rdmacoll.keras.elastic as hvd_elastic
import rdmacoll.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ROWS = SIZE + 1
MAKE: dict[str, Callable[[], Any]] = {"v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0)}
if sys.argv[1]:
    import tf_keras as keras_2

    MAKE["Keras 3"] = lambda: keras.optimizers.SGD(1.0)
else:
    keras_2 = keras
MAKE["Keras 2"] = lambda: keras_2.optimizers.SGD(1.0)
MAKE["Keras 2 legacy"] = lambda: keras_2.optimizers.legacy.SGD(1.0)


class Parts:
    """The shared variables, and RANK + 1 of this rank alone. Other ranks have them at other places."""

    def __init__(self) -> None:
        self.dense, self.table = tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros((ROWS, 2)))
        self.own = [tf.Variable(tf.zeros(2 + RANK + place)) for place in range(RANK + 1)]
        shared = [self.dense, self.table]
        self.all = [*shared, *self.own] if RANK % 2 else [self.own[0], *shared, *self.own[1:]]

    def loss(self) -> Any:
        """A sum with known gradients."""
        loss = tf.reduce_sum(self.dense * value(RANK, (3,))) + tf.reduce_sum(tf.gather(self.table, [RANK]))
        return loss + tf.add_n([tf.reduce_sum(one) for one in self.own])

    def gradients(self, wrap: Callable[[Any], Any] = lambda tape: tape) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = self.loss()
        return list(wrap(tape).gradient(loss, self.all))

    def check(self, steps: int) -> None:
        """Checks the values after so many steps with the rate 1."""
        shared = [self.dense.numpy(), self.table.numpy()]
        assert equal_on_all_ranks(shared)
        close(shared[0], -steps * np.mean(all_values((3,)), axis=0))
        close(shared[1], [[-steps / SIZE] * 2] * SIZE + [[0.0] * 2])
        for one in self.own:
            close(one, np.full(one.shape, -steps / SIZE))


def check_sources_of_a_tape_may_be_those_of_one_rank() -> None:
    def wrapped(tape: Any, parts: Parts) -> Any:
        tape = hvd.DistributedGradientTape(tape)
        for one in parts.own:
            tape.register_local_source(one)
        return tape

    for make in MAKE.values():
        for is_function in (False, True):
            optimizer, parts = make(), Parts()

            def step(optimizer: Any = optimizer, parts: Parts = parts) -> None:
                found = parts.gradients(lambda tape: wrapped(tape, parts))
                optimizer.apply_gradients(zip(found, parts.all))

            call = tf.function(step, autograph=False) if is_function else step
            for _ in range(2):
                call()
            parts.check(2)


def check_local_variables_may_be_those_of_one_rank() -> None:
    for name, make in MAKE.items():
        for passes in (1, 2):
            parts = Parts()
            optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=passes)
            for one in parts.own:
                optimizer.register_local_var(one)
            for _ in range(2 * passes):
                if name == "v1":
                    pairs = optimizer.compute_gradients(parts.loss, parts.all)
                else:
                    pairs = list(zip(parts.gradients(), parts.all))
                optimizer.apply_gradients(pairs)
            parts.check(2 * passes)


def check_an_overflow_in_a_part_is_known_to_all() -> None:
    parts = Parts()
    tape = tf.GradientTape()
    with tape:
        loss = parts.loss() * (np.inf if RANK == SIZE - 1 else 1.0)
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
    for one in parts.own:
        tape.register_local_source(one)
    found = tape.gradient(loss, [parts.dense, *parts.own])
    assert not np.isfinite(found[0].numpy()).all()


def check_a_variable_that_is_local_on_one_rank_alone_is_told() -> None:
    if SIZE == 1:
        return
    weights = [tf.Variable(tf.zeros(3)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(MAKE["v1"]())
    if RANK == 0:
        optimizer.register_local_var(weights[1])
    raised(
        tf.errors.FailedPreconditionError,
        lambda: optimizer.compute_gradients(lambda: tf.reduce_sum(weights[0] * weights[1]), weights),
    )


def check_ranks_that_confuse_equal_variables_are_told() -> None:
    if SIZE == 1:
        return
    weights = [tf.Variable(value(9, (3,), salt=place)) for place in range(2)]
    hvd.broadcast_variables(weights, 0)
    optimizer = hvd.DistributedOptimizer(MAKE["Keras 2"]())
    optimizer.register_local_var(weights[RANK % 2])

    def train() -> None:
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(one * one) for one in weights])
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    assert "train apart" in str(raised(rdmacoll.MismatchError, train))


class Hybrid:
    """A model with local layers, RANK + 1 of them, in front of a shared one. Each row of the data goes
    through all of them."""

    def __init__(self, package: Any) -> None:
        layers = package.layers
        self.own = [layers.Dense(2, use_bias=False) for _ in range(RANK + 1)]
        self.shared = layers.Dense(1)
        inputs = layers.Input((3,))
        parts = [one(inputs) for one in self.own]
        outputs = self.shared(layers.Add()(parts) if RANK else parts[0])
        self.model = package.Model(inputs, outputs)

    def fit(self, optimizer: Any, *callbacks: Any, epochs: int = 2) -> None:
        self.model.compile(optimizer, "mse", run_eagerly=False)
        x, y = value(RANK, (8, 3)), value(RANK, (8, 1), salt=1)
        self.model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks))


def check_fit_trains_parts_of_a_model() -> None:
    for package in dict.fromkeys((keras, keras_2)):
        kinds = [package.optimizers.Adam]
        kinds += [package.optimizers.legacy.Adam] if package is keras_2 else []
        for kind in kinds:
            hybrid = Hybrid(package)
            before = [one.kernel.numpy() for one in hybrid.own]
            variables = [one.kernel for one in hybrid.own]
            callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=variables[0])
            for one in variables[1:]:
                callback.register_local_var(one)
            optimizer = hvd_keras.PartialDistributedOptimizer(kind(0.0), local_layers=hybrid.own)
            hybrid.fit(optimizer, callback)  # the rate 0 shows what was sent
            assert all(np.array_equal(one, other.kernel.numpy()) for one, other in zip(before, hybrid.own))
            assert equal_on_all_ranks([one.numpy() for one in hybrid.shared.weights])
            (package.backend.set_value if package is keras_2 else type(optimizer.learning_rate).assign)(
                optimizer.learning_rate, 0.1
            )
            hybrid.fit(optimizer, callback)
            assert not np.array_equal(before[0], hybrid.own[0].kernel.numpy())
            assert equal_on_all_ranks([one.numpy() for one in hybrid.shared.weights])


def check_a_replaced_method_may_register_variables_in_the_first_step() -> None:
    for name in ("Keras 2", "Keras 2 legacy"):
        hybrid = Hybrid(keras_2)
        optimizer = hvd_keras.DistributedOptimizer(MAKE[name]())
        plain, own = optimizer._allreduce, [one.kernel for one in hybrid.own]

        def registered(grads: Any, variables: Any, optimizer: Any = optimizer, plain: Any = plain) -> Any:
            for one in variables:
                if any(one is other for other in own):  # noqa: B023
                    optimizer.register_local_var(one)
            return plain(grads, variables)

        optimizer._allreduce = registered
        hvd.broadcast_variables(hybrid.shared.weights, 0)
        hybrid.fit(optimizer)
        assert equal_on_all_ranks([one.numpy() for one in hybrid.shared.weights])


def check_gradients_are_reduced_by_private_names() -> None:
    for make in MAKE.values():
        variable = tf.Variable(tf.zeros(2))
        optimizer = hvd.DistributedOptimizer(make())
        for reduce in (
            optimizer._allreduce_grads,
            hvd.DistributedGradientTape(tf.GradientTape())._allreduce_grads,
        ):
            for more in ([[variable]], [[variable], True], []):
                (found,) = reduce([tf.fill(2, float(RANK))], *more)
                close(found, np.full(2, (SIZE - 1) / 2))


def check_a_local_variable_that_was_sent_is_refused() -> None:
    if SIZE == 1:
        return
    variable = tf.Variable(1.0)
    error = raised(
        ValueError, lambda: hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0, "", [variable, 3])
    )
    assert "local_variables has 3" in str(error), error
    x = keras.layers.Input((3,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(value(RANK, (4, 3)), value(RANK, (4, 1)), verbose=0, callbacks=[callback])
    assert "too late" in str(raised(ValueError, lambda: callback.register_local_var(model.weights[0])))


def check_derived_callbacks_get_all_hooks_of_batches() -> None:
    called: list[str] = []
    hooks = ("on_batch_begin", "on_batch_end")
    bases = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback,
        hvd_keras.callbacks.LearningRateScheduleCallback,
        hvd_keras.callbacks.MetricAverageCallback,
        hvd_elastic.CommitStateCallback,
        hvd_elastic.UpdateBatchStateCallback,
    ]
    for package in dict.fromkeys((keras, keras_2)):
        for base in bases:
            called.clear()
            model = package.Sequential([package.layers.Input((3,)), package.layers.Dense(1)])
            model.compile(hvd_keras.DistributedOptimizer(package.optimizers.SGD(0.1)), "mse")
            state = hvd_elastic.KerasState(model, batch=0, epoch=0)
            arguments = [(0,), (0.1, 1.0), (), (state,), (state,)][bases.index(base)]
            body = {hook: lambda self, batch, logs=None, hook=hook: called.append(hook) for hook in hooks}
            callback = type("Derived", (base,), body)(*arguments)
            data = value(0, (4, 3)), value(0, (4, 1), salt=1)
            model.fit(*data, batch_size=4, verbose=0, callbacks=[callback])
            assert called == list(hooks), (base, called)


if __name__ == "__main__":
    run_all(globals())
