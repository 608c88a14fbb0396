"""A rank waits in TensorFlow for a rank that does not come, and receives a signal. The arguments are the way
it waits (eager, graph, fit or session) and the signal (SIGINT, or SIGTERM, which has a handler)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll

WHERE, SIGNAL = sys.argv[1:]
rdmacoll.init()
if SIGNAL == "SIGTERM":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))


keras.utils.set_random_seed(1)  # `fit` compares ranks
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD()), "mse")


def session() -> Any:
    """Returns a step in a MonitoredTrainingSession. The session's own retries must not keep it from
    ending."""
    with tf.Graph().as_default():
        total = rdmacoll.allreduce(tf.compat.v1.get_variable("x", (3,)))
        running = tf.compat.v1.train.MonitoredTrainingSession()
    return lambda: running.run(total)


STEP = {
    "session": session() if WHERE == "session" else None,
    "eager": lambda: rdmacoll.allreduce(tf.ones(3)),
    "graph": tf.function(lambda: rdmacoll.allreduce(tf.ones(3))),
    "fit": lambda: model.fit(tf.ones((4, 4)), tf.ones((4, 2)), verbose=0),
}[WHERE]
STEP()  # the first step traces the function and connects the ranks
rdmacoll.engine.barrier()
report({"pid": os.getpid()})
if rdmacoll.rank() == 1:
    try:
        rdmacoll.engine.allreduce(np.ones(1), name="something else")
    except rdmacoll.RankFailedError as error:
        report({"at": time.time(), "rank": error.rank, "cause": error.cause})
    sys.exit(0)
try:
    STEP()
finally:
    report({"at": time.time(), "class": sys.exc_info()[0].__name__})
