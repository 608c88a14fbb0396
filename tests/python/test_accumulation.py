"""Sums of several backward passes, on one rank."""

from __future__ import annotations

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
