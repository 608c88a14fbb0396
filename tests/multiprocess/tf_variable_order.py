"""Tests ranks that list their variables in different orders, or by other names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_common import raised, run_all

import rdmacoll
from rdmacoll.ops import broadcast_variables

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
NAMES = ("age", "income", "height", "weight")
# The order that a set of names has on each rank.
OWN = NAMES if RANK != 1 else ("age", "height", "income", "weight")
STEPS = 12


def variables(names: Sequence[str]) -> list[Any]:
    return [tf.Variable(tf.fill((2,), float(sum(map(ord, name)) + RANK)), name=name) for name in names]


def step_of(own: Sequence[Any]) -> Any:
    """Each variable's gradient is its number times the rank's."""
    numbers = [float(NAMES.index(v.name.partition(":")[0].partition("_")[0])) + 1.0 for v in own]

    def step() -> Any:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(v * number * (RANK + 1.0)) for v, number in zip(own, numbers)])
        return [gradient[0] for gradient in tape.gradient(loss, list(own))]

    return step


def expected(names: Sequence[str]) -> list[float]:
    return [(NAMES.index(name) + 1.0) * (SIZE + 1) / 2 for name in names]


def is_told(error: BaseException) -> None:
    typed = rdmacoll.error_from(error) or error
    assert type(typed) is rdmacoll.MismatchError, error
    text = str(typed)
    others = "ranks 0, 2" if SIZE == 3 else "rank 0"
    for words in (
        "in different orders",
        others,
        "rank 1",
        "income",
        "sort sets",
        "RDMACOLL_CHECK_NAMES=false",
    ):
        assert words in text, (words, text)


def check_gradients_in_another_order_are_an_error() -> None:
    own = variables(OWN)
    is_told(raised(rdmacoll.MismatchError, step_of(own)))
    # The second time it is the same error.
    is_told(raised(rdmacoll.MismatchError, step_of(own)))
    is_told(raised(tf.errors.FailedPreconditionError, tf.function(step_of(own))))
    right = variables(NAMES)
    assert [float(value) for value in step_of(right)()] == expected(NAMES)


def check_a_callback_names_another_order() -> None:
    layers = {name: keras.layers.Dense(1, use_bias=False, name=name) for name in OWN}
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Add()([layers[name](inputs) for name in OWN]))
    model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    begin = rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)
    call = lambda: model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[begin])  # noqa: E731
    is_told(raised(rdmacoll.MismatchError, call))


def check_a_session_names_another_order() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        own = [tf.compat.v1.get_variable(name, (2,)) for name in OWN]
        assert len(own) == len(NAMES)
        session.run(tf.compat.v1.global_variables_initializer())
        hook = rdmacoll.BroadcastGlobalVariablesHook(0)
        hook.begin()
        is_told(raised(rdmacoll.MismatchError, lambda: hook.after_create_session(session, None)))


def check_an_order_that_changes_later_is_an_error() -> None:
    own = variables(NAMES)
    for _ in range(STEPS):  # the last ones run by a plan
        assert [float(value) for value in step_of(own)()] == expected(NAMES)
    changed = [own[NAMES.index(name)] for name in OWN]
    is_told(raised(rdmacoll.MismatchError, step_of(changed)))
    for _ in range(STEPS):
        assert [float(value) for value in step_of(own)()] == expected(NAMES)


def check_names_that_differ_by_counters_are_the_same() -> None:
    own = variables([f"{name}_{5 + RANK}" for name in NAMES])
    for _ in range(STEPS):
        assert [float(value) for value in step_of(own)()] == expected(NAMES)


def check_numbers_in_another_order_are_an_error() -> None:
    own = variables([f"{name}_{number}" for number, name in enumerate(["income"] * 4)])
    assert len(step_of(own)()) == 4
    if RANK == 1:
        own = [own[1], own[0], *own[2:]]
    error = raised(rdmacoll.MismatchError, step_of(own))
    assert "income_1" in str(error), error


def check_other_names_are_told_and_go_on() -> None:
    own = variables(NAMES if RANK != 1 else [f"{name}_of_mine" for name in NAMES])
    for _ in range(STEPS):
        assert [float(value) for value in step_of(own)()] == expected(NAMES)
    broadcast_variables(own)


def check_broadcasts_in_another_order_are_an_error() -> None:
    own = variables(OWN)
    before = [value.numpy() for value in own]
    is_told(raised(rdmacoll.MismatchError, lambda: broadcast_variables(own)))
    assert all(np.array_equal(value, old) for value, old in zip(own, before))
    is_told(raised(tf.errors.FailedPreconditionError, tf.function(lambda: broadcast_variables(own))))
    right = variables(NAMES)
    broadcast_variables(right)
    assert [float(value[0]) for value in right] == [float(sum(map(ord, name))) for name in NAMES]


def check_a_model_that_is_built_from_a_set_is_an_error() -> None:
    inputs = {name: keras.Input((2,), name=name) for name in NAMES}
    towers = [keras.layers.Dense(1, name=f"tower_{name}")(inputs[name]) for name in OWN]
    model = keras.Model(inputs, keras.layers.Add()(towers))
    model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = {name: np.ones((8, 2), np.float32) for name in NAMES}
    error = raised(Exception, lambda: model.fit(data, np.ones((8, 1)), verbose=0))
    is_told(error)


def check_models_whose_names_differ_for_good_reason() -> None:
    rdmacoll.shutdown()
    rdmacoll.init(check_names=False)
    own = variables(OWN)
    np.testing.assert_allclose([float(value) for value in step_of(own)()], mixed(), rtol=1e-6)


def mixed() -> list[float]:
    """Returns the mean by position, in the order of the ranks."""
    orders = [("age", "height", "income", "weight") if rank == 1 else NAMES for rank in range(SIZE)]
    return [
        sum((NAMES.index(order[at]) + 1.0) * (rank + 1.0) for rank, order in enumerate(orders)) / SIZE
        for at in range(len(NAMES))
    ]


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
