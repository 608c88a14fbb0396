"""Tests when the requests of a step to asynchronous parameter servers begin. One worker, one server.

The argument is `function`, `staleness` or `eager`. Reports the updates that the server counted in each step,
whether the gradients of the lower layers saw those of the upper one applied, and the values at the end.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll
from rdmacoll.optimizer import bucket_count

WAY = sys.argv[1]
STEPS, DEADLINE_S = 3, 30.0
# One thread waits in the function, and another one starts the request.
tf.config.threading.set_inter_op_parallelism_threads(2)
bound = {"staleness": 5} if WAY == "staleness" else {}
rdmacoll.init(mode="ps", sync=False, num_servers=1, **bound)


def updates() -> int:
    return int(rdmacoll.ps.stats()[0]["updates"])


before = 0  # the server's updates when the step began


def is_applied(one: Any) -> Any:
    """Waits until the server has an update of this step."""
    deadline = time.monotonic() + (DEADLINE_S if WAY == "function" else 0.0)
    while updates() == before and time.monotonic() < deadline:
        time.sleep(0.001)
    return np.float32(updates() > before)


# As in a model: the embedding is used first, so its gradient is ready last.
table = keras.Variable(np.zeros((5, 4), np.float32), name="table")
lower = keras.Variable(np.zeros(10, np.float32), name="lower")
upper = keras.Variable(np.zeros(10, np.float32), name="upper")
variables = [table, lower, upper]
# Each of the dense variables is a bucket.
optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), bucket_bytes=64)


def step(one: Any) -> Any:
    seen = tf.ensure_shape(tf.numpy_function(is_applied, [one], tf.float32, stateful=False), ())
    rows = tf.IndexedSlices(tf.ones((1, 4)) * (1 + 0 * seen), tf.constant([2]), tf.constant([5, 4]))
    optimizer.apply([rows, tf.ones(10) * (1 + 0 * seen), tf.ones(10) * one], variables)
    return seen


optimizer.build(variables)
run = step if WAY == "eager" else tf.function(step)
found: dict[str, Any] = {"seen": [], "updates": []}
for _ in range(STEPS):
    before = updates()
    found["seen"].append(bool(run(tf.constant(1.0))))
    found["updates"].append(updates() - before)
found["buckets"] = bucket_count(optimizer)
found["values"] = [np.unique(one.numpy()).tolist() for one in variables]
report(found)
rdmacoll.shutdown()
