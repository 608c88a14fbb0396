"""Sums of several backward passes, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from rdmacoll.optimizer.accumulation import Accumulation


def test_passes_of_two_sets_of_variables_are_counted_apart() -> None:
    """A GAN with one optimizer applies gradients of two networks in turn."""
    accumulation = Accumulation(2, is_mean=False)
    first, second = tf.Variable([0.0]), tf.Variable([0.0])
    applied = []
    for number in range(4):
        for variable, scale in ((first, 1.0), (second, 100.0)):
            pairs = [(tf.constant([scale * (number + 1)]), variable)]
            own = accumulation.of(pairs)
            sums, is_last = own.add(pairs)
            own.when(is_last, lambda sums=sums: applied.append(float(sums[0][0][0])))
    assert applied == [3.0, 300.0, 7.0, 700.0]


def test_a_gradient_of_an_earlier_pass_is_in_the_sum_of_the_step() -> None:
    accumulation = Accumulation(2, is_mean=False)
    heads = [tf.Variable([0.0]), tf.Variable([0.0]), tf.Variable([0.0])]
    accumulation.add([(tf.constant([1.0]), heads[0]), (None, heads[1]), (None, heads[2])])
    sums, is_last = accumulation.add([(None, heads[0]), (tf.constant([2.0]), heads[1]), (None, heads[2])])
    assert bool(is_last)
    assert [None if gradient is None else float(gradient[0]) for gradient, _ in sums] == [1.0, 2.0, None]


def two_heads(accumulation: Accumulation) -> tuple[list[Any], Callable[[int], Callable[[], Any]]]:
    """Returns two variables, and a function that makes traced passes with a gradient of one of them."""
    heads = [tf.Variable([0.0]), tf.Variable([0.0])]

    def pass_of(place: int) -> Callable[[], Any]:
        def call() -> Any:
            pairs = [(tf.constant([1.0]) if place == own else None, heads[own]) for own in (0, 1)]
            sums, is_last = accumulation.add(pairs)

            def apply() -> Any:
                for gradient, head in sums:
                    if gradient is not None:
                        head.assign_add(gradient)
                return tf.identity(heads[0])

            return accumulation.when(is_last, apply)

        return tf.function(call, autograph=False)

    return heads, pass_of


def test_functions_that_know_all_gradients_of_a_step_apply_them() -> None:
    heads, pass_of = two_heads(Accumulation(2, is_mean=False))
    first, second = pass_of(0), pass_of(1)
    for call in (first, second, first, first, second, second, first, second):
        call()
    assert [float(one.numpy()[0]) for one in heads] == [4.0, 4.0]


def test_a_function_that_leaves_a_gradient_of_the_step_out_is_an_error() -> None:
    """It was traced when no pass had a gradient of the second variable."""
    heads, pass_of = two_heads(Accumulation(2, is_mean=False))
    first, second = pass_of(0), pass_of(1)
    for call in (first, first, second):
        call()
    with pytest.raises(tf.errors.InvalidArgumentError, match="give zeros instead"):
        first()
    assert [float(one.numpy()[0]) for one in heads] == [2.0, 0.0]
