"""Tests that ranks whose weights differ are detected with a wrapped tape and a plain optimizer, in loops of
programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_common import run_all, value
from tf_weights_common import (
    LAST,
    RANK,
    SIZE,
    apart,
    data,
    keras,
    lines,
    loop,
    moved,
    sgd,
    slots,
    small,
    warned,
    with_settings,
)

import rdmacoll

STEPS = 9


def sends(model: Any) -> Callable[[int], None]:
    """Broadcasts after the first step."""
    return lambda number: None if number else rdmacoll.broadcast_variables(model.variables, 0)


def moves(model: Any, at: int, rank: int = LAST) -> Callable[[int], None]:
    """Changes a weight of one rank after step `at`."""
    return lambda number: moved(model.trainable_variables[0]) if (number, RANK) == (at, rank) else None


def with_tape(
    model: Any,
    steps: int,
    *,
    eagerly: bool = False,
    passes: int = 1,
    after: Any = None,
    wraps: bool = False,
    **options: Any,
) -> None:
    """Trains in a program's own loop. The tape is wrapped, with `options`. The optimizer is only if it
    `wraps`."""
    optimizer = sgd() if wraps else keras.optimizers.SGD(0.05, momentum=0.9)

    def step(x: Any, y: Any) -> None:
        variables = model.trainable_variables
        sums = [tf.zeros_like(variable) for variable in variables]
        for _ in range(passes):
            with rdmacoll.DistributedGradientTape(tf.GradientTape(), **options) as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            sums = [total + one for total, one in zip(sums, tape.gradient(loss, variables))]
        optimizer.apply_gradients(zip(sums, variables))

    run = step if eagerly else tf.function(step)
    for number in range(steps):
        run(*map(tf.constant, data(1, salt=number)))
        if after:
            after(number)


def check_a_weight_that_one_rank_changed_is_an_error() -> None:
    for eagerly, is_broadcast in itertools.product((True, False), repeat=2):
        model = small(seed=None if is_broadcast else 0)
        if is_broadcast:
            rdmacoll.broadcast_variables(model.variables, 0)
        apart(
            lambda model=model, eagerly=eagerly: with_tape(
                model, STEPS, eagerly=eagerly, after=moves(model, 3)
            ),
            "at the gradients number 8 of DistributedGradientTape",
            f"kernel of rank {LAST} differs from rank 0's by up to 0.25",
        )


def check_a_loop_with_a_wrapped_optimizer_ends_in_the_same_error() -> None:
    for is_broadcast in (True, False):
        model, optimizer = small(seed=None if is_broadcast else 0), sgd()
        if is_broadcast:
            rdmacoll.broadcast_variables(model.variables, 0)
        apart(
            lambda model=model, optimizer=optimizer: loop(model, optimizer, STEPS, after=moves(model, 4)),
            "after update 8 of DistributedOptimizer",
            f"of rank {LAST} differs from rank 0's",
        )


def check_ranks_that_a_late_broadcast_made_equal_are_judged() -> None:
    model, optimizer = small(), sgd()

    def after(number: int) -> None:
        if number == 2:
            rdmacoll.broadcast_variables([*model.variables, *slots(optimizer)], 0)
        moves(model, 4)(number)

    with lines() as said:
        apart(lambda: loop(model, optimizer, STEPS, after=after), "after update 8 of DistributedOptimizer")
    assert sum("train apart" in line for line in said) == int(RANK == 0), said


def check_a_tape_with_a_plain_optimizer_is_compared_before_its_updates() -> None:
    for eagerly in (True, False):
        text = warned(lambda eagerly=eagerly: with_tape(small(), STEPS, eagerly=eagerly))
        assert RANK or "kernel of rank" in text, text
        assert RANK or "at the gradients number 2 of DistributedGradientTape" in text, text
        model = small()
        assert not warned(
            lambda model=model, eagerly=eagerly: with_tape(model, STEPS, eagerly=eagerly, after=sends(model))
        )


def check_the_passes_of_a_tape_before_the_first_update_are_not_judged() -> None:
    model = small()
    assert not warned(lambda: with_tape(model, 4, passes=2, after=sends(model)))


def check_a_tape_that_is_not_alone_leaves_the_comparison_to_the_optimizer() -> None:
    text = warned(lambda: with_tape(small(), STEPS, wraps=True))
    assert RANK or "after update 2 of DistributedOptimizer" in text, text


@with_settings(check_weights=3)
def check_a_tape_ends_at_a_number_of_its_gradients() -> None:
    model = small(seed=0)
    apart(lambda: with_tape(model, STEPS, after=moves(model, 3)), "at the gradients number 6 of")


@with_settings(check_weights="off")
def check_nothing_is_compared_if_it_is_off() -> None:
    assert not warned(lambda: with_tape(small(), STEPS))


@with_settings(check_weights=2)
def check_a_tape_s_process_set_compares_its_ranks_alone() -> None:
    pair, single = rdmacoll.add_process_set([0, LAST]), rdmacoll.add_process_set([1])
    model, mine = small(seed=RANK % 2), single if RANK == 1 else pair
    with_tape(model, 5, process_set=mine)
    if RANK == 1:
        with_tape(model, 4, process_set=mine, after=moves(model, 1, rank=1))
    else:
        apart(
            lambda: with_tape(model, 4, process_set=mine, after=moves(model, 1)),
            f"kernel of rank {LAST} differs from rank 0's",
        )
    rdmacoll.remove_process_set(pair)
    rdmacoll.remove_process_set(single)


@with_settings(check_weights=1)
def check_ranks_that_have_joined_take_no_part_at_a_tape() -> None:
    model = small(seed=0)
    for _ in range(2):
        with_tape(model, 3 + 2 * RANK)
        rdmacoll.broadcast_variables(model.variables, rdmacoll.join())
    with_tape(model, 2)
    if RANK == 1:
        moved(model.trainable_variables[0])
    if RANK == 0:
        rdmacoll.join()
    else:
        apart(lambda: with_tape(model, 2), "kernel of rank 2 differs from rank 1's")
        rdmacoll.join()


@with_settings(check_weights=1)
def check_sources_that_are_declared_local_may_differ() -> None:
    same, own = tf.Variable(value(0, (3,)), name="same"), tf.Variable(value(RANK, (3,)), name="own")
    rdmacoll.declare_local([own])

    def step() -> None:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum((same * own) ** 2)
        for one, variable in zip(tape.gradient(loss, [same, own]), (same, own)):
            variable.assign_sub(0.01 * one)

    for run in (step, tf.function(step)):
        for _ in range(4):
            run()
    if RANK == LAST:
        moved(same)
    apart(step, f"same of rank {LAST} differs")


@with_settings(check_weights=1)
def check_several_tapes_of_the_same_sources_and_gradients_of_gradients() -> None:
    weights = [tf.Variable(value(0, shape, salt=i)) for i, shape in enumerate([(3, 2), (2,)])]

    def loss_of(x: Any) -> Any:
        return tf.reduce_mean((x @ weights[0] + weights[1]) ** 2)

    def wrapped(**options: Any) -> Any:
        return rdmacoll.DistributedGradientTape(tf.GradientTape(**options))

    def apply(found: list[Any]) -> None:
        for one, weight in zip(found, weights):
            weight.assign_sub(0.01 * one)

    def of_two_losses(x: Any) -> None:
        with wrapped(persistent=True) as tape:
            losses = loss_of(x), loss_of(2.0 * x)
        first, second = (tape.gradient(loss, weights) for loss in losses)
        apply([one + other for one, other in zip(first, second)])

    def of_a_gradient(x: Any) -> None:
        with wrapped() as outer:
            with tf.GradientTape() as inner:
                loss = loss_of(x)
            loss += tf.add_n([tf.reduce_sum(one**2) for one in inner.gradient(loss, weights)])
        apply(outer.gradient(loss, weights))

    def of_a_reduced_gradient(x: Any) -> None:
        with wrapped() as outer:
            with wrapped() as inner:
                loss = loss_of(x)
            loss += tf.add_n([tf.reduce_sum(one**2) for one in inner.gradient(loss, weights)])
        apply(outer.gradient(loss, weights))

    def in_a_loop_of_the_graph(x: Any) -> None:
        for _ in tf.range(3):
            with wrapped() as tape:
                loss = loss_of(x)
            apply(tape.gradient(loss, weights))

    steps = [of_two_losses, of_a_gradient, of_a_reduced_gradient]
    for run in [*steps, *map(tf.function, steps), tf.function(in_a_loop_of_the_graph)]:
        for number in range(3):
            run(tf.constant(value(RANK, (4, 3), salt=number)))
        if RANK == LAST:
            moved(weights[1])
        apart(lambda run=run: run(tf.constant(value(RANK, (4, 3)))), f"of rank {LAST} differs")
        rdmacoll.broadcast_variables(weights, 0)


if __name__ == "__main__":
    assert SIZE > 2
    run_all(globals())
    rdmacoll.shutdown()
