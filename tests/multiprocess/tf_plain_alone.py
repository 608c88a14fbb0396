"""Tests that a program is warned in which a broadcast has made ranks equal, and nothing reduces gradients. No
optimizer and no tape is wrapped here. The argument is that of tf_weights_common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import SEED, run_all
from tf_weights_common import OPTIMIZERS, RANK, SIZE, data, keras, lines, warned

import rdmacoll
from rdmacoll import tensorflow as hvd

WAYS = (lambda step: step, tf.function)
ALONE = "by gradients of this rank alone, which a broadcast has made equal"


def model_of_each_rank() -> Any:
    keras.utils.set_random_seed(SEED + RANK)
    layers = [keras.layers.Input((5,)), keras.layers.Dense(32), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def trained(
    model: Any,
    *,
    reduce: Callable[[list[Any]], list[Any]] = lambda own: own,
    before: Callable[[int], None] = lambda step: None,
    way: Any = tf.function,
) -> None:
    """Trains in a loop. reduce: gets the gradients. before: is called with the number of each step."""
    optimizer = OPTIMIZERS.SGD(0.05)

    def apply(found: list[Any]) -> None:
        optimizer.apply_gradients(zip(found, model.trainable_variables))

    def gradients(x: Any, y: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return list(tape.gradient(loss, model.trainable_variables))

    apply, gradients = way(apply), way(gradients)
    for step in range(3):
        before(step)
        apply(reduce(gradients(*map(tf.constant, data(1, salt=step)))))


def check_a_loop_behind_a_broadcast_is_warned_of() -> None:
    for way in WAYS:
        model = model_of_each_rank()
        rdmacoll.broadcast_variables(model.variables, 0)
        text = warned(lambda way=way, model=model: trained(model, way=way))
        assert RANK or (ALONE in text and "a plain SGD updates" in text), text


def check_a_broadcast_behind_the_first_step_is_in_time() -> None:
    """Horovod's recipe. The functions of the step are traced then."""
    for way in WAYS:
        model = model_of_each_rank()

        def send(step: int, model: Any = model) -> None:
            if step == 1:
                hvd.broadcast_variables(model.variables, root_rank=0)

        text = warned(lambda way=way, model=model, send=send: trained(model, before=send, way=way))
        assert RANK or ALONE in text, text


def check_a_broadcast_within_the_first_step_is_in_time() -> None:
    model, optimizer = model_of_each_rank(), OPTIMIZERS.SGD(0.05)

    @tf.function
    def step(x: Any, y: Any, is_first: bool) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        found = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(found, model.trainable_variables))
        if is_first:
            hvd.broadcast_variables(model.variables, root_rank=0)

    def train() -> None:
        for number in range(3):
            step(*map(tf.constant, data(1, salt=number)), number == 0)

    text = warned(train)
    assert RANK or ALONE in text, text


def check_fit_behind_a_broadcast_is_warned_of() -> None:
    model = model_of_each_rank()
    rdmacoll.broadcast_variables(model.variables, 0)
    model.compile(OPTIMIZERS.SGD(0.05), "mse")
    with lines() as said:
        model.fit(*data(2), batch_size=4, verbose=0)
    found = [line for line in said if "by gradients of this rank alone" in line]
    assert len(found) == (RANK == 0), said
    assert RANK or "its optimizer (SGD) is not wrapped" in found[0], found


def check_gradients_that_the_program_reduces_are_no_cause() -> None:
    def by_tensors(own: list[Any]) -> list[Any]:
        return [rdmacoll.allreduce(one, op=rdmacoll.Average) for one in own]

    def by_arrays(own: list[Any]) -> list[Any]:
        found = rdmacoll.engine.grouped_allreduce([one.numpy() for one in own], op=rdmacoll.Average)
        return list(map(tf.constant, found))

    for reduce in (by_tensors, by_arrays):
        for way in WAYS:
            model = model_of_each_rank()
            rdmacoll.broadcast_variables(model.variables, 0)
            assert not warned(lambda m=model, reduce=reduce, way=way: trained(m, reduce=reduce, way=way))


def check_variables_that_are_declared_local_are_no_cause() -> None:
    model = model_of_each_rank()
    rdmacoll.broadcast_variables(model.variables, 0)
    rdmacoll.declare_local(model.trainable_variables)
    assert not warned(lambda: trained(model))


def check_a_model_of_each_rank_is_no_cause() -> None:
    own, shared = model_of_each_rank(), model_of_each_rank()
    rdmacoll.broadcast_variables(shared.variables, 0)
    assert not warned(lambda: trained(own))


def check_a_training_before_the_broadcast_is_no_cause() -> None:
    model = model_of_each_rank()
    assert not warned(lambda: trained(model))
    assert not warned(lambda: rdmacoll.broadcast_variables(model.variables, 0))
    np.testing.assert_allclose(*rdmacoll.engine.allgather(np.asarray(model.variables[0])[None])[:2])


if __name__ == "__main__":
    assert SIZE > 1
    run_all(globals())
    rdmacoll.shutdown()
