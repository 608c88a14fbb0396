"""Tests Keras 2 without eager execution: ranks whose weights differ in `fit` are detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import SEED, raised, run_all, value

import rdmacoll

tf.compat.v1.disable_eager_execution()
rdmacoll.init()
RANK, LAST = rdmacoll.rank(), rdmacoll.size() - 1
BATCH, STEPS = 4, 4
keras = tf.keras


class Chosen(keras.callbacks.Callback):
    """A learning rate that each rank chooses by itself."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        keras.backend.set_value(self.model.optimizer.learning_rate, 0.025 if RANK == LAST else 0.05)


def fit(*callbacks: Any, epochs: int = 3, passes: int = 1) -> Any:
    initial = keras.initializers.RandomNormal(seed=SEED + RANK)
    layers = [keras.layers.Input((5,)), keras.layers.Dense(3, kernel_initializer=initial)]
    model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    optimizer = keras.optimizers.legacy.SGD(0.05, momentum=0.9)
    optimizer = rdmacoll.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    model.compile(optimizer, "mse")
    x = value(RANK, (BATCH * STEPS, 5))
    y = x.sum(axis=1, keepdims=True)
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def broadcast() -> Any:
    return rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)


def check_equal_ranks_train_on() -> None:
    model = fit(broadcast())
    with tf.compat.v1.keras.backend.get_session().as_default():
        rdmacoll.check_weights(model)
        if RANK == LAST:
            model.layers[0].set_weights([np.ones_like(one) for one in model.layers[0].get_weights()])
        error = raised(rdmacoll.MismatchError, lambda: rdmacoll.check_weights(model))
    assert f"of rank {LAST} differs" in str(error), error
    fit(broadcast(), passes=2)


def check_a_forgotten_broadcast() -> None:
    error = raised(rdmacoll.MismatchError, fit)
    assert "after update 1 of" in str(error), error


def check_a_rate_of_one_rank() -> None:
    error = raised(rdmacoll.MismatchError, lambda: fit(broadcast(), Chosen()))
    assert f"after update {2 * STEPS} of" in str(error), error
    assert f"learning_rate of rank {LAST} differs" in str(error), error
    error = raised(rdmacoll.MismatchError, lambda: fit(broadcast(), Chosen(), passes=2))
    assert f"after update {STEPS} of" in str(error), error


def check_a_session_is_asked_for() -> None:
    error = raised(rdmacoll.ConfigError, lambda: rdmacoll.check_weights([]))
    assert "session.as_default()" in str(error)


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
