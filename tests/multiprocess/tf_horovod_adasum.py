"""Tests Adasum of tapes and optimizers against its formula, which each rank computes for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_common import close, equal_on_all_ranks, raised, run_all, value

import rdmacoll.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
IS_POWER = SIZE & (SIZE - 1) == 0
v1 = tf.compat.v1
SHAPES = ((3,), (2, 2))
STEPS = 4


def combined(values: list[np.ndarray]) -> np.ndarray:
    """Returns Adasum of the values of all ranks, neighbours first."""
    while len(values) > 1:
        values = [pair(left, right) for left, right in zip(values[::2], values[1::2])]
    return values[0]


def pair(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    product = float(np.sum(left * right))
    of_left, of_right = (product / (2 * max(float(np.sum(one * one)), 1e-300)) for one in (left, right))
    return (1 - of_left) * left + (1 - of_right) * right


def slope(rank: int, number: int, place: int) -> np.ndarray:
    return value(rank, SHAPES[place], salt=2 * number + place)


def gradients(wrap: Callable[[Any], Any], weights: list[Any]) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(one * slope(RANK, 0, i)) for i, one in enumerate(weights)])
    return list(wrap(tape).gradient(loss, weights))


def check_a_tape_combines_gradients() -> None:
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    for options in ({}, {"compression": hvd.Compression.fp16}):

        def step(options: Any = options) -> list[Any]:
            return gradients(
                lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Adasum, **options), weights
            )

        if not IS_POWER:
            raised(NotImplementedError, step)
            continue
        for call in (step, tf.function(step, autograph=False)):
            found = call()
            assert equal_on_all_ranks([one.numpy() for one in found])
            for place, one in enumerate(found):
                wanted = combined([slope(rank, 0, place) for rank in range(SIZE)])
                close(one, wanted, "float16" if options else "float32")


def momentum() -> Any:
    return v1.train.MomentumOptimizer(0.5, 0.9)


def trained(passes: int) -> list[np.ndarray]:
    """Returns the weights after all steps, by numpy: each rank has a momentum of its own."""
    weights = [np.full(shape, 1.0) for shape in SHAPES]
    slots = [[np.zeros(shape) for shape in SHAPES] for _ in range(SIZE)]
    own = [[one.copy() for one in weights] for _ in range(SIZE)]
    for number in range(STEPS):
        for rank in range(SIZE):
            for place in range(len(SHAPES)):
                slots[rank][place] = 0.9 * slots[rank][place] + slope(rank, number, place)
                own[rank][place] = own[rank][place] - 0.5 * slots[rank][place]
        if (number + 1) % passes == 0:
            for place, start in enumerate(weights):
                weights[place] = start + combined([own[rank][place] - start for rank in range(SIZE)])
                for rank in range(SIZE):
                    own[rank][place] = weights[place].copy()
    return own[RANK]


def close_to_trained(found: list[np.ndarray], passes: int) -> None:
    if STEPS % passes == 0:
        assert equal_on_all_ranks(found)
    for one, wanted in zip(found, trained(passes)):
        close(one, wanted)


def check_an_optimizer_combines_changes() -> None:
    if not IS_POWER:
        return
    for passes in (1, 2, 3):
        for is_function in (False, True):
            weights = [tf.Variable(tf.ones(shape)) for shape in SHAPES]
            optimizer = hvd.DistributedOptimizer(momentum(), op=hvd.Adasum, backward_passes_per_step=passes)

            def step(slopes: list[Any], optimizer: Any = optimizer, weights: Any = weights) -> None:
                optimizer.apply_gradients(zip(slopes, weights))

            call = tf.function(step) if is_function else step
            for number in range(STEPS):
                call([tf.constant(slope(RANK, number, place)) for place in range(len(SHAPES))])
            close_to_trained([one.numpy() for one in weights], passes)


def check_a_session_combines_changes() -> None:
    if not IS_POWER:
        return
    for passes, use_resource in ((1, False), (1, True), (2, True)):
        with tf.Graph().as_default(), v1.Session() as session:
            weights = [
                v1.get_variable(f"w{i}", initializer=tf.ones(shape), use_resource=use_resource)
                for i, shape in enumerate(SHAPES)
            ]
            slopes = [v1.placeholder(tf.float32, shape) for shape in SHAPES]
            optimizer = hvd.DistributedOptimizer(momentum(), op=hvd.Adasum, backward_passes_per_step=passes)
            count = v1.train.get_or_create_global_step()
            loss = tf.add_n([tf.reduce_sum(one * other) for one, other in zip(weights, slopes)])
            pairs = optimizer.compute_gradients(loss, weights)
            step = optimizer.apply_gradients(pairs, global_step=count)
            session.run(v1.global_variables_initializer())
            for number in range(STEPS):
                given = {one: slope(RANK, number, place) for place, one in enumerate(slopes)}
                session.run(step, given)
            assert session.run(count) == STEPS
            close_to_trained(session.run(weights), passes)


def check_an_overflow_of_one_rank_is_left_out_on_all() -> None:
    if not IS_POWER:
        return
    mixed = v1.mixed_precision
    for is_function in (False, True):
        weight, slope_of_all = tf.Variable(tf.zeros(2)), tf.Variable(tf.ones(2))
        inner = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
        scale = mixed.DynamicLossScale(initial_loss_scale=4.0)
        optimizer = mixed.MixedPrecisionLossScaleOptimizer(inner, scale)

        def step(optimizer: Any = optimizer, weight: Any = weight, slopes: Any = slope_of_all) -> None:
            optimizer.minimize(lambda: tf.reduce_sum(weight * slopes), var_list=[weight])

        call = tf.function(step) if is_function else step
        for overflows in (True, False):
            last = np.inf if overflows and RANK == SIZE - 1 else 1.0
            slope_of_all.assign([1.0, last])
            call()
            close(weight.numpy(), [0.0, 0.0] if overflows else [-1.0, -1.0])
        assert float(scale()) == 2.0


def check_rows_are_combined_as_changes() -> None:
    if not IS_POWER:
        return
    table = tf.Variable(tf.zeros((2 * SIZE, 2)))
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
    optimizer.apply_gradients([(tf.IndexedSlices(tf.ones((1, 2)), [RANK], [2 * SIZE, 2]), table)])
    close(table.numpy(), np.repeat([[-1.0, -1.0], [0.0, 0.0]], SIZE, axis=0))


def check_other_uses_are_refused() -> None:
    raised(ValueError, lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Adasum))
    for options in ({"average_aggregated_gradients": True}, {"gradient_predivide_factor": 2.0}):
        raised(ValueError, lambda: hvd.DistributedOptimizer(momentum(), op=hvd.Adasum, **options))  # noqa: B023
    one = hvd.add_process_set([0]) if SIZE > 1 else None
    if one is not None:
        raised(
            NotImplementedError,
            lambda: hvd.DistributedOptimizer(momentum(), op=hvd.Adasum, process_set=one),
        )
        hvd.remove_process_set(one)
    table = tf.Variable(tf.zeros((2, 2)))
    with tf.GradientTape(persistent=True) as plain:
        loss = tf.reduce_sum(tf.gather(table, [0]))
    tape = hvd.DistributedGradientTape(plain, op=hvd.Adasum)
    raised(NotImplementedError, lambda: tape.gradient(loss, table))


run_all(globals())
