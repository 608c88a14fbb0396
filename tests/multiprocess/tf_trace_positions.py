"""Tests collectives in branches, loops and functions, on ranks that have built other ops before.

Rank n first builds n conditionals, loops and calls, so that TensorFlow's counters differ on all ranks. Each
case is run in a graph of TensorFlow 1, with both kinds of its control flow, and in a tf.function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_common import all_values, close, own_data, run_all

import rdmacoll
from rdmacoll.ops import allreduce

rdmacoll.init(stall_warning_s=5, stall_error_s=20)
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
SUM = sum(all_values((3,)))
Build = Callable[[Any], Any]


def total(x: Any) -> Any:
    return allreduce(x, op=rdmacoll.Sum)


def build_others(x: Any) -> Any:
    """Builds RANK constructs of each kind, without collectives. So TensorFlow's counters differ by rank."""
    twice = tf.function(lambda v: v * 2.0)
    for _ in range(RANK):
        x = tf.identity(x) + 0.0 * twice(x)
        x = tf.cond(tf.reduce_sum(x) > -1e9, lambda x=x: x, lambda x=x: x + 1.0)
        x = tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v), [tf.constant(0), x])[1]
        x = tf.map_fn(lambda v: v, x)
        x = tf.scan(lambda a, v: v, x)
    return x


def run_everywhere(build: Build, wanted: Any, *, has_old_control_flow: bool = True) -> None:
    x = own_data((3,)).numpy()

    def built(value: Any) -> Any:
        return build(build_others(value))

    for has_new_control_flow in (True, False)[: 1 + has_old_control_flow]:
        switch = tf.compat.v1.enable_control_flow_v2, tf.compat.v1.disable_control_flow_v2
        switch[not has_new_control_flow]()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fetched = built(tf.constant(x))
            for _ in range(2):
                close(session.run(fetched), wanted)
    tf.compat.v1.enable_control_flow_v2()
    step = tf.function(built)
    for _ in range(2):
        close(step(tf.constant(x)), wanted)


def check_a_branch() -> None:
    run_everywhere(lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: total(x), lambda: x), SUM)


def check_branches_in_turn() -> None:
    def build(x: Any) -> Any:
        for _ in range(3):
            x = tf.cond(tf.reduce_sum(x) > -1e9, lambda x=x: total(x), lambda x=x: x)
        return x

    run_everywhere(build, SUM * SIZE**2)


def check_a_switch() -> None:
    run_everywhere(
        lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: total(x), lambda: -total(x)]), SUM
    )


def check_a_loop() -> None:
    def build(x: Any) -> Any:
        return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, total(v)), [tf.constant(0), x])[1]

    run_everywhere(build, SUM * SIZE**2)


def check_map_fn_and_scan() -> None:
    run_everywhere(lambda x: tf.map_fn(total, x), SUM)
    run_everywhere(
        lambda x: tf.scan(lambda a, v: a + total(v), x, initializer=tf.constant(0.0)), SUM.cumsum()
    )


def check_a_function_that_is_called_several_times() -> None:
    def build(x: Any) -> Any:
        inner = tf.function(total)
        first, second = inner(x), inner(x + 1.0)
        return first + 10.0 * second + 100.0 * inner(x + 2.0)

    run_everywhere(build, SUM + 10 * (SUM + SIZE) + 100 * (SUM + 2 * SIZE))


def check_functions_in_branches_in_loops() -> None:
    def build(x: Any) -> Any:
        inner = tf.function(total)

        def body(i: Any, v: Any) -> Any:
            v = tf.cond(i < 1, lambda: inner(v), lambda: v)
            return i + 1, tf.cond(i > 0, lambda: inner(v), lambda: v)

        x = tf.while_loop(lambda i, v: i < 2, body, [tf.constant(0), x])[1]
        return inner(x)

    run_everywhere(build, SUM * SIZE**2)


def check_a_loop_in_a_loop() -> None:
    def build(x: Any) -> Any:
        def inner(v: Any) -> Any:
            return tf.while_loop(lambda j, w: j < 3, lambda j, w: (j + 1, total(w)), [tf.constant(0), v])[1]

        return tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, inner(v)), [tf.constant(0), x])[1]

    # TensorFlow 1's own control flow does not tell which of several loops an operation is in.
    run_everywhere(build, SUM * float(SIZE) ** 5, has_old_control_flow=False)


def check_gradients() -> None:
    def build(x: Any) -> Any:
        y = tf.cond(tf.reduce_sum(x) > -1e9, lambda: total(x) * x, lambda: x)
        return tf.gradients(tf.reduce_sum(y), x)[0]

    # d/dx of sum over ranks of (S * x_r): what all ranks' losses make of S, and S itself
    run_everywhere(build, SUM + SUM)


def check_retraced_on_one_rank() -> None:
    inner = tf.function(total)

    @tf.function(reduce_retracing=False)
    def step(x: Any, _: int) -> Any:
        return inner(x) + inner(x + 1.0)

    for turn in range(3):
        close(step(own_data((3,)), turn if RANK == 0 else 0), 2 * SUM + SIZE)


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
