"""Ends the last rank in the middle of training. Arguments: the kind of end (kill, exception or exit), and the
code that the others run (graph, eager, fit or session). They report the error and its time."""

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

HOW, WHERE = sys.argv[1:]
rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()


def end() -> None:
    report({"ended_at": time.time()})
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "exit":
        sys.exit(3)
    raise ValueError("the data is broken")


class EndEarly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if RANK == SIZE - 1 and batch == 5:
            end()


def train_in_a_session() -> None:
    """Trains in a MonitoredTrainingSession. Without rdmacoll it takes such a failure for a preemption, and
    restarts for ever."""
    with tf.Graph().as_default():
        weights = tf.compat.v1.get_variable("weights", (4, 2))
        optimizer = rdmacoll.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        step = optimizer.minimize(tf.reduce_mean(weights**2))
        hooks = [rdmacoll.BroadcastGlobalVariablesHook(0)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for number in range(100_000):
                if RANK == SIZE - 1 and number == 5:
                    end()
                session.run(step)


def train() -> None:
    if WHERE == "fit":
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD()), "mse")
        callbacks = [rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0), EndEarly()]
        data = np.ones((8000, 4)), np.ones((8000, 2))
        model.fit(*data, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
        return
    if WHERE == "session":
        train_in_a_session()
        return
    step = rdmacoll.allreduce if WHERE == "eager" else tf.function(rdmacoll.allreduce)
    for number in range(100_000):
        if RANK == SIZE - 1 and number == 5:
            end()
        step(tf.ones([1000]))


try:
    train()
except (rdmacoll.RdmacollError, tf.errors.OpError) as error:
    typed = rdmacoll.error_from(error)
    if not isinstance(typed, rdmacoll.RankFailedError):
        raise
    report(
        {
            "at": time.time(),
            "class": type(error).__name__,
            "rank": typed.rank,
            "cause": typed.cause,
            "text": str(error),
        }
    )
    sys.exit(1)
