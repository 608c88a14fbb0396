"""Tests variables of Keras 3 whose gradients are their next values, as the scales of float8. One process with
the joined batches gets the maximum of all ranks and passes."""

from __future__ import annotations

import functools
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from tf_common import close, equal_on_all_ranks, run_all, value

import rdmacoll
import rdmacoll.tensorflow as hvd

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
STEPS = 4
SGD = functools.partial(keras.optimizers.SGD, 1.0)


def variables() -> list[Any]:
    """Returns a plain variable, and one that is overwritten."""
    made = [keras.Variable(np.zeros(3, np.float32)) for _ in range(2)]
    made[1].overwrite_with_gradient = True
    return made


def next_value(rank: int, number: int) -> np.ndarray:
    return np.abs(value(rank, (3,), salt=number)) + 1000.0


def is_the_maximum(optimizer: Any, passes: int = 1, *, taped: bool = False) -> None:
    """Applies gradients of some passes, eagerly and in a function. Compares with one process."""
    made = variables()

    def step(number: Any) -> None:
        ours = tf.gather(np.stack([next_value(RANK, n) for n in range(STEPS)]), number)
        gradients = [tf.ones(3), ours]
        if taped:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(g * v.value) for g, v in zip(gradients, made)])
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, made)
        optimizer.apply(gradients, made)

    calls = [step, tf.function(step, autograph=False)]
    for number in range(STEPS):
        call = calls[number * len(calls) // STEPS]
        call(tf.constant(number))
        if number % passes == passes - 1:
            numbers = range(number + 1 - passes, number + 1)
            wanted = np.max([next_value(rank, n) for rank in range(SIZE) for n in numbers], axis=0)
            np.testing.assert_array_equal(np.asarray(made[1]), wanted)
    assert equal_on_all_ranks([np.asarray(one) for one in made])
    assert np.asarray(made[0])[0] != 0


def check_next_values_are_never_averaged() -> None:
    is_the_maximum(rdmacoll.DistributedOptimizer(SGD()))
    is_the_maximum(rdmacoll.DistributedOptimizer(SGD(), op=rdmacoll.Sum, prescale_factor=0.5))


class Halves:
    """A compressor of a program."""

    @staticmethod
    def compress(tensor: Any) -> Any:
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tf.cast(tensor, context)


def check_next_values_are_never_compressed() -> None:
    is_the_maximum(hvd.DistributedOptimizer(SGD(), compression=Halves))
    for compression in (rdmacoll.Compression.fp16, rdmacoll.Compression.onebit):
        is_the_maximum(rdmacoll.DistributedOptimizer(SGD(), compression=compression))


def check_next_values_of_several_passes_are_the_greatest() -> None:
    is_the_maximum(rdmacoll.DistributedOptimizer(SGD(), backward_passes_per_step=2), 2)
    is_the_maximum(rdmacoll.DistributedOptimizer(SGD(gradient_accumulation_steps=2)), 2)


def check_next_values_pass_loss_scaling() -> None:
    for passes in (1, 2):
        inner = SGD(gradient_accumulation_steps=None if passes == 1 else passes)
        is_the_maximum(rdmacoll.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(inner)), passes)


def check_next_values_of_a_tape_are_the_greatest() -> None:
    is_the_maximum(SGD(), taped=True)
    is_the_maximum(rdmacoll.DistributedOptimizer(SGD()), taped=True)


def check_next_values_of_local_variables_stay_as_they_are() -> None:
    for passes in (1, 2):
        made, optimizer = variables(), hvd.DistributedOptimizer(SGD(), backward_passes_per_step=passes)
        optimizer.register_local_var(made[1])
        for _ in range(passes):
            optimizer.apply([tf.ones(3), tf.constant(next_value(RANK, 0))], made)
        np.testing.assert_array_equal(np.asarray(made[1]), next_value(RANK, 0))


def float8(x: np.ndarray, y: np.ndarray, batch: int, optimizer: Any) -> list[Any]:
    """Returns the variables of a model of float8 after a training."""
    keras.utils.set_random_seed(3)
    # Keras sums the gradients of biases in bfloat16, so their rounding depends on the batch.
    layers = [keras.layers.Dense(units, use_bias=False) for units in (8, 1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.quantize("float8")
    model.compile(optimizer, keras.losses.MeanSquaredError(reduction="sum"))
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    return list(model.trainable_variables)


def check_float8_trains_as_in_one_process() -> None:
    rows, passes = 4, 2
    size = rows * passes
    x = [value(rank, (rows * STEPS, 4)) * (1 + rank) for rank in range(SIZE)]
    together = np.concatenate([one[at : at + size] for at in range(0, rows * STEPS, size) for one in x])
    optimizer = rdmacoll.DistributedOptimizer(
        keras.optimizers.SGD(1e-4), op=rdmacoll.Sum, backward_passes_per_step=passes
    )
    found = float8(x[RANK], x[RANK].sum(1, keepdims=True), rows, optimizer)
    alone = float8(together, together.sum(1, keepdims=True), size * SIZE, keras.optimizers.SGD(1e-4))
    assert equal_on_all_ranks([np.asarray(one) for one in found])
    assert sum(one.overwrite_with_gradient for one in found) == 12
    for one, wanted in zip(found, alone):
        close(np.asarray(one) / np.abs(wanted).max(), np.asarray(wanted) / np.abs(wanted).max())


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
