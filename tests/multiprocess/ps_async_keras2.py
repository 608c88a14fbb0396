"""Keras 2 with asynchronous parameter servers, in TensorFlow 2.15 or through `tf_keras`. The arguments are a
function and the number of servers. The function's result is reported."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll

TASK, SERVERS, *ARGUMENTS = sys.argv[1:]
WRAP = rdmacoll.DistributedOptimizer
keras = tf.keras
schedules = keras.optimizers.schedules
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=1e-3, clipnorm=0.3),
    "nesterov": lambda: keras.optimizers.SGD(schedules.ExponentialDecay(0.05, 7, 0.7), 0.9, True),
    "adam": lambda: keras.optimizers.Adam(0.01, clipvalue=0.05),
    "amsgrad": lambda: keras.optimizers.Adam(schedules.CosineDecay(0.02, 20), amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02, global_clipnorm=0.3),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.005, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}
WORDS = 400


def network(embeds: bool = False) -> tf.keras.Model:
    """Makes the network. An embedding's rows travel separately."""
    keras.utils.set_random_seed(9)
    layers = [
        keras.layers.Input((6,)),
        keras.layers.Embedding(WORDS, 4) if embeds else keras.layers.Rescaling(1 / WORDS),
        keras.layers.Flatten(),
        keras.layers.Dense(24, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(4 + rdmacoll.rank())
    # No row is in two batches. Servers apply other changes of a row only when it is pushed again.
    words = random.permutation(WORDS)[:396].reshape(66, 6)
    return words, np.sin(words.sum(axis=1, keepdims=True)).astype(np.float32)


class Steps(keras.callbacks.Callback):
    """Records the weights after each step, except the first weight. It may be an embedding with rows of
    others.

    The learning rate falls with each step, unless there is a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.seen.append(np.concatenate([one.ravel() for one in self.model.get_weights()[1:]]))
        rate = self.model.optimizer._learning_rate
        if hasattr(rate, "assign"):
            rate.assign(rate * 0.95)


class Paces(keras.callbacks.Callback):
    """Lets all workers begin each step together. A worker that trained behind the others, on data of its own,
    would spoil what these have learned."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        rdmacoll.engine.barrier()


def fit(model: tf.keras.Model, epochs: int, *callbacks: keras.callbacks.Callback) -> np.ndarray:
    steps = Steps()
    model.fit(*data(), batch_size=11, epochs=epochs, shuffle=False, verbose=0, callbacks=[steps, *callbacks])
    return np.array(steps.seen)


def train(
    optimizer: object, epochs: int, embeds: bool, *callbacks: keras.callbacks.Callback
) -> tuple[tf.keras.Model, np.ndarray]:
    model = network(embeds)
    model.compile(optimizer=optimizer, loss="mse")
    return model, fit(model, epochs, *callbacks)


def same_as_plain(name: str) -> list[float]:
    """Trains one worker. Returns the largest difference to plain Keras in any step, that of all weights at
    the end, and how far the weights moved. Weight decay also moves rows that are not pushed."""
    embeds = name in ("sgd", "adam")
    wraps = (lambda one: one, WRAP)
    (plain, seen), (served, found) = [train(wrap(OPTIMIZERS[name]()), 1, embeds) for wrap in wraps]
    pairs = list(zip(plain.get_weights(), served.get_weights()))
    ends = max(float(np.abs(one - other).max()) for one, other in pairs)
    assert sum(one["updates"] for one in rdmacoll.ps.stats()) >= len(found)
    return [float(np.abs(seen - found).max()), ends, float(np.abs(seen[0] - seen[-1]).max())]


def resumed(name: str, folder: str) -> list[float]:
    """Trains one worker: an epoch in plain Keras, one with servers, one in plain Keras, each from a file.

    Returns the difference to three epochs without files, and how far the weights moved."""
    straight, steps = train(OPTIMIZERS[name](), 3, False)
    model, _ = train(OPTIMIZERS[name](), 1, False)
    for wraps, suffix in ((True, ".keras"), (False, ".h5")):
        model.save(folder + "/model" + suffix)
        model = keras.models.load_model(folder + "/model" + suffix)
        if wraps:
            model.compile(optimizer=WRAP(model.optimizer), loss="mse")
        fit(model, 1)
    assert int(model.optimizer.iterations.numpy()) == len(steps)
    pairs = zip(straight.get_weights(), model.get_weights())
    difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    return [difference, float(np.abs(steps[0] - steps[-1]).max())]


def best_kept(folder: str) -> list[bool]:
    """Returns whether files have the weights that EarlyStopping has restored in `fit`, and those after the
    next steps. Both are tried twice."""
    model, found = network(), []
    model.compile(optimizer=WRAP(OPTIMIZERS["sgd"]()), loss="mse")
    for turn in range(2):
        # "max": the first epoch counts as the best
        best = keras.callbacks.EarlyStopping("loss", patience=1, mode="max", restore_best_weights=True)
        model.fit(*data(), batch_size=11, epochs=3, verbose=0, callbacks=[best])
        for suffix in (".keras", ".h5"):
            file = f"{folder}/{turn}{suffix}"
            model.save(file)
            pairs = zip(best.best_weights, keras.models.load_model(file).get_weights())
            found.append(all(np.array_equal(one, other) for one, other in pairs))
        fit(model, 1)
        kernels = [one.kernel.numpy() for one in model.layers if hasattr(one, "kernel")]
        found.append(not any(np.array_equal(one, old) for one in kernels for old in best.best_weights))
    return found


def together(name: str) -> dict[str, object]:
    """Trains several workers. Returns this worker's loss, whether all end with equal rows, and its steps."""
    model, seen = train(WRAP(OPTIMIZERS[name]()), 20, True, Paces())
    rdmacoll.engine.barrier()
    model.optimizer.finalize_variable_values(model.trainable_variables)
    kernel = model.trainable_variables[0].numpy()
    same = rdmacoll.engine.allgather(kernel[None])
    loss = float(model.evaluate(*data(), verbose=0))
    return {"loss": loss, "equal": bool((same == same[0]).all()), "steps": len(seen)}


def refused() -> list[str]:
    """Returns the errors for features that servers do not have."""
    answers = []
    for make in (keras.optimizers.legacy.Adam, keras.optimizers.Adadelta):
        try:
            WRAP(make(0.1))
        except rdmacoll.ConfigError as error:
            answers.append(str(error))
    optimizer = WRAP(keras.optimizers.SGD(0.1))
    model = network()
    model.compile(optimizer=optimizer, loss="mse")
    fit(model, 1)
    try:
        optimizer.learning_rate = 0.2
        optimizer.learning_rate = schedules.CosineDecay(0.1, 10)
    except rdmacoll.ConfigError as error:
        answers.append(str(error))
    return answers


rdmacoll.init(mode="ps", sync=False, num_servers=int(SERVERS))
report(globals()[TASK](*ARGUMENTS))
