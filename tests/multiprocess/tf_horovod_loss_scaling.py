"""Tests loss scaling with local variables, and with compressors that keep residuals.

Argument: the folder of `tf_keras`, or "" in TensorFlow 2.15.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from tf_common import close, equal_on_all_ranks, keras_packages, run_all

import rdmacoll.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
v1 = tf.compat.v1
PACKAGES = keras_packages()
KERAS_2: Any = PACKAGES[-1]
SLOPES = tf.constant([5.0, 2.2, 1.5])
COMPUTE = ("compute_gradients", "_compute_gradients")
GROWING = {"initial_scale": 4.0, "dynamic_growth_steps": 2}  # the scale doubles after two steps


def scaling_of(package: Any) -> Any:
    """Returns the package's class of loss scaling."""
    is_keras_3 = package.__version__.startswith("3")
    return (package.optimizers if is_keras_3 else package.mixed_precision).LossScaleOptimizer


def left_out_on_all(weights: list[Any], gradients: Callable[[bool], list[Any]]) -> None:
    """Trains twice with each library, and checks that the step with an overflow of the last rank is left out.
    weights: a shared one, and one of each rank. gradients: takes whether this rank overflows."""
    for package in PACKAGES:
        for one in weights:
            one.assign(tf.zeros_like(one))
        optimizer = hvd.DistributedOptimizer(
            scaling_of(package)(package.optimizers.SGD(1.0), initial_scale=1.0)
        )
        optimizer.inner_optimizer.register_local_var(weights[1])
        for overflows in (True, False):
            optimizer.apply_gradients(zip(gradients(overflows and RANK == SIZE - 1), weights))
            assert equal_on_all_ranks([one.numpy() for one in weights])
            assert bool(weights[0].numpy().flat[0] < 0) is not overflows


def check_an_overflow_of_one_rank_is_left_out_on_all() -> None:
    def gradients(overflows: bool) -> list[Any]:
        return [tf.ones(1), tf.constant([np.inf if overflows else 1.0], tf.float32)]

    left_out_on_all([tf.Variable([0.0]), tf.Variable([0.0])], gradients)


def check_it_is_left_out_if_all_shared_gradients_are_rows() -> None:
    def gradients(overflows: bool) -> list[Any]:
        count = 0 if overflows else 1  # a rank without rows can tell the others, too
        rows = tf.IndexedSlices(tf.ones((count, 2)), tf.fill((count,), RANK), tf.constant([SIZE, 2]))
        return [rows, tf.constant([np.inf if overflows else 1.0], tf.float32)]

    left_out_on_all([tf.Variable(tf.zeros((SIZE, 2))), tf.Variable([0.0])], gradients)


def compressed(optimizer: Any) -> Any:
    return hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.topk(0.3))


def trained(step: Callable[[Any], Any]) -> list[float]:
    """Returns the weight after five steps, each of which sends one of three elements."""
    weight = tf.Variable(tf.zeros(3))
    for _ in range(5):
        step(weight)
    return list(weight.numpy())


def minimized(optimizer: Any) -> list[float]:
    return trained(
        lambda weight: optimizer.minimize(lambda: tf.reduce_sum(SLOPES * weight), var_list=[weight])
    )


def without_a_scale() -> list[float]:
    found = minimized(compressed(v1.train.GradientDescentOptimizer(1.0)))
    assert all(one < 0 for one in found)
    return found


def check_residuals_do_not_have_the_scale_of_tensorflow_1() -> None:
    scale = v1.mixed_precision.DynamicLossScale(initial_loss_scale=4.0, increment_period=2)
    inner = compressed(v1.train.GradientDescentOptimizer(1.0))
    optimizer = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(inner, scale)
    assert minimized(optimizer) == without_a_scale()


def check_residuals_do_not_have_the_scale_of_keras_2() -> None:
    for make in (KERAS_2.optimizers.SGD, KERAS_2.optimizers.legacy.SGD):
        found = minimized(compressed(scaling_of(KERAS_2)(make(1.0), **GROWING)))
        assert found == without_a_scale(), make


def check_residuals_do_not_have_the_scale_of_keras_3() -> None:
    if KERAS_2 is keras:
        return
    for is_function in (False, True):
        optimizer = compressed(scaling_of(keras)(keras.optimizers.SGD(1.0), **GROWING))

        def step(weight: Any, optimizer: Any = optimizer) -> None:
            loss_scale = optimizer.scale_loss(1.0)  # the initial one before the first step
            optimizer.apply_gradients([(SLOPES * loss_scale, weight)])

        assert trained(tf.function(step) if is_function else step) == without_a_scale()


def check_computed_gradients_have_the_scale_that_is_taken_out_of_them() -> None:
    def step(optimizer: Any, weight: Any, name: str, is_function: bool) -> None:
        def loss() -> Any:
            return (RANK + 1.0) * tf.reduce_sum(weight * weight)

        compute = getattr(optimizer, name)
        if is_function:
            pairs = compute(loss, [weight])
        else:
            with tf.GradientTape() as tape:
                found = loss()
            pairs = compute(found, [weight], tape=tape)
        optimizer.apply_gradients(pairs)

    for package in PACKAGES:
        sgd, scaling = package.optimizers.SGD, scaling_of(package)
        makes = [lambda: sgd(1 / 16), lambda: scaling(sgd(1 / 16), **GROWING)]  # noqa: B023
        if package.__version__.startswith("3"):
            makes.append(lambda: sgd(1 / 16, loss_scale_factor=1024.0))  # noqa: B023
        for make, name, is_function in itertools.product(makes, COMPUTE, (True, False)):
            optimizer, weight = hvd.DistributedOptimizer(make()), tf.Variable([1.0, -2.0])
            if not hasattr(optimizer, name):
                continue
            for _ in range(4):
                step(optimizer, weight, name, is_function)
            mean = (SIZE + 1) / 2  # One process would get it with the losses of all ranks.
            close(weight, np.float32([1, -2]) * (1 - 2 * mean / 16) ** 4)


def check_residuals_of_computed_gradients_do_not_have_the_scale() -> None:
    optimizer = compressed(scaling_of(keras)(keras.optimizers.SGD(1.0), **GROWING))
    if not keras.__version__.startswith("3"):
        return

    def step(weight: Any) -> None:
        optimizer.apply_gradients(
            optimizer.compute_gradients(lambda: tf.reduce_sum(SLOPES * weight), [weight])
        )

    assert trained(step) == without_a_scale()


run_all(globals())
