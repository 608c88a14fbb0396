"""Tests train steps that average gradients by allreduce, without a wrapped optimizer or tape. Argument: the
folder of `tf_keras`, or "" for Keras 3 alone."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np
import tensorflow as tf
from tf_common import close, equal_on_all_ranks, keras_packages, raised, run_all, value

import rdmacoll
import rdmacoll.tensorflow.keras as hvd_keras
from rdmacoll import tensorflow as hvd

PACKAGES = keras_packages()
rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
CALLBACKS = hvd_keras.callbacks


def data_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    return value(rank, (8, 3)), value(rank, (8, 2), salt=1)


class Settings:
    """Finds its attributes by keys, as some programs' settings do."""

    def __getattr__(self, name: str) -> Any:
        return vars(self)[name]


def network(package: Any, reduce: Callable[[list[Any]], list[Any]]) -> Any:
    """Returns a compiled model whose train step calls `reduce` with its gradients."""

    class Network(package.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            found = reduce(tape.gradient(loss, self.trainable_variables))
            self.optimizer.apply_gradients(zip(found, self.trainable_variables))
            return {"loss": loss}

    inputs = package.layers.Input((3,))
    model = Network(inputs, package.layers.Dense(2, kernel_initializer="zeros")(inputs))
    model.compile(package.optimizers.SGD(0.1), "mse")
    object.__setattr__(model, "settings", Settings())
    return model


def fit(model: Any, *callbacks: Any) -> str:
    """Trains two epochs, of a batch each, in two calls. Returns the lines on stderr."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        for _ in range(2):
            model.fit(*data_of(RANK), batch_size=8, verbose=0, callbacks=list(callbacks))
    return text.getvalue()


def one_by_one(gradients: list[Any]) -> list[Any]:
    return [hvd.allreduce(one, op=hvd.Average) for one in gradients]


def as_a_group(gradients: list[Any]) -> list[Any]:
    return list(hvd.grouped_allreduce(gradients, average=True))


def in_one_tensor(gradients: list[Any]) -> list[Any]:
    whole = rdmacoll.allreduce(tf.concat([tf.reshape(one, [-1]) for one in gradients], 0), op=rdmacoll.Sum)
    parts = tf.split(whole / SIZE, [one.shape.num_elements() for one in gradients])
    return [tf.reshape(part, one.shape) for part, one in zip(parts, gradients)]


def as_slices(gradients: list[Any]) -> list[Any]:
    kernel, bias = gradients
    slices = tf.IndexedSlices(kernel, tf.range(3), tf.constant([3, 2]))
    return [tf.convert_to_tensor(hvd.allreduce(slices)), hvd.allreduce(bias)]


def trains_as_one_process(reduce: Callable[[list[Any]], list[Any]]) -> None:
    """Trains with each kind of callbacks, and compares with one process that has the joined batches."""
    x, y = (tf.constant(np.concatenate(part)) for part in zip(*map(data_of, range(SIZE))))
    kinds = [lambda: [CALLBACKS.BroadcastGlobalVariablesCallback(0)]]
    kinds += [lambda: [CALLBACKS.MetricAverageCallback()], list]
    for package in PACKAGES:
        alone = network(package, lambda gradients: gradients)
        for _ in range(2):
            alone.train_step((x, y))
        for kind in kinds:
            model = network(package, reduce)
            hvd_keras.DistributedOptimizer(package.optimizers.SGD(0.1))  # otherwise fit never warns
            assert "not wrapped" not in fit(model, *kind())
            found = [one.numpy() for one in model.weights]
            assert equal_on_all_ranks(found)
            for one, other in zip(found, alone.weights):
                close(one, other.numpy())


def check_gradients_may_be_reduced_one_by_one() -> None:
    trains_as_one_process(one_by_one)


def check_gradients_may_be_reduced_as_a_group() -> None:
    trains_as_one_process(as_a_group)


def check_gradients_may_be_reduced_in_one_tensor() -> None:
    trains_as_one_process(in_one_tensor)


def check_gradients_may_be_reduced_as_slices() -> None:
    trains_as_one_process(as_slices)


def check_gradients_of_two_batches_may_be_added_up() -> None:
    for package in PACKAGES:
        kept: list[Any] = []

        class Adding(package.Model):  # type: ignore[misc,name-defined]
            def train_step(self, data: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(data[0], training=True) - data[1]) ** 2)
                kept.append(tape.gradient(loss, self.trainable_variables))  # noqa: B023
                if len(kept) % 2 == 0:  # noqa: B023
                    sums = [one + other for one, other in zip(*kept[-2:])]  # noqa: B023
                    self.optimizer.apply_gradients(zip(reduce(sums), self.trainable_variables))  # noqa: B023
                return {"loss": loss}

        for reduce in (one_by_one, list):
            inputs = package.layers.Input((3,))
            model = Adding(inputs, package.layers.Dense(2)(inputs))
            model.compile(package.optimizers.SGD(0.1), "mse", run_eagerly=True)
            callback = CALLBACKS.BroadcastGlobalVariablesCallback(0)
            train = functools.partial(
                model.fit, *data_of(RANK), batch_size=4, verbose=0, callbacks=[callback]
            )
            if reduce is list and SIZE > 1:
                assert "has reduced no gradient" in str(raised(rdmacoll.ConfigError, train))
            else:
                train()
                assert equal_on_all_ranks([one.numpy() for one in model.weights])


def check_other_reductions_are_no_cure() -> None:
    if SIZE == 1:
        return

    def of_the_norm(gradients: list[Any]) -> list[Any]:
        norm = hvd.allreduce(tf.linalg.global_norm(gradients))
        return [one / norm for one in gradients]

    def of_the_largest(gradients: list[Any]) -> list[Any]:
        for one in gradients:
            hvd.allreduce(one, op=hvd.Max)
        return gradients

    for package in PACKAGES:
        for reduce in (of_the_norm, of_the_largest):
            for kind in (
                lambda: CALLBACKS.BroadcastGlobalVariablesCallback(0),
                CALLBACKS.MetricAverageCallback,
            ):
                error = raised(rdmacoll.ConfigError, lambda: fit(network(package, reduce), kind()))  # noqa: B023
                assert "has reduced no gradient" in str(error), error


def check_ranks_that_differ_afterwards_are_told() -> None:
    if SIZE == 1:
        return

    def changed(gradients: list[Any]) -> list[Any]:
        return [one * (1.0 + RANK) for one in one_by_one(gradients)]

    for package in PACKAGES:
        callback = CALLBACKS.BroadcastGlobalVariablesCallback(0)
        raised(rdmacoll.MismatchError, lambda: fit(network(package, changed), callback))  # noqa: B023


if __name__ == "__main__":
    run_all(globals())
