"""Compares steps of several passes on real ranks with one process that trains on the joined batches. The
programs apply gradients of several sets of variables, or compute several gradients before they apply them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from tf_common import close, raised, run_all, value

import rdmacoll

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
PASSES, STEPS = 2, 3
v1 = tf.compat.v1


def wrapped_of_keras_3() -> Any:
    """Returns an optimizer that applies the sum of all passes."""
    return rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=PASSES)


def gradient(rank: int, number: int, place: int) -> np.ndarray:
    """Returns the gradient of a rank for a pass and for the variable at this place."""
    return value(rank, (3,), salt=10 * number + place)


def of_one_process(place: int, steps: int = STEPS) -> np.ndarray:
    """Returns the variable at this place after steps with the learning rate 1."""
    gradients = [gradient(rank, number, place) for rank in range(SIZE) for number in range(PASSES * steps)]
    return -np.sum(gradients, axis=0) / SIZE


def zeros(count: int = 2) -> list[Any]:
    return [keras.Variable(np.zeros(3, np.float32)) for _ in range(count)]


def trained(call: Callable[[Any], None], *, is_function: bool) -> None:
    """Calls it with the number of each pass, eagerly or as a tf.function."""
    step = tf.function(call, autograph=False) if is_function else call
    for number in range(PASSES * STEPS):
        step(tf.constant(number))


def own_gradient(number: Any, place: int) -> Any:
    """Returns the gradient of this rank for a pass, whose number may be a tensor of a graph."""
    return tf.gather(np.stack([gradient(RANK, n, place) for n in range(PASSES * STEPS)]), number)


def in_turn(optimizers: list[Any], variables: list[Any], sets: list[list[int]]) -> Callable[[Any], None]:
    """Returns a pass: each optimizer applies gradients of the variables at the places of its set."""

    def step(number: Any) -> None:
        for optimizer, places in zip(optimizers, sets):
            gradients = [own_gradient(number, place) for place in places]
            optimizer.apply(gradients, [variables[place] for place in places])

    return step


def check_passes_of_two_sets_in_turn_are_refused_in_keras_3() -> None:
    """Keras counts passes of both sets together, so that a GAN would train one network alone."""
    for is_function in (False, True):
        for sets in ([[0], [1]], [[0, 1], [0]]):
            variables, optimizer = zeros(), wrapped_of_keras_3()
            optimizer.build(variables)
            step = in_turn([optimizer, optimizer], variables, sets)
            error = raised(rdmacoll.ConfigError, functools.partial(trained, step, is_function=is_function))
            assert "an optimizer of its own" in str(error), error


def check_two_functions_for_two_sets_are_refused_in_keras_3() -> None:
    variables, optimizer = zeros(), wrapped_of_keras_3()
    optimizer.build(variables)

    def function_of(variable: Any) -> Callable[[], Any]:
        return tf.function(lambda: optimizer.apply([tf.ones(3)], [variable]))

    steps = [function_of(variable) for variable in variables]
    for _ in range(PASSES):  # a whole step
        steps[0]()
    raised(rdmacoll.ConfigError, steps[1])


def check_each_set_trains_with_its_own_optimizer() -> None:
    for is_function in (False, True):
        variables, optimizers = zeros(), [wrapped_of_keras_3() for _ in range(2)]
        for optimizer, variable in zip(optimizers, variables):
            optimizer.build([variable])
        trained(in_turn(optimizers, variables, [[0], [1]]), is_function=is_function)
        for place in range(2):
            close(np.asarray(variables[place]), of_one_process(place))


def check_gradients_that_come_in_the_last_pass_alone_are_applied() -> None:
    variables, optimizer = zeros(), wrapped_of_keras_3()
    optimizer.build(variables)
    for number in range(PASSES * STEPS):
        is_last = number % PASSES == PASSES - 1
        optimizer.apply([own_gradient(number, 0), own_gradient(number, 1) if is_last else None], variables)
    close(np.asarray(variables[0]), of_one_process(0))
    numbers = range(PASSES - 1, PASSES * STEPS, PASSES)
    close(
        np.asarray(variables[1]),
        -sum(gradient(rank, number, 1) for rank in range(SIZE) for number in numbers) / SIZE,
    )


def check_layers_may_be_frozen_between_trainings() -> None:
    x, y = value(RANK, (12, 3)), value(RANK, (12, 1), salt=1)
    layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((3,)), *layers])
    optimizer = wrapped_of_keras_3()
    optimizer.learning_rate = 0.01
    optimizer.build(model.trainable_variables)
    rdmacoll.broadcast_variables(model.variables)
    for frozen in ([0], [], [1], []):
        for place, layer in enumerate(layers):
            layer.trainable = place not in frozen
        model.compile(optimizer, "mse")
        before = [layer.get_weights()[0] for layer in layers]
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)  # three passes
        for place, layer in enumerate(layers):
            is_same = bool(np.array_equal(before[place], layer.get_weights()[0]))
            assert is_same is (place in frozen), (frozen, place)


def wrapped_of_v1() -> Any:
    return rdmacoll.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=PASSES
    )


def loss_of(number: Any, place: int, variable: Any) -> Any:
    """Returns a loss with the gradient of this rank, for each place."""
    return tf.reduce_sum(own_gradient(number, place) * variable)


Computed = list[list[tuple[Any, Any]]]  # the pairs of each set of variables


def one_by_one(optimizer: Any, computed: Computed) -> list[Any]:
    return [optimizer.apply_gradients(pairs) for pairs in computed]


def at_once(optimizer: Any, computed: Computed) -> list[Any]:
    return [optimizer.apply_gradients([pair for pairs in computed for pair in pairs])]


def mean_of_towers(optimizer: Any, computed: Computed) -> list[Any]:
    mean = [(sum(gradient for gradient, _ in pairs) / 2, pairs[0][1]) for pairs in zip(*computed)]
    return [optimizer.apply_gradients(mean)]


Apply = Callable[[Any, Computed], list[Any]]


def trained_eagerly(apply: Apply, places: tuple[int, int], *, is_function: bool) -> list[np.ndarray]:
    """Returns both variables of TensorFlow 1. Each pass computes the gradients at both places."""
    variables, optimizer = [tf.Variable(tf.zeros(3)) for _ in range(2)], wrapped_of_v1()

    def step(number: Any) -> None:
        apply(optimizer, [computed_eagerly(optimizer, number, place, variables[place]) for place in places])

    trained(step, is_function=is_function)
    return [variable.numpy() for variable in variables]


def computed_eagerly(optimizer: Any, number: Any, place: int, variable: Any) -> Any:
    return optimizer.compute_gradients(lambda: loss_of(number, place, variable), [variable])


def trained_in_a_session(apply: Apply, places: tuple[int, int]) -> list[np.ndarray]:
    """Like `trained_eagerly`."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, initializer=tf.zeros(3)) for name in "ab"]
        number, optimizer = v1.placeholder(tf.int32, ()), wrapped_of_v1()
        step = apply(
            optimizer,
            [
                optimizer.compute_gradients(loss_of(number, place, variables[place]), [variables[place]])
                for place in places
            ],
        )
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for one in range(PASSES * STEPS):
            session.run(step, {number: one})
        return list(session.run(variables))


WAYS = [
    functools.partial(trained_eagerly, is_function=False),
    functools.partial(trained_eagerly, is_function=True),
    trained_in_a_session,
]


def check_gradients_may_be_computed_before_others_are_applied_in_tensorflow_1() -> None:
    for train in WAYS:
        for apply in (one_by_one, at_once):
            for place, found in enumerate(train(apply, (0, 1))):
                close(found, of_one_process(place))


def check_towers_of_the_same_variables_are_refused_in_tensorflow_1() -> None:
    for train in WAYS:
        error = raised(rdmacoll.ConfigError, functools.partial(train, mean_of_towers, (0, 0)))
        assert "with the mean of the losses" in str(error), error


def check_gradients_that_were_never_computed_are_refused_in_tensorflow_1() -> None:
    optimizer, variables = wrapped_of_v1(), [tf.Variable(tf.zeros(3)) for _ in range(2)]
    optimizer.minimize(lambda: loss_of(0, 0, variables[0]), var_list=variables[:1])
    error = raised(
        rdmacoll.ConfigError, lambda: optimizer.apply_gradients([(own_gradient(0, 1), variables[1])])
    )
    assert "never called" in str(error), error


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
