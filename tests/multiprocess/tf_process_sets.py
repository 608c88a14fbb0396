"""Process sets in TensorFlow, eager and in functions, with gradients and wrappers: runs on three ranks."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll


def total(one: rdmacoll.ProcessSet) -> float:
    return float(sum(rank + 1 for rank in one.ranks))


def eager(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    x = tf.fill([4], value)
    for one in mine:
        assert rdmacoll.allreduce(x, op=rdmacoll.Sum, process_set=one).numpy()[0] == total(one)
        gathered = rdmacoll.allgather(x[:1], process_set=one)
        assert gathered.numpy().tolist() == [rank + 1.0 for rank in one.ranks]
        assert rdmacoll.broadcast(x, one.ranks[-1], process_set=one).numpy()[0] == one.ranks[-1] + 1
        pair = rdmacoll.grouped_broadcast([x, -x], one.ranks[-1], process_set=one)
        assert [float(each[0]) for each in pair] == [one.ranks[-1] + 1, -one.ranks[-1] - 1]
        part = rdmacoll.reducescatter(x, op=rdmacoll.Sum, process_set=one)
        assert part.numpy().tolist() == [total(one)] * 2


def in_a_function(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    # Ranks have other numbers of collectives, in another order, and one name in two sets.
    @tf.function
    def step(x):
        sums = [rdmacoll.allreduce(x, op=rdmacoll.Sum)]
        sums += [rdmacoll.allreduce(x * 2, op=rdmacoll.Sum, process_set=one) for one in mine]
        return sums + [rdmacoll.allreduce(x, name="same", process_set=one) for one in reversed(mine)]

    wanted = [6.0, *(2 * total(one) for one in mine), *(total(one) / 2 for one in reversed(mine))]
    for _ in range(10):
        got = [float(each[0]) for each in step(tf.fill([1000], value))]
        assert got == wanted, (got, wanted)


def gradients(mine: list[rdmacoll.ProcessSet], value: float) -> None:
    for one in mine:
        w = tf.Variable([value] * 3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rdmacoll.allgather(w * w, process_set=one))
        # Of the rows of this rank: the sum of the ranks' gradients, 1 each.
        assert np.allclose(tape.gradient(loss, w), 2 * value * one.size())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        tape = rdmacoll.DistributedGradientTape(tape, process_set=one)
        assert np.allclose(tape.gradient(loss, [w])[0], total(one))


def optimizer(one: rdmacoll.ProcessSet, value: float) -> None:
    if not one.included():
        said = ""
        try:
            rdmacoll.allreduce(tf.ones(2), process_set=one)
        except rdmacoll.ConfigError as error:
            said = str(error)
        assert "is not in process set" in said
        return
    wrapped = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=one)
    v = tf.Variable([1.0, 1.0])
    wrapped.apply_gradients([(tf.constant([value, 0.0]), v)])
    assert np.allclose(v, [1 - total(one) / 2, 1.0]), v
    summed = rdmacoll.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, process_set=one
    )
    v.assign([0.0, 0.0])
    for _ in range(2):
        summed.apply_gradients([(tf.constant([value, 0.0]), v)])
    assert np.allclose(v, [-total(one), 0.0]), v
    v.assign([value, value])
    assert np.allclose(rdmacoll.broadcast_([v], one.ranks[0], process_set=one)[0], one.ranks[0] + 1)
    v.assign([value, value])
    rdmacoll.broadcast_variables([v], one.ranks[1], process_set=one)
    assert np.allclose(v, one.ranks[1] + 1)


def main() -> None:
    evens, low = rdmacoll.ProcessSet([0, 2]), rdmacoll.ProcessSet([0, 1])
    rdmacoll.init(process_sets=[evens, low])
    value = rdmacoll.rank() + 1.0
    mine = [one for one in (evens, low) if one.included()]
    eager(mine, value)
    in_a_function(mine, value)
    gradients(mine, value)
    optimizer(low, value)
    rdmacoll.engine.barrier()
    report(True)


main()
