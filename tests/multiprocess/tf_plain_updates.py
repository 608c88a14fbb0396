"""Tests that updates by plain optimizers are noticed in programs that reduce gradients elsewhere. The
argument is that of tf_weights_common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import raised, run_all, value
from tf_weights_common import (
    OPTIMIZERS,
    RANK,
    SIZE,
    data,
    keras,
    sgd,
    small,
    warned,
    with_settings,
)

import rdmacoll
from rdmacoll import tensorflow as hvd

WAYS = (lambda step: step, tf.function)


def plain(**options: Any) -> Any:
    return OPTIMIZERS.SGD(0.05, **options)


def loss_of(models: list[Any], x: Any, y: Any) -> Any:
    return tf.add_n([tf.reduce_mean((model(x, training=True) - y) ** 2) for model in models])


def trained(step: Callable[[Any, Any], None], way: Any = tf.function, steps: int = 3) -> None:
    run = way(step)
    for number in range(steps):
        run(*map(tf.constant, data(1, salt=number)))


def in_parts(
    first: Any, second: Any, optimizer: Any, reduce: Callable[[list[Any]], list[Any]] = lambda own: own
) -> Callable[[Any, Any], None]:
    """Returns a step: a wrapped tape covers the first model alone, and `reduce` gets the gradients of the
    second one. The optimizer applies all of them in one call."""

    def step(x: Any, y: Any) -> None:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape, tf.GradientTape() as other:
            loss = loss_of([first, second], x, y)
        variables = [*first.trainable_variables, *second.trainable_variables]
        found = tape.gradient(loss, first.trainable_variables)
        found += reduce(other.gradient(loss, second.trainable_variables))
        optimizer.apply_gradients(zip(found, variables))

    return step


def check_a_part_of_the_model_that_the_tape_leaves_out_is_named() -> None:
    for way in WAYS:
        first, second = small(seed=0), small(seed=1)
        text = warned(lambda way=way, a=first, b=second: trained(in_parts(a, b, plain()), way))
        assert RANK or "a plain SGD updates" in text, text
        assert RANK or "and others by gradients of all ranks" in text, text
        name = getattr(second.trainable_variables[0], "path", second.trainable_variables[0].name)
        assert RANK or name in text, (name, text)


def check_a_model_that_was_broadcast_and_is_not_reduced_is_named() -> None:
    for way in WAYS:
        first, second = small(), small()
        for model in (first, second):
            rdmacoll.broadcast_variables(model.variables, 0)
        optimizers = sgd(), plain()

        def step(
            x: Any, y: Any, models: tuple[Any, Any] = (first, second), optimizers: Any = optimizers
        ) -> None:
            for model, optimizer in zip(models, optimizers):
                with tf.GradientTape() as tape:
                    loss = loss_of([model], x, y)
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        text = warned(lambda step=step, way=way: trained(step, way))
        assert RANK or "by gradients of this rank alone, which a broadcast has made equal" in text, text


def check_gradients_that_are_all_reduced_are_no_cause() -> None:
    def averaged(own: list[Any]) -> list[Any]:
        return [rdmacoll.allreduce(one, op=rdmacoll.Average) for one in own]

    for way in WAYS:
        models = small(seed=0), small(seed=1)
        assert not warned(lambda way=way, models=models: trained(in_parts(*models, plain(), averaged), way))
        models, other = (small(seed=0), small(seed=1)), sgd()
        assert not warned(lambda way=way, models=models, o=other: trained(in_parts(*models, o), way))


def check_a_model_of_each_rank_may_train_beside_a_shared_one() -> None:
    """It has never been equal on all ranks, and no call updates it together with a shared one."""
    shared, own = small(seed=0), small()
    optimizers = plain(), plain()

    def step(x: Any, y: Any) -> None:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape, tf.GradientTape() as other:
            losses = loss_of([shared], x, y), loss_of([own], x, y)
        for one, loss, model, optimizer in zip((tape, other), losses, (shared, own), optimizers):
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(one.gradient(loss, variables), variables))

    assert not warned(lambda: trained(step))


def check_variables_that_are_declared_local_are_no_cause() -> None:
    first, second = small(seed=0), small()
    rdmacoll.declare_local(second.trainable_variables)
    assert not warned(lambda: trained(in_parts(first, second, plain())))


def check_sources_of_the_tape_that_are_local_are_no_cause() -> None:
    first, second = small(seed=0), small()
    assert not warned(lambda: trained(with_local(first, second, plain(clipnorm=0.1))))


def with_local(first: Any, second: Any, optimizer: Any) -> Callable[[Any, Any], None]:
    """Returns a step: the second model's gradients stay those of this rank."""

    def step(x: Any, y: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of([first, second], x, y)
        for one in second.trainable_variables:
            tape.register_local_source(one)
        variables = [*first.trainable_variables, *second.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    return step


def check_shared_gradients_are_not_clipped_by_a_norm_of_each_rank() -> None:
    for way in WAYS:
        first, second = small(seed=0), small()
        step = with_local(first, second, plain(global_clipnorm=0.1))
        error = raised(Exception, lambda step=step, way=way: trained(step, way))
        found = rdmacoll.error_from(error)
        assert isinstance(found, rdmacoll.ConfigError), repr(error)
        assert "global_clipnorm=0.1 of an optimizer with local variables" in str(found)


def check_the_norm_of_all_gradients_is_that_of_one_process_if_all_are_reduced() -> None:
    model, alone = small(seed=0), small(seed=0)
    for one, other in zip(model.variables, alone.variables):
        other.assign(np.asarray(one))
    optimizer, other = plain(global_clipnorm=0.1), plain(global_clipnorm=0.1)

    def step(x: Any, y: Any) -> None:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of([model], x, y)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    assert not warned(lambda: trained(step))
    for number in range(3):
        x = np.concatenate([value(rank, (4, 5), salt=number) for rank in range(SIZE)])
        y = np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)
        with tf.GradientTape() as tape:
            loss = loss_of([alone], x, y)
        variables = alone.trainable_variables
        other.apply_gradients(zip(tape.gradient(loss, variables), variables))
    for one, wanted in zip(model.variables, alone.variables):
        np.testing.assert_allclose(np.asarray(one), np.asarray(wanted), rtol=1e-5, atol=1e-6)


def check_fit_with_a_train_step_that_leaves_a_part_out_is_warned_of() -> None:
    class Parts(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.first(x) + self.second(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape, tf.GradientTape() as other:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            variables = [*self.first.trainable_variables, *self.second.trainable_variables]
            found = tape.gradient(loss, variables[:2]) + other.gradient(loss, variables[2:])
            self.optimizer.apply_gradients(zip(found, variables))
            return {"loss": loss}

    model = Parts()
    model.compile(optimizer=plain())
    x, y = data(2)
    model(x)
    rdmacoll.broadcast_variables(model.variables, 0)
    text = warned(lambda: model.fit(x, y, batch_size=4, verbose=0))
    assert RANK or "a plain SGD updates" in text, text


@with_settings(check_weights="off")
def check_nothing_is_said_if_the_check_is_off() -> None:
    assert not warned(lambda: trained(in_parts(small(seed=0), small(seed=1), plain())))


if __name__ == "__main__":
    assert SIZE > 1
    run_all(globals())
    rdmacoll.shutdown()
