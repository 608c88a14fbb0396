"""Trainings of the callbacks' tests, with the Keras of the argument, on ranks and in one process."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import value

import rdmacoll

IS_KERAS_3 = sys.argv[1] == "3"
if IS_KERAS_3:
    import keras
elif sys.argv[1] == "2":  # TensorFlow until 2.15
    keras = tf.keras
else:
    sys.path.append(sys.argv[1])
    import tf_keras as keras

TOLERANCE = 2e-4
BATCH, STEPS = 4, 4
Arrays = list[np.ndarray]


def kinds() -> list[type]:
    return [keras.optimizers.Adam] if IS_KERAS_3 else [keras.optimizers.Adam, keras.optimizers.legacy.Adam]


def dataset(rank: int, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * steps, 3), salt=5)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def joined(steps: int = STEPS) -> tuple[np.ndarray, ...]:
    """The batches of all ranks, joined batch by batch."""
    parts = [dataset(rank, steps) for rank in range(rdmacoll.size())]
    return tuple(
        np.concatenate([part[i][step * BATCH :][:BATCH] for step in range(steps) for part in parts])
        for i in (0, 1)
    )


def network(**options: Any) -> Any:
    layers = [keras.layers.Input((3,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers, **options)


def weights_of(model: Any) -> Arrays:
    return [np.array(one) for one in model.get_weights()]


def state_variables(optimizer: Any) -> list[Any]:
    plain = optimizer.variables
    return list(plain() if callable(plain) else plain)


def state_of(optimizer: Any) -> Arrays:
    return [one.numpy() for one in state_variables(optimizer)]


def fit(model: Any, *callbacks: Any, data: Any = None, batch: int = BATCH, **options: Any) -> Any:
    data = dataset(rdmacoll.rank()) if data is None else data
    options = {"epochs": 1, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, batch_size=batch, callbacks=list(callbacks), **options)


def fit_alone(model: Any, **options: Any) -> Any:
    return fit(model, data=joined(), batch=BATCH * rdmacoll.size(), **options)


def close(found: Arrays, wanted: Arrays) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)
