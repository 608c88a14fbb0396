"""Keras 3 with asynchronous parameter servers. The argument names a function; its result is reported."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import h5py
import keras
import numpy as np
import tensorflow as tf
from ranks import report

import rdmacoll
from rdmacoll import ps

TASK, SERVERS, *ARGUMENTS = sys.argv[1:]
WRAP = rdmacoll.DistributedOptimizer
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.05, 7, 0.7), momentum=0.9, nesterov=True
    ),
    "adam": lambda: keras.optimizers.Adam(0.01, clipvalue=0.05),
    # The two limits below clip most gradients here.
    "clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05, weight_decay=1e-3),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "amsgrad": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.02, 20, warmup_steps=4, warmup_target=0.03), amsgrad=True
    ),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.005, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


def network(dtype: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(9)
    layers = [
        keras.layers.Input((6,)),
        keras.layers.Dense(24, activation="tanh", dtype=dtype),
        keras.layers.BatchNormalization(dtype=dtype),
        keras.layers.Dense(1, dtype=dtype),
    ]
    return keras.Sequential(layers)


def data(rows: int = 96) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(4).normal(size=(rows, 6)).astype(np.float32)
    return x, np.sin(x.sum(axis=1, keepdims=True))


class Steps(keras.callbacks.Callback):
    """Records the weights after each step. The learning rate falls with each step, unless there is a
    schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.seen.append(np.concatenate([one.ravel() for one in self.model.get_weights()]))
        rate = self.model.optimizer._learning_rate
        if hasattr(rate, "assign"):
            rate.assign(rate * 0.95)


def train(model: keras.Model, optimizer: object, epochs: int = 2) -> np.ndarray:
    steps = Steps()
    model.compile(optimizer=optimizer, loss="mse")
    x, y = data()
    model.fit(x, y, batch_size=12, epochs=epochs, shuffle=False, verbose=0, callbacks=[steps])
    return np.array(steps.seen)


def same_as_plain(name: str, dtype: str) -> list[float]:
    """Trains one worker. Returns the largest difference to plain Keras, and how far the weights moved."""
    seen = [train(network(dtype), wrap(OPTIMIZERS[name]())) for wrap in (lambda one: one, WRAP)]
    return [float(np.abs(seen[0] - seen[1]).max()), float(np.abs(seen[0][0] - seen[0][-1]).max())]


def resumed(name: str, folder: str) -> list[float]:
    """Trains one worker: an epoch in plain Keras, one with servers, one in plain Keras, each from a file.

    Returns the difference to three epochs without files, and how far the weights moved."""
    straight, file = network(), f"{folder}/model.keras"
    steps = train(straight, OPTIMIZERS[name](), epochs=3)
    x, y = data()
    model = network()
    train(model, OPTIMIZERS[name](), epochs=1)
    for wraps in (True, False):
        model.save(file)
        model = keras.models.load_model(file)
        if wraps:
            model.compile(optimizer=WRAP(model.optimizer), loss="mse")
        model.fit(x, y, batch_size=12, epochs=1, shuffle=False, verbose=0, callbacks=[Steps()])
    assert int(model.optimizer.iterations.numpy()) == len(steps)
    pairs = list(zip(straight.get_weights(), model.get_weights()))
    pairs += list(zip(straight.optimizer.variables, model.optimizer.variables))
    difference = max(float(np.abs(np.asarray(one) - np.asarray(other)).max()) for one, other in pairs)
    return [difference, float(np.abs(steps[0] - steps[-1]).max())]


def set_after_fit(folder: str) -> list[bool]:
    """Returns whether files have the weights that EarlyStopping has restored, and those after the next step.

    At the end another worker pushes. Files must have the result of this push too."""
    model, file, found = network(), f"{folder}/model.keras", []
    model.compile(optimizer=WRAP(keras.optimizers.SGD(0.1)), loss="mse")
    x, y = data()
    for epochs in (3, 3):
        # "max": the first epoch counts as the best
        best = keras.callbacks.EarlyStopping("loss", patience=1, mode="max", restore_best_weights=True)
        model.fit(x, y, batch_size=12, epochs=epochs, verbose=0, callbacks=[best])
        for _ in range(2):
            model.save(file)
            pairs = zip(best.best_weights, keras.models.load_model(file).get_weights())
            found.append(all(np.array_equal(one, other) for one, other in pairs))
        model.fit(x, y, batch_size=12, verbose=0)
        model.save(file)
        pairs = zip(best.best_weights, keras.models.load_model(file).get_weights())
        found.append(not any(np.array_equal(one, other) for one, other in pairs))
    # This push stands for one of another worker.
    name = model.layers[0].kernel.path
    for save in (model.save, lambda to: keras.models.save_model(model, to)):
        for to in (file, f"{folder}/model.h5"):
            rdmacoll.push(np.ones((6, 24), np.float32), name)
            save(to)
            loaded = keras.models.load_model(to, compile=False)
            found.append(np.array_equal(loaded.layers[0].kernel.numpy(), rdmacoll.pull(name)))
    return found


def set_in_a_loop(folder: str) -> dict[str, object]:
    """Trains in a user's loop. Files must have the values that were set after its last step, and no older
    ones.

    Both formats must have the same momentum. Also returns the optimizer's steps, here and in a file."""
    model, optimizer, found = network(), WRAP(OPTIMIZERS["momentum"]()), []
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())
    x, y = data()

    def steps(count: int) -> None:
        for _ in range(count):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, [one.value for one in weights]), weights)

    def is_saved(suffix: str) -> bool:
        stored = [one.copy() for one in model.get_weights()]
        model.save(f"{folder}/model{suffix}")
        loaded = keras.models.load_model(f"{folder}/model{suffix}", compile=False)
        return all(np.array_equal(one, other) for one, other in zip(stored, loaded.get_weights()))

    steps(3)
    name = model.layers[0].kernel.path
    for suffix in (".keras", ".h5"):
        rdmacoll.push(np.ones((6, 24), np.float32), name)  # stands for a push of another worker
        found.append(not is_saved(suffix))
        model.layers[0].kernel.assign(np.full((6, 24), 0.5, np.float32))
        found.append(is_saved(suffix) and float(model.layers[0].kernel.numpy()[0, 0]) == 0.5)
        steps(1)
        found.append(float(model.layers[0].kernel.numpy()[0, 0]) != 0.5 and is_saved(suffix))
    model.save(f"{folder}/model.keras")
    loaded = keras.models.load_model(f"{folder}/model.keras").optimizer
    model.save(f"{folder}/model.h5")
    held: list[np.ndarray] = []
    with h5py.File(f"{folder}/model.h5") as file:
        file["optimizer_weights"].visititems(
            lambda _, one: held.append(one[()]) if isinstance(one, h5py.Dataset) else None
        )
    totals = [sum(float(np.abs(one).sum()) for one in each) for each in (loaded.variables, held)]
    found += [abs(totals[0] - totals[1]) < 1e-4 * totals[0], len(held) == len(loaded.variables)]
    return {"found": found, "iterations": [int(one.iterations.numpy()) for one in (optimizer, loaded)]}


def embedding(name: str) -> list[float]:
    """Trains an embedding with one worker. Returns the difference to plain Keras after `fit`, how far the
    rows moved, and the bytes that the servers received for each byte of the embedding."""
    rows, length = 2000, 4
    random = np.random.default_rng(5)
    # A batch has no row twice. Keras squares the parts of a row's gradient; servers square their sum.
    batches = [random.choice(80, size=(12, length), replace=False) * 17 for _ in range(8)]
    words = np.concatenate(batches)
    targets = np.cos(words.sum(axis=1, keepdims=True)).astype(np.float32)
    found, start = [], None
    for wrap in (lambda one: one, WRAP):
        keras.utils.set_random_seed(9)
        layers = [keras.layers.Embedding(rows, 16), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((length,)), *layers])
        start = model.get_weights()[0].copy()
        model.compile(optimizer=wrap(OPTIMIZERS[name]()), loss="mse")
        model.fit(words, targets, batch_size=12, epochs=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    difference = max(float(np.abs(one - other).max()) for one, other in zip(*found))
    bytes_received = sum(one["bytes_received"] for one in rdmacoll.ps.stats())
    return [difference, float(np.abs(found[0][0] - start).max()), bytes_received / start.nbytes]


def digits(epochs: str, folder: str) -> dict[str, object]:
    """Trains all workers, each with its own data. Returns the accuracy of the saved model in plain Keras."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.images))
    images, labels = found.images[order].reshape(-1, 64) / 16.0, found.target[order]
    tests, mine = slice(0, 360), slice(360 + rdmacoll.rank(), None, rdmacoll.size())
    keras.utils.set_random_seed(
        1 + rdmacoll.rank()
    )  # each rank has other weights and another order of batches
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(optimizer: Any, share: slice) -> keras.Model:
        layers = [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
        model = keras.Sequential(layers)
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
        model.fit(images[share], labels[share], batch_size=32, epochs=int(epochs), verbose=0)
        return model

    model = train(WRAP(keras.optimizers.Adam(3e-3), compression=rdmacoll.Compression.none), mine)
    rdmacoll.engine.barrier()  # all pushes are done
    model.optimizer.finalize_variable_values(model.trainable_variables)
    weights = model.get_weights()
    same = rdmacoll.engine.allgather(np.concatenate([one.ravel() for one in weights])[None])
    file = f"{folder}/model-{rdmacoll.rank()}.keras"
    model.save(file)
    loaded = keras.models.load_model(file)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert all(np.array_equal(one, other) for one, other in zip(weights, loaded.get_weights()))
    of_one = 0.0
    if rdmacoll.rank() == 0:  # one process with all data, for the same number of epochs
        alone = train(keras.optimizers.Adam(3e-3), slice(360, None))
        of_one = alone.evaluate(images[tests], labels[tests], verbose=0)[1]
    return {
        "accuracy": loaded.evaluate(images[tests], labels[tests], verbose=0)[1],
        "of one process": of_one,
        "equal": bool((same == same[0]).all()),
        "iterations": int(loaded.optimizer.iterations.numpy()),
        "mine": int(epochs) * -(-len(labels[mine]) // 32),
    }


def two_optimizers() -> float:
    """Trains two models in turn, each with its own optimizer, like a generator and its discriminator.

    The class of the first optimizer makes the last one. Returns the difference to plain Keras."""
    x, y = data()
    found = []
    for wrap in (lambda one: one, WRAP):
        models = [network(), network()]
        for model, name in zip(models, ("adam", "rmsprop")):
            model.compile(optimizer=wrap(OPTIMIZERS[name]()), loss="mse")
        first = models[0].optimizer
        models.append(network())
        models[2].compile(optimizer=type(first).from_config(first.get_config()), loss="mse")
        for step in range(18):
            models[step % 3].train_on_batch(x[step : step + 40], y[step : step + 40])
        for model in models:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        found.append([one for model in models for one in model.get_weights()])
    assert {int(model.optimizer.iterations.numpy()) for model in models} == {6}
    return max(float(np.abs(one - other).max()) for one, other in zip(*found))


def rates_of_callbacks(name: str) -> list[float]:
    """Trains one worker with Keras callbacks that set the learning rate. Returns the difference to plain
    Keras, how far the weights moved, and the last rate."""
    seen = []
    for wrap in (lambda one: one, WRAP):
        model, steps = network(), Steps()
        model.compile(optimizer=wrap(OPTIMIZERS[name]()), loss="mse")
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.5 if epoch == 1 else 1)),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=1e3),
            steps,
        ]
        model.fit(*data(), batch_size=12, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        seen.append(np.array(steps.seen))
    moved = float(np.abs(seen[0][0] - seen[0][-1]).max())
    return [float(np.abs(seen[0] - seen[1]).max()), moved, float(model.optimizer.learning_rate.numpy())]


def refused() -> list[str]:
    """Returns the errors of DistributedOptimizer and others for features that servers do not have."""
    answers = []

    def wrap(optimizer: object, **options: object) -> object:
        return WRAP(optimizer, **options)

    def later_schedule() -> None:
        model, optimizer = network(), WRAP(keras.optimizers.SGD(0.1))
        train(model, optimizer, 1)
        optimizer.learning_rate = 0.2
        optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 10)

    def compiled_again() -> None:
        model = network()
        for _ in range(2):
            train(model, WRAP(keras.optimizers.SGD(0.1)), 1)

    def taped() -> None:
        variable = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            square = variable * variable
        rdmacoll.DistributedGradientTape(tape).gradient(square, [variable])

    attempts = [
        lambda: wrap(keras.optimizers.Lion(0.1)),
        lambda: rdmacoll.ps.rule_of(keras.optimizers.SGD(0.1, global_clipnorm=1.0)),
        lambda: wrap(keras.optimizers.SGD(0.1), op=rdmacoll.Sum),
        lambda: wrap(keras.optimizers.SGD(0.1), backward_passes_per_step=2),
        lambda: wrap(tf.compat.v1.train.AdadeltaOptimizer(0.1)),
        lambda: wrap(wrap(keras.optimizers.SGD(0.1))),
        later_schedule,
        compiled_again,
        taped,
    ]
    for attempt in attempts:
        try:
            attempt()
        except Exception as error:
            typed = rdmacoll.error_from(error)
            if not isinstance(typed, rdmacoll.ConfigError):
                raise
            answers.append(str(typed))
    train(network(), WRAP(keras.optimizers.SGD(0.1)), 1)  # the refused calls have left nothing behind
    return answers


class PlannedFailure(keras.callbacks.Callback):
    """Ends worker 1, or reports that this rank is in the middle of its training.

    The other workers train until the server has counted the worker as lost, and one epoch more.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.steps, self.steps_at_loss = kind, 0, 0

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if self.steps_at_loss:
            self.model.stop_training = True
        elif self.kind == "worker" and ps.stats()[0]["lost"]:
            self.steps_at_loss = self.steps

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps += 1
        if self.steps == 5:
            report({"steps": 5})
            if self.kind == "worker" and rdmacoll.rank() == 1:
                os._exit(7)


def planned_failure(kind: str) -> dict[str, object]:
    """Trains while a worker or a server dies."""
    model = network()
    model.compile(optimizer=WRAP(keras.optimizers.SGD(0.01)), loss="mse")
    counter = PlannedFailure(kind)
    x, y = data()
    try:
        model.fit(x, y, batch_size=12, epochs=1_000_000, verbose=0, callbacks=[counter])
    except Exception as error:
        typed = rdmacoll.error_from(error)
        return {"steps": counter.steps, "error": f"{type(typed).__name__}: {typed}"}
    return {"steps_after_loss": counter.steps - counter.steps_at_loss, "error": ""}


def held_back() -> dict[str, object]:
    """Worker 0 waits in TensorFlow for worker 1, which no longer pushes. Then worker 0 is interrupted."""
    model = network()
    model.compile(optimizer=WRAP(keras.optimizers.SGD(0.01)), loss="mse")
    x, y = data()
    model.fit(x[:12], y[:12], batch_size=12, epochs=1, verbose=0)  # both
    rdmacoll.engine.barrier()
    report({"class": ""})
    if rdmacoll.rank() == 1:
        try:
            rdmacoll.engine.barrier()
        except rdmacoll.RankFailedError as error:
            return {"class": type(error).__name__, "cause": error.cause}
    try:
        model.fit(x, y, batch_size=12, epochs=1000, verbose=0)
    except BaseException as error:
        return {"class": type(error).__name__}
    return {"class": "it was not held back"}


bound = {"staleness": 3} if TASK == "held_back" else {}
where = {"placement": SERVERS} if SERVERS == "colocated" else {"num_servers": int(SERVERS)}
rdmacoll.init(mode="ps", sync=False, **where, **bound)
report(globals()[TASK](*ARGUMENTS))
