"""Tests Horovod's helpers of several passes in a step, in a session, in functions and eagerly. Rank r's
gradients are -r, -2r, ... for the passes of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import close, raised, run_all

import rdmacoll.tensorflow as hvd
from rdmacoll._horovod.gradient_aggregation import (
    LocalGradientAggregationHelper,
    LocalGradientAggregationHelperEager,
    apply_op_to_not_none_tensors,
    get_not_none_from_list,
)

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = float(np.mean(np.arange(SIZE)))
v1 = tf.compat.v1


class Counted:
    """An optimizer as the helpers see it."""

    def __init__(self) -> None:
        self.iterations = tf.Variable(0, dtype=tf.int64)


def reduced(gradients: list[Any], variables: list[Any]) -> list[Any]:
    assert len(gradients) == len(variables)
    return [hvd.allreduce(one) for one in gradients]


def check_sums_of_passes_are_reduced_eagerly() -> None:
    for is_mean in (False, True):
        _check_eager(is_function=False, is_mean=is_mean)


def check_sums_of_passes_are_reduced_in_functions() -> None:
    for is_mean in (False, True):
        _check_eager(is_function=True, is_mean=is_mean)


def _check_eager(*, is_function: bool, is_mean: bool) -> None:
    helper = LocalGradientAggregationHelperEager(2, reduced, True, is_mean)
    optimizer, weights = Counted(), [tf.Variable([0.0]) for _ in range(4)]
    shared, own, rows, unused = weights
    helper.register_local_var(own)

    def step(number: Any) -> Any:
        gradient = tf.reshape(-float(RANK) * number, (1,))
        slices = tf.IndexedSlices(gradient, tf.constant([0]), tf.constant([1]))
        found = helper.compute_gradients([gradient, gradient, slices, None], weights)
        assert found[3] is None

        def update() -> None:
            for weight, one in zip(weights[:3], found):
                weight.assign_sub(one)

        return helper.apply_gradients(update, optimizer, list(zip(found[:3], weights)))

    step = tf.function(step) if is_function else step
    for number in range(1, 6):
        is_last = step(tf.constant(float(number)))
        assert bool(is_last) is (number % 2 == 0)
        assert int(helper.counter) == number % 2
        assert int(optimizer.iterations) == (number + 1) // 2
        total = (0.0, 3.0, 10.0)[number // 2] / (2 if is_mean else 1)
        close(shared.numpy(), [MEAN * total])
        close(rows.numpy(), [MEAN * total])
        close(own.numpy(), [RANK / SIZE * total])
        close(unused.numpy(), [0.0])


def check_sums_of_passes_are_reduced_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [v1.get_variable(name, initializer=tf.zeros(1), use_resource=True) for name in "ab"]
        number, count = v1.placeholder(tf.float32, (1,)), v1.train.get_or_create_global_step()
        helper = LocalGradientAggregationHelper(
            2, reduced, False, True, RANK, LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY
        )
        helper.register_local_var(weights[1])
        assert helper.counter is None
        found = helper.compute_gradients([-float(RANK) * number] * 2, weights)
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        pairs = list(zip(found, weights))
        step = helper.apply_gradients(
            lambda: optimizer.apply_gradients(pairs, global_step=count), optimizer, pairs, global_step=count
        )
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for run in range(1, 6):
            session.run(step, {number: [float(run)]})
            assert session.run(count) == run
            assert session.run(helper.counter) == run % 2
            total = (0.0, 3.0, 10.0)[run // 2] / 2
            close(session.run(weights[0]), [MEAN * total])
            close(session.run(weights[1]), [RANK / SIZE * total])


def check_two_sets_of_variables_count_their_own_passes() -> None:
    """A GAN with one helper computes gradients of two networks in turn, and not equally often."""
    for is_function in (False, True):
        helper, optimizer = LocalGradientAggregationHelperEager(2, reduced, True, False), Counted()
        sets = [[tf.Variable([0.0]), tf.Variable([0.0])], [tf.Variable([0.0])]]

        def step(own: list[Any], number: Any, helper: Any = helper, optimizer: Any = optimizer) -> Any:
            gradient = tf.reshape(-float(RANK) * number, (1,))
            found = helper.compute_gradients([gradient] * len(own), own)
            pairs = list(zip(found, own))
            return helper.apply_gradients(
                lambda: tf.stack([one.assign_sub(by) for by, one in pairs]), optimizer, pairs[:1]
            )

        steps = [lambda number, own=own, step=step: step(own, number) for own in sets]
        steps = list(map(tf.function, steps)) if is_function else steps
        for place, number, is_last in [(0, 1, 0), (1, 10, 0), (1, 20, 1), (0, 2, 1), (1, 30, 0), (0, 3, 0)]:
            assert bool(steps[place](tf.constant(float(number)))) is bool(is_last)
        for own, total in zip(sets, (3.0, 30.0)):
            for one in own:
                close(one.numpy(), [MEAN * total])


def check_two_sets_of_variables_count_their_own_passes_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [v1.get_variable(name, initializer=tf.zeros(1), use_resource=True) for name in "ab"]
        number, optimizer = v1.placeholder(tf.float32, (1,)), v1.train.GradientDescentOptimizer(1.0)
        helper = LocalGradientAggregationHelper(2, reduced, False, False, RANK, "")
        steps = []
        for one in weights:
            pairs = list(zip(helper.compute_gradients([-float(RANK) * number], [one]), [one]))
            steps.append((lambda pairs=pairs: optimizer.apply_gradients(pairs), optimizer, pairs))
        steps = [helper.apply_gradients(*one) for one in steps]
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for place, value, is_last in [(0, 1, 0), (1, 10, 0), (1, 20, 1), (0, 2, 1), (1, 30, 0), (0, 3, 0)]:
            assert session.run(steps[place], {number: [float(value)]}) == bool(is_last)
        for one, total in zip(weights, (3.0, 30.0)):
            close(session.run(one), [MEAN * total])


def check_passes_that_are_not_the_last_return_their_gradients() -> None:
    weight, gradient = tf.Variable([0.0]), tf.constant([float(RANK)])
    kept = LocalGradientAggregationHelper(3, reduced, False, False, RANK, "")
    summed = LocalGradientAggregationHelperEager(3, reduced, False, False)
    for factor in (1.0, 2.0):
        close(kept.compute_gradients([gradient], [weight])[0], [float(RANK)])
        close(summed.compute_gradients([gradient], [weight])[0], [factor * RANK])
    for helper in (kept, summed):
        close(helper.compute_gradients([gradient], [weight])[0], [3 * MEAN])


def check_wrong_arguments_are_refused() -> None:
    for passes in (0, "two"):
        raised(ValueError, lambda: LocalGradientAggregationHelperEager(passes, reduced, True, False))  # noqa: B023
    raised(ValueError, lambda: LocalGradientAggregationHelperEager(2, None, True, False))
    helper = LocalGradientAggregationHelperEager(2, reduced, False, False)
    slices = tf.IndexedSlices(tf.zeros(1), tf.constant([0]), tf.constant([1]))
    error = raised(ValueError, lambda: helper.compute_gradients([slices], [tf.Variable([0.0])]))
    assert "sparse_as_dense=True" in str(error)
    assert get_not_none_from_list([1, None, 2]) == [1, 2]
    assert apply_op_to_not_none_tensors(lambda one, two: one + two, [1, None], 2) == [3, None]


run_all(globals())
