"""The gradients that a gradient is made from decide whether it is reduced: those that nobody has applied,
mixtures, sums in variables, arguments, persistent tapes. Runs the checks of `tf_single_reduction` before, and
takes its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_single_reduction
from tf_common import all_values, raised, run_all
from tf_single_reduction import (
    ERRORS,
    KERAS,
    MAKE,
    SHAPES,
    SIZE,
    TOTALS,
    clip,
    clipped,
    each_way,
    gradients,
    holds,
    slope,
    some,
    weights,
    wrapped,
)

import rdmacoll


def applied_in_one_function(
    optimizer: Any, variables: list[Any], made: Callable[[list[Any]], list[Any]]
) -> Callable[[], Any]:
    @tf.function
    def step() -> None:
        optimizer.apply_gradients(zip(made(variables), variables))

    return step


def check_a_reduction_that_nobody_applies_is_none_of_a_later_gradient() -> None:
    def plain(variables: list[Any]) -> list[Any]:
        return gradients(variables, is_wrapped=False)

    later: list[tuple[Callable[[list[Any]], list[Any]], Callable[[np.ndarray], np.ndarray], float]] = [
        (plain, lambda array: array, 1.0),
        (lambda variables: [2.0 * one for one in plain(variables)], lambda array: array, 2.0),
        (
            lambda variables: tf.cond(
                tf.reduce_sum(variables[0]) < 1e9, lambda: plain(variables), lambda: plain(variables)
            ),
            lambda array: array,
            1.0,
        ),
    ]
    for library in some(KERAS):
        for make, wanted, factor in later:
            variables = weights()
            optimizer = rdmacoll.DistributedOptimizer(MAKE[library](1.0))

            def found(variables: list[Any], make: Any = make) -> list[Any]:
                gradients(variables)
                return list(make(variables))

            applied_in_one_function(optimizer, variables, found)()
            holds(variables, [-factor * wanted(array) / SIZE for array in TOTALS])
        # A second sum changes the result; a second mean does not.
        variables, optimizer = weights(), wrapped(library)
        applied_in_one_function(optimizer, variables, lambda v: (gradients(v), clip(plain(v)))[1])()
        first = [sum(clipped(one) for one in all_values(SHAPES[i], salt=i)) for i in (0, 1)]
        holds(variables, [-array for array in first])


def check_eager_gradients_that_are_applied_count_no_more() -> None:
    for library in some(KERAS):
        variables, optimizer = weights(), wrapped(library)
        for is_wrapped in (True, False):
            found = [2.0 * one for one in gradients(variables, is_wrapped=is_wrapped)]
            optimizer.apply_gradients(zip(found, variables))
        holds(variables, [-4.0 * array for array in TOTALS])


def check_a_mixture_is_an_error_of_a_sum_and_right_with_a_mean() -> None:
    def mixed(variables: list[Any]) -> list[Any]:
        pairs = zip(gradients(variables), gradients(variables, is_wrapped=False))
        return [first + second for first, second in pairs]

    def means(variables: list[Any]) -> list[Any]:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as recorded:
            loss = tf.add_n([tf.reduce_sum(variables[i] * slope(i)) for i in (0, 1)])
        reduced = recorded.gradient(loss, variables)
        return [
            2.0 * first + second for first, second in zip(reduced, gradients(variables, is_wrapped=False))
        ]

    for library in some(KERAS):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(made: Any, variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(zip(made(variables), variables))

            text = str(raised(ERRORS, each_way(lambda step=step: step(mixed))[is_function]))
            assert "made from gradients that are reduced and from others" in text, text
            assert "op=Sum" in text, text
            assert "wrap the tape of each" in text, text
            holds(variables, [0.0 * array for array in TOTALS])
            mean = rdmacoll.DistributedOptimizer(MAKE[library](1.0))
            each_way(lambda step=step, mean=mean: step(means, optimizer=mean))[is_function]()
            holds(variables, [-3.0 * array / SIZE for array in TOTALS])


def check_gradients_that_come_from_elsewhere_are_compared() -> None:
    """Arguments of a function, results of loops, and sums in variables have no history."""
    for library in some(KERAS):
        ways: dict[str, Callable[[list[Any], Any], Any]] = {
            "argument": lambda found, apply: tf.function(apply)(found),
            "loop": lambda found, apply: tf.function(
                lambda: apply(tf.while_loop(lambda i, *_: i < 2, lambda i, *g: (i + 1, *g), [0, *found])[1:])
            )(),
            "sums": lambda found, apply: tf.function(lambda: apply([s.read_value() for s in found]))(),
        }
        for name, way in ways.items():
            for is_wrapped in (True, False):
                variables, optimizer = weights(), wrapped(library)
                optimizer.build(variables) if library != "Keras 2 legacy" else None
                gradients(variables)
                found = tf.function(lambda v=variables, w=is_wrapped: gradients(v, is_wrapped=w))()
                given = [tf.Variable(one) for one in found] if name == "sums" else found

                def apply(found: Any, variables: Any = variables, optimizer: Any = optimizer) -> None:
                    optimizer.apply_gradients(zip(found, variables))

                if is_wrapped or SIZE == 1:
                    way(given, apply)
                    holds(variables, [-array for array in TOTALS])
                    continue
                text = str(raised(ERRORS, lambda way=way, given=given, apply=apply: way(given, apply)))
                assert "differ between ranks, and a tape has reduced others of them" in text, text
                holds(variables, [0.0 * array for array in TOTALS])


def check_eager_changes_of_reduced_gradients_are_followed() -> None:
    def by_a_variable(found: list[Any]) -> list[Any]:
        sums = [tf.Variable(tf.zeros_like(one)) for one in found]
        for total, one in zip(sums, found):
            total.assign_add(one)
        return [total.read_value() for total in sums]

    ways: list[Callable[[list[Any]], list[Any]]] = [
        by_a_variable,
        lambda found: list(tf.function(lambda given: [1.0 * one for one in given])(found)),
        lambda found: list(tf.function(lambda: [1.0 * one for one in found])()),
        lambda found: [tf.py_function(lambda one: 1.0 * one, [one], one.dtype) for one in found],
    ]
    for library in some(KERAS):
        for way in ways:
            variables, optimizer = weights(), wrapped(library)
            optimizer.apply_gradients(zip(way(gradients(variables)), variables))
            holds(variables, [-array for array in TOTALS])


def check_gradients_that_are_equal_by_chance_are_not_reduced_ones() -> None:
    def of_weights(variables: list[Any], found: list[Any]) -> list[Any]:
        return [0.5 * (variable + tf.ones_like(one)) for variable, one in zip(variables, found)]

    def of_arrays(variables: list[Any], found: list[Any]) -> list[Any]:
        return [tf.constant(one.numpy()) for one in found]

    for library in some(KERAS):
        for way in (of_weights, of_arrays):
            variables, optimizer = weights(), wrapped(library)

            def step(way: Any = way, variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(zip(way(variables, gradients(variables)), variables))

            text = str(raised(rdmacoll.ConfigError, step))
            assert "is equal on all ranks, but it is not made from" in text, text
            assert "op=Sum may be missing" in text, text
            holds(variables, [0.0 * array for array in TOTALS])
        # In a graph the history is known: these are gradients of each rank.
        variables, optimizer = weights(), wrapped(library)
        applied_in_one_function(optimizer, variables, lambda v: of_weights(v, gradients(v)))()
        holds(variables, [0.0 * array - 0.5 * SIZE for array in TOTALS])
        # A second mean changes nothing.
        variables, mean = weights(), rdmacoll.DistributedOptimizer(MAKE[library](1.0))
        mean.apply_gradients(zip(of_weights(variables, gradients(variables)), variables))
        holds(variables, [0.0 * array - 0.5 for array in TOTALS])


def check_a_persistent_tape_gives_each_loss_once() -> None:
    for library in some(KERAS):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                recorded = rdmacoll.DistributedGradientTape(tf.GradientTape(persistent=True), op=rdmacoll.Sum)
                with recorded:
                    losses = [scale * tf.reduce_sum(variables[0] * slope(0)) for scale in (1.0, 2.0)]
                    both = tf.stack(losses)
                found = [recorded.gradient(loss, variables[0]) for loss in losses]
                optimizer.apply_gradients([(found[0] + found[1], variables[0])])
                jacobian = recorded.jacobian(both, variables[0])
                optimizer.apply_gradients([(tf.reduce_sum(jacobian, axis=0), variables[0])])

            each_way(step)[is_function]()
            holds(variables, [-6.0 * TOTALS[0], 0.0 * TOTALS[1]])


if __name__ == "__main__":
    run_all({**vars(tf_single_reduction), **globals()})
    rdmacoll.shutdown()
