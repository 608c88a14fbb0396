"""The trainings of the callbacks' tests, on ranks and in one process. The argument chooses the Keras."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Iterator
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
    """Returns the batches of all ranks, joined batch by batch."""
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


def saved(kind: type, folder: pathlib.Path, way: str) -> pathlib.Path:
    """Trains some steps in one process. Returns the saved file."""
    model = network()
    model.compile(kind(0.02), "mse")
    fit(model, data=dataset(7))
    path = folder / f"model.{way}"
    if way == "checkpoint":
        return pathlib.Path(tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(path)))
    model.save(path)
    return path


def loaded(kind: type, path: pathlib.Path, way: str) -> Any:
    """Loads the saved training, so that it can go on."""
    if way != "checkpoint":
        return keras.models.load_model(path)
    model = network()
    model.compile(kind(0.02), "mse")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(str(path))
    return model


def ways() -> Iterator[tuple[type, str]]:
    for kind in kinds():
        yield kind, "checkpoint"
        if not IS_KERAS_3:  # Keras 3 cannot train on with the optimizer of such a file
            yield kind, "h5"
        if "legacy" not in kind.__module__:
            yield kind, "keras"


class Gan(keras.Model):
    """A model like in Keras' guide, with two networks, two optimizers and no `call`. So Keras never counts it
    as built."""

    def __init__(self, seed: int, rate: float, wrap: Callable[[Any], Any]) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.generator = network()
        self.others = {"discriminator": [network()]}
        self.temperature = tf.Variable(0.5 + 0.1 * seed % 1, trainable=False)
        self.optimizers_by_name = {name: wrap(kinds()[-1](rate)) for name in ("d", "g")}

    def train_step(self, data: Any) -> dict[str, Any]:
        noise, real = data
        discriminator = self.others["discriminator"][0]
        for name, trained, sign in (("d", discriminator, 1.0), ("g", self.generator, -1.0)):
            with tf.GradientTape() as tape:
                fake = discriminator(tf.concat([self.generator(noise)] * 3, 1)) * self.temperature
                true = discriminator(tf.concat([real] * 3, 1))
                loss = sign * tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-true))
            variables = trained.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizers_by_name[name].apply_gradients(zip(gradients, variables))
        return {"loss": loss}


class Taped(keras.Model):
    """A train step of the program, with a network that follows the trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.target = network(), network()

    def call(self, x: Any) -> Any:
        return self.network(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.network.trainable_variables
        gradients = rdmacoll.DistributedGradientTape(tape).gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        for one, other in zip(self.target.trainable_variables, variables):
            one.assign(0.9 * one + 0.1 * other)
        return {"loss": loss}
