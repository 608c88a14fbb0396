"""The data and the network of the small training by which all kinds of parameter servers are compared."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np

BATCH, STEPS, EPOCHS = 12, 5, 3
RATE, MOMENTUM = 0.1, 0.9


def rows_of(worker: int, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns this worker's rows of each batch. A single worker has all rows."""
    x = np.random.default_rng(4).normal(size=(STEPS, BATCH, 6)).astype(np.float32)
    y = np.sin(x.sum(axis=2, keepdims=True))
    each = BATCH // workers
    mine = slice(worker * each, (worker + 1) * each)
    return x[:, mine].reshape(-1, 6), y[:, mine].reshape(-1, 1)


def network() -> keras.Model:
    """Returns weights that are the same in every process."""
    keras.utils.set_random_seed(9)
    return keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(24, activation="tanh"),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
