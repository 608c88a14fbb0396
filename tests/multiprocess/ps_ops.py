"""Tests TensorFlow's tensors with asynchronous parameter servers. One worker does the checks, so that values
are known.

Reports the names of the checks.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll
from rdmacoll import ops, ps
from rdmacoll.ops import servers

SGD = ps.Rule("optimizer=sgd\nschedule=constant\ninitial_learning_rate=1\n")
random = np.random.default_rng(11)
checks: list[str] = []


def check(function):
    """Runs a check, and notes its name."""
    function()
    checks.append(function.__name__)


def values(*shape: int, dtype: str = "float32") -> np.ndarray:
    return random.integers(-8, 8, shape).astype(dtype)


rdmacoll.init(mode="ps", sync=False, num_servers=2)
start = {
    "w": values(1000, 3),
    "double": values(7, dtype="float64"),
    "scalar": np.array(values(1)[0]),
    "none": values(0, 4),
    "words": values(50, 6),
}
now = {name: value.copy() for name, value in start.items()}
ps.declare(start, SGD, by_rows=["words"])


@check
def a_push_is_applied_eagerly_and_in_a_function():
    for push in (rdmacoll.push, tf.function(rdmacoll.push)):
        for name in now:
            gradient = values(*now[name].shape, dtype=str(now[name].dtype))
            push(tf.constant(gradient), name)
            now[name] = now[name] - gradient
            assert np.array_equal(rdmacoll.pull(name), now[name]), name
            assert np.array_equal(servers.pull(name), now[name]), name


@check
def a_pull_in_a_function_is_made_each_time_and_knows_its_shape():
    @tf.function
    def pull():
        value = rdmacoll.pull("w")
        assert value.shape == (1000, 3)
        return value

    for _ in range(3):
        rdmacoll.push(np.ones((1000, 3), np.float32), "w")
        now["w"] -= 1
        assert np.array_equal(pull(), now["w"])


@check
def an_exchange_gives_fresh_values_of_all():
    names = ["w", "double", "words", "none"]

    @tf.function
    def step(gradients):
        return servers.exchange([one * 2 for one in gradients], names)

    for call in (step, lambda gradients: servers.exchange([one * 2 for one in gradients], names)):
        gradients = [values(*now[name].shape, dtype=str(now[name].dtype)) for name in names]
        fresh = call([tf.constant(one) for one in gradients])
        for name, gradient, value in zip(names, gradients, fresh):
            now[name] = now[name] - 2 * gradient
            assert np.array_equal(value, now[name]), name


@check
def inputs_that_are_used_again_stay_as_they_are():
    gradient = tf.constant(values(1000, 3))
    before = gradient.numpy().copy()
    fresh = rdmacoll.push_pull(gradient, name="w")
    now["w"] -= before
    assert np.array_equal(fresh, now["w"])
    assert np.array_equal(gradient, before)


@check
def the_order_of_a_function_is_kept_in_a_loop():
    @tf.function
    def loop():
        total = tf.zeros((1000, 3))
        for _ in tf.range(5):
            rdmacoll.push(tf.ones((1000, 3)), "w")
            total += rdmacoll.pull("w")
        return total

    total = loop()
    assert np.array_equal(total, sum(now["w"] - step for step in range(1, 6)))
    now["w"] -= 5


@check
def rows_are_pushed_and_pulled():
    rows = tf.constant([3, 49, 3], tf.int32)
    slices = tf.IndexedSlices(tf.ones((3, 6)), rows, tf.constant([50, 6]))
    for push in (rdmacoll.push, tf.function(lambda slices, name: rdmacoll.push(slices, name))):
        push(slices, "words")
        np.subtract.at(now["words"], rows.numpy(), np.ones((3, 6), np.float32))
        assert np.array_equal(servers.pull_rows(rows, "words"), now["words"][rows.numpy()])
    for call in (servers.exchange, tf.function(lambda slices, _: servers.exchange(slices, ["words"]))):
        (fresh,) = call([slices], ["words"])
        np.subtract.at(now["words"], rows.numpy(), np.ones((3, 6), np.float32))
        assert np.array_equal(fresh.values, now["words"][rows.numpy()])
        assert np.array_equal(fresh.indices, rows)
    pulled = tf.function(lambda: servers.pull_rows(rows, "words"))()
    assert np.array_equal(pulled, now["words"][rows.numpy()])
    assert np.array_equal(rdmacoll.pull("words"), now["words"])


@check
def a_push_may_bring_its_learning_rate():
    rows = tf.IndexedSlices(tf.ones((2, 6)), tf.constant([7, 9]), tf.constant([50, 6]))
    for push in (servers.push, tf.function(servers.push)):
        push(tf.ones((1000, 3)), "w", 0.5)
        push(rows, "words", tf.constant(2, tf.int64))
        now["w"] -= np.float32(0.5)
        now["words"][[7, 9]] -= 2
    for call in (servers.exchange, tf.function(servers.exchange)):
        fresh = call([tf.ones(7, tf.float64), rows], ["double", "words"], tf.constant(0.25))
        now["double"] -= 0.25
        now["words"][[7, 9]] -= np.float32(0.25)
        assert np.array_equal(fresh[0], now["double"])
        servers.push(tf.ones(7, tf.float64), "double", 0.1)
        now["double"] -= 0.1  # all digits of the value
        assert np.array_equal(fresh[1].values, now["words"][[7, 9]])
    for name in ("w", "double", "words"):
        assert np.array_equal(rdmacoll.pull(name), now[name]), name


@check
def what_does_not_fit_is_refused():
    def refused(call, *words):
        for way in (call, tf.function(call)):
            try:
                way()
            except (rdmacoll.RdmacollError, tf.errors.OpError) as error:
                typed = rdmacoll.error_from(error)
                assert isinstance(typed, rdmacoll.ConfigError), typed
                assert all(word in str(typed) for word in words), typed
            else:
                raise AssertionError(words)

    refused(
        lambda: rdmacoll.push(tf.ones(3), "w"), "variable 'w' is float32[1000, 3]", "gradient is float32[3]"
    )
    refused(lambda: rdmacoll.push(tf.ones((1000, 3), tf.float64), "w"), "float64[1000, 3]")
    refused(lambda: rdmacoll.push(tf.ones(3), "v"), "no variable 'v' has been declared")
    refused(lambda: rdmacoll.push_pull(tf.ones(3)), "Give the name of a declared variable")
    refused(lambda: rdmacoll.push_pull(tf.ones(7), rdmacoll.Sum, "double"), "use allreduce for sums")
    unknown = tf.function(
        lambda tensor: rdmacoll.push(tensor, "w"), input_signature=[tf.TensorSpec(None, tf.float32)]
    )
    refused(lambda: unknown(tf.ones(4)), "a tensor of 16 bytes of float32 for variable w", "12000 bytes")
    refused(lambda: servers.pull_rows([50], "words"), "row 50 of variable words: it has rows 0 to 49")
    refused(lambda: servers.pull_rows([0], "w"), "was not declared as one that is pushed and pulled by rows")


@check
def the_ordinary_world_stands_beside():
    assert np.array_equal(ops.allreduce(tf.ones(4), rdmacoll.Sum), np.ones(4))
    assert np.array_equal(tf.function(lambda: rdmacoll.allreduce(tf.ones(4)))(), np.ones(4))


report(checks)
rdmacoll.shutdown()
try:
    servers.pull("w")
except rdmacoll.NotInitializedError:
    pass
else:
    raise AssertionError
