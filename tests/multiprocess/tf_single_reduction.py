"""Tests that each gradient is reduced once, with any wrapped objects: tapes, optimizers of Keras 3, Keras 2
and TensorFlow 1, `compute_gradients`. Sums: a second mean changes nothing. Arguments: the folder of
`tf_keras`, and `all`, or else each check takes one library: Keras 3, where it has such a check.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
sys.path.append(sys.argv[1])
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from tf_common import all_values, raised, run_all, value

import rdmacoll

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
v1 = tf.compat.v1
MAKE: dict[str, Callable[..., Any]] = {
    "Keras 3": keras.optimizers.SGD,
    "Keras 2": tf_keras.optimizers.SGD,
    "Keras 2 legacy": tf_keras.optimizers.legacy.SGD,
    "v1": v1.train.GradientDescentOptimizer,
}
KERAS = ("Keras 3", "Keras 2", "Keras 2 legacy")
KERAS_2 = ("Keras 2", "Keras 2 legacy")
SHAPES = ((3,), (2, 2))
NORM = 0.25
ERRORS = (rdmacoll.ConfigError, tf.errors.InvalidArgumentError)
TURN = itertools.count()


def some(libraries: tuple[str, ...], few: int = 1) -> tuple[str, ...]:
    """Returns Keras 3 with the first argument, otherwise one library in turn."""
    one = "Keras 3" if "Keras 3" in libraries else libraries[next(TURN) % len(libraries)]
    return libraries if "all" in sys.argv else (one,)[:few]


def wrapped(library: str, **options: Any) -> Any:
    return rdmacoll.DistributedOptimizer(MAKE[library](1.0), op=rdmacoll.Sum, **options)


def weights() -> list[Any]:
    return [tf.Variable(tf.zeros(shape)) for shape in SHAPES]


def slope(index: int) -> Any:
    """Returns this rank's gradient of a weight."""
    return tf.constant(value(RANK, SHAPES[index], salt=index))


def total(index: int) -> np.ndarray:
    return np.sum(all_values(SHAPES[index], salt=index), axis=0)


def tape(*, is_wrapped: bool = True, **options: Any) -> Any:
    plain = tf.GradientTape()
    return rdmacoll.DistributedGradientTape(plain, op=rdmacoll.Sum, **options) if is_wrapped else plain


def gradients(variables: list[Any], *, indices: tuple[int, ...] = (0, 1), **options: Any) -> list[Any]:
    with tape(**options) as recorded:
        loss = tf.add_n([tf.reduce_sum(variables[i] * slope(i)) for i in indices])
    return list(recorded.gradient(loss, [variables[i] for i in indices]))


def clip(found: list[Any]) -> list[Any]:
    return [tf.clip_by_norm(gradient, NORM) for gradient in found]


def clipped(array: np.ndarray) -> np.ndarray:
    return array * min(1.0, NORM / float(np.linalg.norm(array)))


def holds(variables: list[Any], wanted: list[np.ndarray]) -> None:
    for variable, array in zip(variables, wanted):
        np.testing.assert_allclose(np.asarray(variable), array, 1e-5, 1e-5)


def each_way(step: Callable[[], Any]) -> list[Callable[[], Any]]:
    return [step, tf.function(step)]


TOTALS = [total(0), total(1)]


def check_a_tape_and_an_optimizer_reduce_once() -> None:
    changes: list[tuple[Callable[[list[Any]], list[Any]], Callable[[np.ndarray], np.ndarray]]] = [
        (lambda found: found, lambda array: array),
        (clip, clipped),
        (lambda found: [2.0 * gradient for gradient in found], lambda array: 2.0 * array),
    ]
    for library in some(tuple(MAKE)):
        for change, wanted in changes:
            for is_function in (False, True):
                variables, optimizer = weights(), wrapped(library)

                def step(
                    variables: Any = variables, optimizer: Any = optimizer, change: Any = change
                ) -> None:
                    optimizer.apply_gradients(zip(change(gradients(variables)), variables))

                call = each_way(step)[is_function]
                call()
                call()
                holds(variables, [-2.0 * wanted(array) for array in TOTALS])


def check_it_is_decided_for_each_variable() -> None:
    for library in some(KERAS):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                mine = gradients(variables, indices=(1,), is_wrapped=False)
                theirs = gradients(variables, indices=(0,))
                found = [2.0 * theirs[0], mine[0]]
                optimizer.apply_gradients(zip(found, variables))

            each_way(step)[is_function]()
            holds(variables, [-2.0 * TOTALS[0], -TOTALS[1]])


def check_one_function_computes_and_another_applies() -> None:
    for library in some(KERAS):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)
            found = tf.function(lambda variables=variables: gradients(variables))()

            def step(found: Any = found, variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(zip(clip(found), variables))

            each_way(step)[is_function]()
            holds(variables, [-clipped(array) for array in TOTALS])


def check_a_reduction_before_is_none_of_a_later_gradient() -> None:
    for library in some(KERAS):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(zip(clip(gradients(variables)), variables))
                optimizer.apply_gradients(zip(gradients(variables, is_wrapped=False), variables))

            each_way(step)[is_function]()
            holds(variables, [-clipped(array) - array for array in TOTALS])
            # The program applies no gradients of this tape.
            gradients(variables)
            optimizer.apply_gradients(zip(gradients(variables, is_wrapped=False), variables))
            holds(variables, [-clipped(array) - 2.0 * array for array in TOTALS])


def computed(optimizer: Any, variables: list[Any], **options: Any) -> list[tuple[Any, Any]]:
    """Applies by the method of Keras 2."""
    name = "compute_gradients" if hasattr(optimizer, "update_step") else "_compute_gradients"
    with tape(**options) as recorded:
        loss = tf.add_n([tf.reduce_sum(variables[i] * slope(i)) for i in range(len(variables))])
    return list(getattr(optimizer, name)(loss, variables, tape=recorded))


def skipping(library: str) -> list[dict[str, bool]]:
    """Returns the arguments for gradients that are aggregated already."""
    old = {"experimental_aggregate_gradients": False}
    return [old] if library == "Keras 2 legacy" else [old, {"skip_gradients_aggregation": True}]


def check_compute_gradients_of_keras_2_reduces() -> None:
    for library in some(KERAS_2):
        for options in ({}, *skipping(library)):
            for is_wrapped in (False, True):
                for is_function in (False, True):
                    variables, optimizer = weights(), wrapped(library)

                    def step(
                        variables: Any = variables,
                        optimizer: Any = optimizer,
                        options: Any = options,
                        is_wrapped: bool = is_wrapped,
                    ) -> list[Any]:
                        pairs = computed(optimizer, variables, is_wrapped=is_wrapped)
                        found = clip([gradient for gradient, _ in pairs])
                        optimizer.apply_gradients(zip(found, variables), **options)
                        return [gradient for gradient, _ in pairs]

                    holds(each_way(step)[is_function](), TOTALS)
                    holds(variables, [-clipped(array) for array in TOTALS])


def check_two_losses_in_one_step() -> None:
    for library in some(KERAS_2, few=0):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                both = [computed(optimizer, variables, is_wrapped=False) for _ in range(2)]
                found = [2.0 * first + second for (first, _), (second, _) in zip(*both)]
                optimizer.apply_gradients(zip(found, variables))

            each_way(step)[is_function]()
            holds(variables, [-3.0 * array for array in TOTALS])


def check_minimize_and_a_tape_in_one_function() -> None:
    for library in some(KERAS_2, few=0):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                losses = [lambda: tf.reduce_sum(variables[0] * slope(0) + variables[0] * slope(0))]
                optimizer.minimize(losses[0], [variables[0]])
                optimizer.apply_gradients(zip(gradients(variables, is_wrapped=False), variables))

            optimizer.build(variables) if library == "Keras 2" else None
            each_way(step)[is_function]()
            holds(variables, [-3.0 * TOTALS[0], -TOTALS[1]])


def check_gradients_that_are_not_aggregated_have_to_be_reduced() -> None:
    for library in some(KERAS_2):
        for options in skipping(library):
            for is_function in (False, True):
                variables, optimizer = weights(), wrapped(library)
                ways: list[Callable[[], list[Any]]] = [
                    lambda v=variables: clip(gradients(v)),
                    lambda v=variables: rdmacoll.grouped_allreduce(
                        gradients(v, is_wrapped=False), op=rdmacoll.Sum
                    ),
                    lambda v=variables: gradients(v, is_wrapped=False),
                ]

                def step(
                    way: Callable[[], list[Any]],
                    variables: Any = variables,
                    optimizer: Any = optimizer,
                    options: Any = options,
                ) -> None:
                    optimizer.apply_gradients(zip(way(), variables), **options)

                calls = [each_way(lambda way=way: step(way))[is_function] for way in ways]
                calls[0]()
                calls[1]()
                holds(variables, [-clipped(array) - array for array in TOTALS])
                if SIZE > 1:
                    text = str(raised(ERRORS, calls[2]))
                    assert f"apply_gradients({next(iter(options))}=" in text, text
                    assert "got gradients that differ between ranks" in text, text
                    assert "each rank would train for itself; leave the argument out" in text, text
                holds(variables, [-clipped(array) - array for array in TOTALS])


def check_aggregate_gradients_of_a_program_counts() -> None:
    for is_function in (False, True):
        variables, optimizer = weights(), wrapped("Keras 2")

        def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
            pairs = optimizer.aggregate_gradients(
                list(zip(gradients(variables, is_wrapped=False), variables))
            )
            found = clip([gradient for gradient, _ in pairs])
            optimizer.apply_gradients(zip(found, variables), skip_gradients_aggregation=True)

        each_way(step)[is_function]()
        holds(variables, [-clipped(array) for array in TOTALS])


def check_loss_scaling_around_both() -> None:
    scalings = {
        "Keras 3": keras.optimizers.LossScaleOptimizer,
        "Keras 2": tf_keras.mixed_precision.LossScaleOptimizer,
        "Keras 2 legacy": tf_keras.mixed_precision.LossScaleOptimizer,
    }
    for library in some(KERAS):
        scaling = scalings[library]
        for is_function in (False, True):
            variables = weights()
            optimizer = scaling(wrapped(library))
            optimizer.build(variables) if library == "Keras 3" else None

            def step(variables: Any = variables, optimizer: Any = optimizer, library: str = library) -> None:
                scale = optimizer.dynamic_scale if library == "Keras 3" else optimizer.loss_scale
                with tape() as recorded:
                    loss = tf.add_n([tf.reduce_sum(variables[i] * slope(i)) for i in (0, 1)])
                    loss = loss * tf.convert_to_tensor(scale)
                found = recorded.gradient(loss, variables)
                if library != "Keras 3":
                    found = optimizer.get_unscaled_gradients(found)
                optimizer.apply_gradients(zip([2.0 * gradient for gradient in found], variables))

            each_way(step)[is_function]()
            holds(variables, [-2.0 * array for array in TOTALS])
            if library == "Keras 3":
                continue

            def by_itself(variables: Any = variables, optimizer: Any = optimizer) -> None:
                pairs = computed(optimizer, variables, is_wrapped=False)
                optimizer.apply_gradients(zip(clip([gradient for gradient, _ in pairs]), variables))

            each_way(by_itself)[is_function]()
            holds(variables, [-2.0 * array - clipped(array) for array in TOTALS])


def check_accumulation_takes_what_a_tape_has_reduced() -> None:
    for library in some(KERAS):
        for is_mean in (False, True):
            for is_function in (False, True):
                variables = weights()
                optimizer = wrapped(library, backward_passes_per_step=2, average_aggregated_gradients=is_mean)

                def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                    optimizer.apply_gradients(zip(gradients(variables), variables))

                call = each_way(step)[is_function]
                call()
                holds(variables, [0.0 * array for array in TOTALS])
                call()
                holds(variables, [-(1.0 if is_mean else 2.0) * array for array in TOTALS])


def check_rows_are_reduced_once() -> None:
    given = [value(rank, (2, 3), salt=9) for rank in range(SIZE)]
    wanted = np.zeros((4, 3))
    for rank in range(SIZE):
        np.add.at(wanted, [rank % 3, 3], given[rank])
    for library in some(KERAS[:2]):
        for way in (False, True, "auto"):
            for is_function in (False, True):
                table = tf.Variable(tf.zeros((4, 3)))
                optimizer = wrapped(library, sparse_as_dense=way)

                def found(*, is_wrapped: bool = True, table: Any = table, way: Any = way) -> Any:
                    options = {"sparse_as_dense": way} if is_wrapped else {}
                    with tape(is_wrapped=is_wrapped, **options) as recorded:
                        loss = tf.reduce_sum(tf.gather(table, [RANK % 3, 3]) * given[RANK])
                    return recorded.gradient(loss, table)

                def step(gradient: Any, table: Any = table, optimizer: Any = optimizer) -> None:
                    if isinstance(gradient, tf.IndexedSlices):
                        rows = gradient.values * 2.0
                        gradient = tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
                    else:
                        gradient = gradient * 2.0
                    optimizer.apply_gradients([(gradient, table)])

                each_way(lambda step=step, found=found: step(found()))[is_function]()
                each_way(lambda step=step, found=found: step(found(is_wrapped=False)))[is_function]()
                # Here the ranks compare rows: equal ones, and others, which eager code cannot distinguish
                # from sums.
                each_way(lambda step=step, found=found: step(tf.function(found)()))[is_function]()
                np.testing.assert_allclose(table.numpy(), -6.0 * wanted, 1e-4, 1e-4)
                if SIZE > 1 and not is_function:
                    plain = found(is_wrapped=False)
                    text = str(raised(ERRORS, lambda step=step, plain=plain: step(plain)))
                    assert "differ between ranks" in text, text


def check_a_tape_of_another_process_set_is_another_reduction() -> None:
    mine = [rdmacoll.add_process_set([rank]) for rank in range(SIZE)][RANK]
    for library in some(KERAS):
        for is_function in (False, True):
            variables, optimizer = weights(), wrapped(library)

            def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(zip(gradients(variables, process_set=mine), variables))

            each_way(step)[is_function]()
            holds(variables, [-array for array in TOTALS])


def check_an_optimizer_of_tensorflow_1_refuses_what_nobody_has_reduced() -> None:
    for is_function in (False, True):
        variables, optimizer = weights(), wrapped("v1")

        def step(variables: Any = variables, optimizer: Any = optimizer) -> None:
            optimizer.apply_gradients(zip(gradients(variables, is_wrapped=False), variables))

        call = each_way(step)[is_function]
        assert "compute_gradients was never called" in str(raised(rdmacoll.ConfigError, step))
        optimizer.minimize(
            lambda variables=variables: tf.reduce_sum(variables[0] * slope(0)), var_list=variables[:1]
        )
        if SIZE > 1:
            text = str(raised(ERRORS, call))
            assert "got gradients that differ between ranks" in text, text
        holds(variables, [-TOTALS[0], 0.0 * TOTALS[1]])
    passes = wrapped("v1", backward_passes_per_step=2)
    raised(rdmacoll.ConfigError, lambda: passes.apply_gradients(zip(gradients(variables), variables)))


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
