"""Keys of operations tell two runs of one collective apart, so that ranks never mix them up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from kernel_spy import Spy, allreduce, library, ops, spy  # noqa: F401 (fixtures)

from rdmacoll.ops import _names


def test_loop_iterations_are_told_apart(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tf.map_fn(lambda row: allreduce(ops, [row], tensor_name="row")[0], x, parallel_iterations=4)

    x = tf.reshape(tf.range(20.0), (10, 2))
    np.testing.assert_array_equal(step(x).numpy(), x.numpy())
    iterations = sorted(r["iteration"] for r in spy.requests)
    assert len(set(iterations)) == 10
    first = iterations[0]
    assert iterations == list(range(first, first + 10))
    assert {r["name"] for r in spy.requests} == {"row"}


def one(ops: Any, x: Any, name: str) -> Any:
    return allreduce(ops, [x], tensor_name=name)[0]


def test_copies_of_one_function_are_told_apart(ops: Any, spy: Spy) -> None:
    inner = tf.function(lambda x: one(ops, x, "copied"))
    looped = tf.function(lambda x: tf.map_fn(lambda row: one(ops, row, "looped"), x))

    @tf.function
    def once(x: Any) -> Any:
        return inner(x) + looped(x)

    @tf.function
    def twice(x: Any) -> Any:
        return inner(x) + inner(x * 2.0) + looped(x) + looped(x * 2.0)

    def units() -> set[tuple[str, int]]:
        found = {(r["name"], r["iteration"]) for r in spy.requests}
        assert len(found) == len(spy.requests)
        spy.requests.clear()
        return found

    x = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(once(x).numpy(), 2 * x.numpy())
    assert units() == {("copied", 0), ("looped", 0), ("looped", 1)}
    for _ in range(2):
        np.testing.assert_array_equal(twice(x).numpy(), 6 * x.numpy())
        copied = {(f"copied/call_{call}", 0) for call in range(2)}
        assert units() == copied | {(f"looped/call_{loop}", row) for loop in range(2) for row in range(2)}


def test_iterations_of_nested_loops_are_told_apart(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tf.map_fn(lambda row: tf.map_fn(lambda element: one(ops, element, "nested"), row), x)

    x = tf.reshape(tf.range(20.0), (4, 5))
    np.testing.assert_array_equal(step(x).numpy(), x.numpy())
    first = {(r["name"], r["iteration"]) for r in spy.requests}
    assert len(first) == 20
    step(x)
    assert {(r["name"], r["iteration"]) for r in spy.requests[20:]} == first


def test_either_branch_of_a_conditional_is_the_same_unit(ops: Any, spy: Spy) -> None:
    inner = tf.function(lambda x: one(ops, x, "branched"))

    @tf.function
    def step(x: Any, which: Any) -> Any:
        return tf.switch_case(which, [lambda: inner(x), lambda: inner(x * 2.0)]) + tf.cond(
            which > 0, lambda: inner(x), lambda: inner(x * 2.0)
        )

    for which in range(2):
        step(tf.ones(2), tf.constant(which))
    first, second = spy.requests[:2], spy.requests[2:]
    assert {r["name"] for r in first} == {r["name"] for r in second}
    assert len({r["name"] for r in first}) == 2


def test_runs_that_nothing_tells_apart_are_refused(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return one(ops, x, "alike") + one(ops, x * 2.0, "alike")

    with pytest.raises(tf.errors.InvalidArgumentError, match="'alike' ran twice in one step"):
        step(tf.ones(2))


def test_nested_loops_of_tensorflow_1_are_refused(ops: Any, spy: Spy) -> None:
    def rows(x: Any, each: Any) -> Any:
        array = tf.TensorArray(tf.float32, 2).unstack(x)
        body = lambda i, out: (i + 1, out.write(i, each(array.read(i))))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 2, body, (0, tf.TensorArray(tf.float32, 2)))[1].stack()

    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            simple = rows(tf.ones((2, 3)), lambda row: one(ops, row, "simple"))
            nested = rows(
                tf.ones((2, 2)), lambda row: rows(row, lambda element: one(ops, element, "nested 1"))
            )
            np.testing.assert_array_equal(session.run(simple), np.ones((2, 3)))
            with pytest.raises(tf.errors.InvalidArgumentError, match="'nested 1' ran twice in one step"):
                session.run(nested)
    finally:
        tf.compat.v1.enable_control_flow_v2()


def test_a_trace_that_is_dropped_does_not_count() -> None:
    """A function that makes variables is traced twice. In an elastic job other ranks have them already."""
    made: list[tf.Variable] = []
    traces: list[list[str]] = []

    def inner(x: Any) -> Any:
        traces.append([_names.name_in_trace("a"), _names.name_in_trace("a"), _names.name_in_trace("b")])
        made.extend([] if made else [tf.Variable(1.0)])
        return x * made[0]

    def names() -> list[list[str]]:
        traces.clear()
        inmost = tf.function(inner)

        @tf.function
        def middle(x: Any) -> Any:
            result = inmost(x)
            traces[-1].append(_names.name_in_trace("a"))
            return result

        @tf.function
        def outer(x: Any) -> Any:
            return middle(x) + inmost(tf.stack([x, x]))[0]

        assert outer(tf.constant(2.0)).numpy() == 4.0
        return traces[:]

    first = names()
    assert len(first) == 3, "the first trace of the function is dropped"
    assert first[0][:3] == first[1][:3] == ["a/step_0", "a/step_1", "b/step_0"]
    assert names() == first[1:]
    assert first[1:] == [
        ["a/step_0", "a/step_1", "b/step_0", "a/step_2"],
        ["a/step_3", "a/step_4", "b/step_1"],
    ]
