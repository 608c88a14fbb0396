"""Tests uneven data in TensorFlow: eager, in functions, with tape, optimizer and fit. Runs on every rank."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from ranks import report
from refusal import refusal

import rdmacoll


def steps_of(rank: int, turn: int) -> int:
    return 2 + 7 * ((rank + turn) % rdmacoll.size())


def givers_of(step: int, turn: int) -> list[int]:
    return [rank for rank in range(rdmacoll.size()) if step < steps_of(rank, turn)]


def last_of(turn: int) -> int:
    return max(range(rdmacoll.size()), key=lambda rank: steps_of(rank, turn))


def check_ops(turn: int) -> None:
    me, size = rdmacoll.rank(), rdmacoll.size()

    @tf.function
    def traced(x):
        return rdmacoll.allreduce(x, op=rdmacoll.Sum), rdmacoll.grouped_allreduce([x, x * 2])

    for call in (traced, traced.python_function):
        for step in range(steps_of(me, turn)):
            total = sum(rank + 1.0 for rank in givers_of(step, turn))
            summed, (mean, twice) = call(tf.fill([100], me + 1.0))
            assert np.allclose(summed, total), (step, summed[0], total)
            assert np.allclose(mean, total / size)
            assert np.allclose(twice, 2 * total / size)
        assert rdmacoll.join() == last_of(turn)


def check_tape_and_optimizer(turn: int) -> None:
    me, size = rdmacoll.rank(), rdmacoll.size()
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0))
    by_tape, by_optimizer = tf.Variable([0.0] * 50), tf.Variable([0.0] * 50)

    @tf.function
    def step_of_tape():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(by_tape) * (me + 1.0)
        tape = rdmacoll.DistributedGradientTape(tape)
        by_tape.assign_sub(tape.gradient(loss, [by_tape])[0])

    for _ in range(steps_of(me, turn)):
        step_of_tape()
        optimizer.apply_gradients([(tf.fill([50], me + 1.0), by_optimizer)])
    assert rdmacoll.join() == last_of(turn)
    wanted = 0.0
    for step in range(steps_of(me, turn)):
        wanted -= sum(rank + 1.0 for rank in givers_of(step, turn)) / size
    assert np.allclose(by_tape, wanted), (me, by_tape[0], wanted)
    assert np.allclose(by_optimizer, wanted), (me, by_optimizer[0], wanted)


def check_fit(turn: int) -> None:
    me = rdmacoll.rank()
    keras.utils.set_random_seed(me)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer=optimizer, loss="mse")
    callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    for epoch in range(2):
        rows = 8 * steps_of(me, turn + epoch)
        x = np.random.default_rng(me).normal(size=(rows, 4)).astype(np.float32)
        model.fit(x, x.sum(axis=1), 8, 1, 0, callbacks=callbacks)
        callbacks = []
        last = rdmacoll.join()
        assert last == last_of(turn + epoch)
        mine = model.layers[0].kernel.numpy()
        newest = rdmacoll.engine.broadcast(mine, last)
        assert (me == last) <= np.array_equal(mine, newest)
        rdmacoll.broadcast_variables(model.variables + model.optimizer.variables, root_rank=last)
        assert np.array_equal(model.layers[0].kernel, newest)
        assert int(optimizer.iterations) == (epoch + 1) * steps_of(last, turn + epoch)


def check_loss_scaling() -> None:
    """The scale of the loss is equal after an uneven epoch, in which it has grown on some ranks."""
    me, size = rdmacoll.rank(), rdmacoll.size()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.01))
    scaling = keras.optimizers.LossScaleOptimizer(optimizer, dynamic_growth_steps=4)
    model.compile(scaling, "mse")
    seen = []
    for _ in range(3):
        rows = 8 * (2 + 2 * me)
        x = np.random.default_rng(me).normal(size=(rows, 4)).astype(np.float32)
        model.fit(x, x.sum(axis=1), 8, 1, 0)
        last = rdmacoll.join()
        assert last == size - 1
        seen.append(float(np.asarray(scaling.dynamic_scale)))
        rdmacoll.broadcast_variables(model.variables + model.optimizer.variables, root_rank=last)
        state = [np.asarray(one) for one in (scaling.dynamic_scale, scaling.step_counter)]
        for mine in (*state, *map(np.asarray, model.get_weights())):
            assert np.array_equal(mine, rdmacoll.engine.broadcast(mine, last))
    scales = rdmacoll.engine.allgather(np.float32([seen[0]]))
    assert len(set(scales.tolist())) > 1, scales  # the ranks did differ


def check_refusals() -> None:
    me, size = rdmacoll.rank(), rdmacoll.size()
    traced = tf.function(rdmacoll.join, autograph=False)
    assert "inside a tf.function" in refusal(traced)
    if me == size - 1:
        rdmacoll.join()
        return
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
    in_graph = tf.function(lambda x: rdmacoll.broadcast(x, 0))
    for call in (
        lambda: rdmacoll.allgather(tf.ones([2])),
        lambda: rdmacoll.allreduce(tf.ones([2]), op=rdmacoll.Max),
        lambda: rdmacoll.allreduce(slices),
        lambda: in_graph(tf.ones([3])),
    ):
        try:
            answers = refusal(call)
        except tf.errors.OpError as error:
            answers = str(error)
        assert f"needs data of rank {size - 1}" in answers, answers
    rdmacoll.join()


def main() -> None:
    rdmacoll.init()
    for turn in range(2):
        check_ops(turn)
        check_tape_and_optimizer(turn)
    check_fit(1)
    check_loss_scaling()
    check_refusals()
    rdmacoll.engine.barrier()
    report(True)


main()
