"""Tests features of TensorFlow 1 only: sessions, collections of variables, checkpoints by Saver."""

from __future__ import annotations

import copy
import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import close, equal_on_all_ranks, raised, run_all, value

import rdmacoll

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
v1 = tf.compat.v1


def variables() -> list[Any]:
    """Makes variables with other values on each rank. One of them is a counter and is not trained."""
    made = [
        v1.get_variable(f"w{i}", initializer=value(RANK, shape, salt=i))
        for i, shape in enumerate([(3, 2), (2,)])
    ]
    return [*made, v1.get_variable("counter", initializer=np.int64(100 + RANK), trainable=False)]


def loss_of(weights: list[Any]) -> Any:
    return tf.reduce_mean((tf.constant(value(RANK, (4, 3), salt=7)) @ weights[0] + weights[1]) ** 2)


def check_the_hook_sends_what_the_root_has_restored() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(pathlib.Path(folder) / "model")
        with tf.Graph().as_default(), v1.Session() as session:
            trained = variables()
            optimizer = rdmacoll.DistributedOptimizer(v1.train.AdamOptimizer(0.1))
            step = optimizer.minimize(loss_of(trained), global_step=v1.train.get_or_create_global_step())
            session.run(v1.global_variables_initializer())
            session.run(rdmacoll.broadcast_global_variables(0))
            session.run(step)
            v1.train.Saver().save(session, prefix)
            saved = session.run(v1.global_variables())
            names = [variable.name for variable in v1.global_variables()]
        assert equal_on_all_ranks(saved)

        # Without rdmacoll the same graph has the same variables, and restores them.
        with tf.Graph().as_default(), v1.Session() as session:
            plain = variables()
            v1.train.AdamOptimizer(0.1).minimize(loss_of(plain), v1.train.get_or_create_global_step())
            assert [variable.name for variable in v1.global_variables()] == names
            v1.train.Saver().restore(session, prefix)
            for mine, wanted in zip(session.run(v1.global_variables()), saved):
                np.testing.assert_array_equal(mine, wanted)

        # Training goes on from the root's files alone.
        with tf.Graph().as_default():
            weights = variables()
            optimizer = rdmacoll.DistributedOptimizer(v1.train.AdamOptimizer(0.1))
            step = optimizer.minimize(loss_of(weights), v1.train.get_or_create_global_step())
            hook = rdmacoll.BroadcastGlobalVariablesHook(SIZE - 1)
            where = folder if RANK == SIZE - 1 else None
            everything = v1.global_variables()
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=where, hooks=[hook], save_checkpoint_secs=None, save_summaries_steps=None
            ) as session:
                for mine, wanted in zip(session.run(everything), saved):
                    np.testing.assert_array_equal(mine, wanted)
                session.run(step)
                after = session.run(everything)
            assert equal_on_all_ranks(after)
            assert np.abs(after[0] - saved[0]).max() > 1e-3


def check_sparse_gradients() -> None:
    rows = [rank % 2 for rank in range(SIZE)]
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=np.ones((3, 2), np.float32))
        optimizer = rdmacoll.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=rdmacoll.Sum)
        pairs = optimizer.compute_gradients(tf.reduce_sum(tf.gather(table, [rows[RANK], 2])))
        assert isinstance(pairs[0][0], tf.IndexedSlices)
        session.run(v1.global_variables_initializer())
        session.run(optimizer.apply_gradients(pairs))
        wanted = np.ones((3, 2)) - np.array([[rows.count(0)], [rows.count(1)], [SIZE]])
        close(session.run(table), wanted)


def check_loss_scaling_can_be_inside_and_outside() -> None:
    scaling = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    for wrap in (
        lambda optimizer: rdmacoll.DistributedOptimizer(
            scaling(optimizer, v1.mixed_precision.DynamicLossScale())
        ),
        lambda optimizer: scaling(
            rdmacoll.DistributedOptimizer(optimizer), v1.mixed_precision.DynamicLossScale()
        ),
    ):
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("weight", initializer=np.float32([1.0, 2.0]))
            factor = v1.placeholder(tf.float32, ())
            optimizer = wrap(v1.train.GradientDescentOptimizer(0.25))
            step = optimizer.minimize(tf.reduce_sum(weight) * factor * float(RANK))
            raised(rdmacoll.ConfigError, lambda o=optimizer: rdmacoll.DistributedOptimizer(o))
            raised(rdmacoll.ConfigError, lambda o=optimizer: rdmacoll.DistributedOptimizer(o._optimizer))
            session.run(v1.global_variables_initializer())
            # The last rank's gradients are not finite in the second step, so all ranks skip it.
            for number in range(3):
                session.run(step, {factor: np.inf if number == 1 and RANK == SIZE - 1 else 1.0})
            np.testing.assert_array_equal(session.run(weight), np.float32([1, 2]) - 2 * 0.25 * (SIZE - 1) / 2)


def check_two_optimizers_in_one_step() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [v1.get_variable(f"w{i}", initializer=np.zeros(2, np.float32)) for i in range(2)]
        first = rdmacoll.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=rdmacoll.Sum)
        second = copy.copy(first)
        assert type(second).__name__ == "GradientDescentOptimizer"
        steps = [
            optimizer.minimize(tf.reduce_sum(weight) * (RANK + 1.0) * factor, var_list=[weight])
            for factor, optimizer, weight in zip((1.0, 10.0), (first, second), weights)
        ]
        session.run(v1.global_variables_initializer())
        session.run(steps)
        total = SIZE * (SIZE + 1) / 2
        np.testing.assert_array_equal(session.run(weights), [[-total] * 2, [-10 * total] * 2])


def check_what_would_not_be_reduced_is_refused() -> None:
    optimizer = rdmacoll.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    assert isinstance(optimizer, v1.train.GradientDescentOptimizer)
    assert "already" in str(raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedOptimizer(optimizer)))
    weight = tf.Variable(1.0)
    error = raised(rdmacoll.ConfigError, lambda: optimizer.apply_gradients([(tf.constant(1.0), weight)]))
    assert "DistributedGradientTape" in str(error)
    optimizer.minimize(lambda: weight * float(RANK), var_list=[weight])
    close(weight, 1.0 - (SIZE - 1) / 2)
    error = raised(rdmacoll.ConfigError, rdmacoll.broadcast_global_variables)
    assert "broadcast_variables" in str(error)


def check_its_own_variables_and_conditions() -> None:
    """This check must be the last, since TensorFlow cannot switch back to version 2."""
    v1.disable_v2_behavior()
    total = SIZE * (SIZE + 1) / 2
    for rows in (1, 20):  # the first is gathered, the second summed
        with tf.Graph().as_default():
            weight = v1.get_variable("weight", initializer=np.float32([RANK + 1.0, 2.0]))
            table = v1.get_variable("table", initializer=np.ones((4, 2), np.float32))
            assert "Ref" in type(weight).__name__
            optimizer = v1.train.MomentumOptimizer(0.5, 0.9)
            rdmacoll.DistributedOptimizer(optimizer, op=rdmacoll.Sum, sparse_as_dense="auto")
            picked = tf.gather(table, v1.placeholder_with_default([1] * rows, (None,)))
            pairs = optimizer.compute_gradients(
                (tf.reduce_sum(weight) + tf.reduce_sum(picked)) * (RANK + 1.0)
            )
            step = optimizer.apply_gradients(pairs)
            hooks = [rdmacoll.BroadcastGlobalVariablesHook(0)]
            with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                _, (_, slices) = session.run([step, [gradient for gradient, _ in pairs]])
                assert len(slices.indices) == (SIZE if rows == 1 else 1)
                found = session.run([weight, table])
        close(found[0], [1.0 - 0.5 * total, 2.0 - 0.5 * total])
        close(found[1], np.ones((4, 2)) - 0.5 * total * rows * np.eye(4)[1][:, None])


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
