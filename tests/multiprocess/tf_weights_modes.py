"""Tests that ranks whose weights differ are detected with wrapped optimizers of TensorFlow 1, eagerly, in
functions and in sessions."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from tf_common import run_all, value
from tf_weights_common import LAST, RANK, apart, loop, moved, sgd, small, warned, with_settings

import rdmacoll

v1 = tf.compat.v1
STEPS = 9


class InSession:
    """Two updates of `weights` by an optimizer of TensorFlow 1, each of which changes all of its slots."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.weights = [
            v1.get_variable(f"w{i}", initializer=value(seed, shape, salt=i))
            for i, shape in enumerate([(3, 2), (2,)])
        ]
        self.x = v1.placeholder(tf.float32, (4, 3))
        self.optimizer = rdmacoll.DistributedOptimizer(v1.train.AdamOptimizer(0.1), **options)
        self.step = self.optimizer.minimize(self.loss(), global_step=v1.train.get_or_create_global_step())
        self.changed = self.weights[1].assign_add([0.0, 0.5])

    def loss(self) -> Any:
        return tf.reduce_mean((self.x @ self.weights[0] + self.weights[1]) ** 2)

    def run(self, session: Any, steps: int) -> None:
        for number in range(steps):
            session.run(self.step, {self.x: value(RANK, (4, 3), salt=number)})


def check_sessions_are_compared_behind_a_run() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        made = InSession(RANK)
        session.run(v1.global_variables_initializer())
        text = warned(lambda: made.run(session, STEPS))
        assert RANK or "after update 2 of DistributedOptimizer" in text, text
        assert RANK or "w0 of rank" in text or "w1 of rank" in text, text
    for hooks in ([rdmacoll.BroadcastGlobalVariablesHook(0)], []):
        with tf.Graph().as_default():
            made = InSession(RANK if hooks else 0)
            with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                assert not warned(lambda made=made, session=session: made.run(session, STEPS))


@with_settings(check_weights=4)
def check_sessions_end_at_a_number_of_updates() -> None:
    for change in ("changed", "beta"):
        with tf.Graph().as_default():
            made = InSession(0)
            if change == "beta":
                made.changed = v1.assign(made.optimizer.variables()[0], 0.25)
            with v1.train.MonitoredTrainingSession() as session:
                made.run(session, 5)
                if RANK == LAST:
                    session.run(made.changed)
                apart(
                    lambda made=made, session=session: made.run(session, STEPS),
                    "after update 8 of",
                    f"of rank {LAST} differs",
                )


@with_settings(check_weights=2)
def check_callables_of_sessions_are_compared() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        made = InSession(0)
        x = tf.constant(value(RANK, (4, 3)))
        loss = tf.reduce_mean((x @ made.weights[0] + made.weights[1]) ** 2)
        step = session.make_callable(made.optimizer.minimize(loss))
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            step()
        if RANK == LAST:
            session.run(made.changed)
        apart(step, "after update 4 of", f"of rank {LAST} differs")


@with_settings(check_weights=2)
def check_runs_of_other_threads_do_not_compare() -> None:
    """Another thread, as one that fills a queue, ends runs within a step that has counted its update."""
    ended, is_done, others = [0], threading.Event(), ThreadPoolExecutor(1)

    def wait_for_other_runs() -> int:
        enough, late = ended[0] + 3, time.monotonic() + 2.0
        while ended[0] < enough and time.monotonic() < late:
            time.sleep(0.001)
        return 0

    def run_others() -> None:
        while not is_done.wait(0.001):
            session.run(plain)
            ended[0] += 1

    with tf.Graph().as_default() as graph, v1.Session() as session:
        made, plain = InSession(0), tf.constant(0)
        with tf.control_dependencies([op for op in graph.get_operations() if op.type == "RdmacollApplied"]):
            v1.py_func(wait_for_other_runs, [], tf.int64, name="wait")
        step = {"step": [made.step, "wait"]}
        session.run(v1.global_variables_initializer())
        running = others.submit(run_others)
        try:
            for number in range(5):
                session.run(step, {made.x: value(RANK, (4, 3), salt=number)})
            if RANK == LAST:
                session.run(made.changed)
            apart(lambda: session.run(step, {made.x: value(RANK, (4, 3))}), "after update 6 of")
        finally:
            is_done.set()
            running.result()


@with_settings(check_weights=2)
def check_updates_in_branches_and_passes_count_in_sessions() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        made = InSession(0, backward_passes_per_step=2)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        made.run(session, 4)
        if RANK == LAST:
            session.run(made.changed)
        made.run(session, 3)
        apart(lambda: made.run(session, 1), "after update 4 of")


@with_settings(check_weights=3)
def check_optimizers_of_tensorflow_1_without_sessions() -> None:
    for is_function in (False, True):
        weights = [tf.Variable(value(0, (3, 2))), tf.Variable(value(0, (2,)))]
        optimizer = rdmacoll.DistributedOptimizer(v1.train.AdamOptimizer(0.1))

        def step(x: Any, weights: Any = weights, optimizer: Any = optimizer) -> None:
            optimizer.minimize(lambda: tf.reduce_mean((x @ weights[0] + weights[1]) ** 2))

        run = tf.function(step) if is_function else step
        for number in range(7):
            run(tf.constant(value(RANK, (4, 3), salt=number)))
        if RANK == LAST:
            moved(weights[1])
        run(tf.constant(value(RANK, (4, 3))))
        apart(lambda run=run: run(tf.constant(value(RANK, (4, 3)))), "after update 9 of")


@with_settings(check_weights=2)
def check_optimizers_of_one_name_are_compared_apart() -> None:
    pair = [(small(seed=0), sgd(name="both")) for _ in range(2)]
    for _ in range(2):
        for model, optimizer in pair:
            loop(model, optimizer, 3)
    if RANK == LAST:
        moved(pair[1][0].trainable_variables[0])
    loop(*pair[0], 2)
    apart(lambda: loop(*pair[1], 2), "after update 8 of both (2)")


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
