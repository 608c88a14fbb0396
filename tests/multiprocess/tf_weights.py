"""Tests that ranks whose weights differ are detected, without false alarms: in loops, and by check_weights().
The second argument is a prefix of the checks to run."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import SEED, raised, run_all, value
from tf_weights_common import (
    BATCH,
    LAST,
    RANK,
    STEPS,
    At,
    Sends,
    apart,
    broadcast,
    data,
    fit,
    keras,
    lines,
    loop,
    moved,
    sgd,
    slots,
    small,
    with_settings,
)

import rdmacoll


class Chosen(keras.callbacks.Callback):
    """A learning rate that each rank chooses by itself, as ReduceLROnPlateau does by its own metric."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.025 if RANK == LAST else 0.05


def check_fit_is_compared_after_its_first_update_and_each_epoch() -> None:
    # A callback of the program may broadcast behind the first batch, so the next update is judged.
    apart(lambda: fit(small(), sgd()), "after update 2 of", "kernel of rank")
    model = small()
    rdmacoll.broadcast_variables(model.variables, 0)
    if RANK == LAST:
        moved(model.trainable_variables[0])
    apart(lambda: fit(model, sgd()), "after update 1 of", "kernel of rank")
    text = apart(lambda: fit(small(), sgd(), broadcast(), Chosen(), epochs=4), f"after update {2 * STEPS} of")
    assert f"learning_rate of rank {LAST} differs from rank 0's by up to 0.025" in text


def check_networks_and_optimizers_that_the_model_hides() -> None:
    inner, optimizer = small(), sgd()

    class Holder(keras.Model):  # type: ignore[misc]
        """A model that has neither its variables nor its optimizer as attributes."""

        def train_step(self, pair: Any) -> dict[str, Any]:
            x, y = pair
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((inner(x, training=True) - y) ** 2)
            variables = inner.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    model = Holder()
    model.compile()
    apart(lambda: model.fit(*data(), BATCH, epochs=4, verbose=0, callbacks=[broadcast()]), "kernel of rank")


def check_fit_may_broadcast_behind_its_first_batch() -> None:
    fit(small(), sgd(), Sends(), epochs=3)
    # Callbacks hear of three batches at once.
    fit(small(), sgd(), Sends(), epochs=2, steps=6, steps_per_execution=3)
    late = At(lambda model: moved(model.trainable_variables[0]), LAST, batch=1)
    apart(lambda: fit(small(), sgd(), Sends(), late), f"after update {STEPS} of", "kernel of rank")


@with_settings(check_weights=2)
def check_a_process_set_compares_its_ranks_alone() -> None:
    pair, single = rdmacoll.add_process_set([0, LAST]), rdmacoll.add_process_set([1])
    model, optimizer = small(seed=RANK % 2), sgd(process_set=single if RANK == 1 else pair)
    loop(model, optimizer, 5)
    rdmacoll.check_weights(model, optimizer)
    if RANK == LAST:
        moved(model.trainable_variables[0])
    if RANK == 1:
        loop(model, optimizer, 1)
    else:
        apart(lambda: loop(model, optimizer, 1), f"of rank {LAST} differs from rank 0's", "process_set")
    apart(lambda: rdmacoll.check_weights(model, process_set=rdmacoll.global_process_set), "rank 0's")
    rdmacoll.remove_process_set(pair)
    rdmacoll.remove_process_set(single)


@with_settings(check_weights=1)
def check_ranks_that_have_joined_take_no_part() -> None:
    model, optimizer = small(seed=0), sgd()
    for _ in range(2):
        loop(model, optimizer, 3 + 2 * RANK)
        last = rdmacoll.join()
        rdmacoll.broadcast_variables([*model.variables, *slots(optimizer)], last)
        optimizer.iterations.assign(10)
    loop(model, optimizer, 2)
    if RANK == 1:
        moved(model.trainable_variables[0])
    if RANK == 0:
        rdmacoll.join()
    else:
        apart(lambda: loop(model, optimizer, 1), "kernel of rank 2 differs from rank 1's")
        rdmacoll.join()


def check_ranks_that_have_joined_hear_that_they_miss_updates() -> None:
    model, optimizer = small(seed=0), sgd()
    loop(model, optimizer, 3 + 2 * RANK)
    rdmacoll.join()
    with lines() as said:
        loop(model, optimizer, 2)
    found = [line for line in said if "train apart" in line]
    assert len(found) == int(RANK == 0), said
    assert all("after update 2 of" in line and " since join(), " in line for line in found), found
    assert all("+ model.optimizer.variables, root_rank=R" in line for line in found), found
    assert not any("before the first batch" in line for line in found), found


@with_settings(check_weights=3)
def check_a_number_of_updates_is_an_error_in_loops_too() -> None:
    model, optimizer = small(), sgd()

    def after(number: int) -> None:
        if number == 0:
            rdmacoll.broadcast_variables([*model.variables, *slots(optimizer)], 0)
        if number == 3 and RANK == LAST:
            moved(model.trainable_variables[0])

    apart(lambda: loop(model, optimizer, 9, after=after), "after update 6 of")


def check_loops_are_warned_once() -> None:
    def after(number: int) -> None:
        if number == 0 and is_broadcast:
            rdmacoll.broadcast_variables([*model.variables, *slots(optimizer)], 0)

    for is_broadcast in (True, False):
        model, optimizer = small(), sgd()
        with lines() as said:
            loop(model, optimizer, 9, after=after)
        found = [line for line in said if "train apart" in line]
        assert len(found) == int(RANK == 0 and not is_broadcast), said
        assert all("warning: " in line and "after update 2 of" in line for line in found)


def check_loops_ask_for_themselves() -> None:
    model, optimizer = small(), sgd()
    apart(lambda: rdmacoll.check_weights(model, optimizer), "kernel of rank", "in check_weights()")

    def after(number: int) -> None:
        if number == 0:
            rdmacoll.broadcast_variables([*model.variables, *slots(optimizer)], 0)
        rdmacoll.check_weights(model, optimizer)

    loop(model, optimizer, 3, after=after)
    if RANK == LAST:
        optimizer.learning_rate = 0.01
    apart(
        lambda: rdmacoll.check_weights(model, optimizer),
        f"of rank {LAST} differs from rank 0's by up to 0.04",
    )
    optimizer.learning_rate = 0.05
    if RANK == 1:
        moved(slots(optimizer)[0])
    apart(lambda: rdmacoll.check_weights(model, optimizer), "of rank 1 differs")
    rdmacoll.check_weights(model.trainable_variables)
    rdmacoll.broadcast_variables(slots(optimizer), 0)
    rdmacoll.check_weights(model, optimizer)


def check_variables_that_are_declared_local_may_differ() -> None:
    same, own = (tf.Variable(np.full((2,), one, np.float32)) for one in (1, RANK))
    rdmacoll.declare_local([own])
    rdmacoll.check_weights([same, own])
    same.assign_add([0.0, float(RANK == LAST)])
    apart(lambda: rdmacoll.check_weights([same, own]), f"of rank {LAST} differs")
    raised(rdmacoll.ConfigError, lambda: rdmacoll.declare_local([1.0]))


def check_states_that_grow_on_each_rank_are_left_out() -> None:
    class Model:
        trainable_variables = (tf.Variable(value(0, (2,))),)
        non_trainable_weights = (
            tf.Variable(value(RANK, (RANK + 1,)), shape=[None], name="seen"),
            tf.Variable(value(0, (2,)), name="fixed"),
        )

    rdmacoll.check_weights(Model())
    moved(Model.trainable_variables[0], float(RANK == LAST))
    apart(lambda: rdmacoll.check_weights(Model()), f"of rank {LAST} differs")


def check_a_list_of_callbacks_stays_as_it_is() -> None:
    model, optimizer = small(seed=0), sgd()
    model.compile(optimizer, "mse")
    callbacks = keras.callbacks.CallbackList([broadcast()], model=model)
    kept = list(callbacks.callbacks)
    for _ in range(2):
        model.fit(*data(), batch_size=4, verbose=0, callbacks=callbacks)
        assert list(callbacks.callbacks) == kept


def check_values_of_every_dtype_and_size() -> None:
    for dtype in ("bool", "int8", "int64", "float16", "bfloat16", "float64", "complex64"):
        variable = tf.Variable(tf.cast(tf.constant(value(0, (3, 3))) * 2, dtype), name=dtype)
        rdmacoll.check_weights([variable, tf.Variable(tf.zeros((0, 4)))])
        if RANK == 1:
            changed = variable.numpy().copy()
            changed[2, 2] = not changed[2, 2] if dtype == "bool" else changed[2, 2] + 1
            variable.assign(changed)
        apart(lambda variable=variable: rdmacoll.check_weights([variable]), f"{dtype} of rank 1 differs")
    nan = tf.Variable([np.nan, 1.0])
    rdmacoll.check_weights([nan])
    nan.assign([np.nan, np.nan if RANK == LAST else 1.0])
    apart(lambda: rdmacoll.check_weights([nan]), "by up to inf")


def check_what_cannot_be_compared_is_said_on_all_ranks() -> None:
    variables = [tf.Variable(tf.zeros((2,))) for _ in range(2 + (RANK == 1))]
    error = raised(rdmacoll.MismatchError, lambda: rdmacoll.check_weights(variables))
    assert "rank 1 compares 3 weights" in str(error)
    assert "rank 0 compares 2" in str(error)

    class Broken:
        @property
        def trainable_variables(self) -> Any:
            if RANK == LAST:
                raise OSError("no disk")
            return variables[:2]

    error = raised(Exception, lambda: rdmacoll.check_weights(Broken()))
    assert ("no disk" if RANK == LAST else f"rank {LAST} could not read") in str(error)
    error = raised(rdmacoll.ConfigError, tf.function(lambda: rdmacoll.check_weights(variables)))
    assert "inside a tf.function" in str(error)
    for given, words in (
        ((None,), "or a list of variables, not NoneType."),
        ((["a"],), "or a list of variables, not a list with str."),
        ((variables, "adam"), "check_weights(optimizer='adam'): give an optimizer"),
    ):
        error = raised(rdmacoll.ConfigError, lambda given=given: rdmacoll.check_weights(*given))
        assert words in str(error), error


@with_settings(check_weights=1)
def check_what_a_step_does_behind_its_update_is_not_seen_half_done() -> None:
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(20000), keras.layers.Dense(1)])
    optimizer = sgd()

    @tf.function
    def step(x: Any, y: Any) -> None:
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            for variable in variables:
                variable.assign(tf.clip_by_value(tf.convert_to_tensor(variable), -0.01, 0.01))

    for number in range(6):
        x, y = data(1, salt=number)
        step(tf.constant(x), tf.constant(y))


if __name__ == "__main__":
    run_all(globals(), *sys.argv[2:])
    rdmacoll.shutdown()
