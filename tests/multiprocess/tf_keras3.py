"""Compares Keras 3 training on real ranks with one process on the joined batch, which rank 0 also computes.

Tolerance: the mean over a joined batch and the mean of the ranks' means differ by rounding, which Adam's
division magnifies for gradients near zero; a forgotten reduction is off by 1e-2 and more.
"""

from __future__ import annotations

import copy
import functools
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from tf_common import equal_on_all_ranks, raised, run_all, value

import rdmacoll

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
TOLERANCE = 2e-4
BATCH, STEPS = 8, 6
keras.utils.set_random_seed(77 + RANK)


def dataset(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * STEPS, 5), salt=3)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def joined() -> tuple[np.ndarray, np.ndarray]:
    """Returns the batches of all ranks, joined batch by batch."""
    parts = [dataset(rank) for rank in range(SIZE)]
    return tuple(
        np.concatenate(
            [part[i][step * BATCH : (step + 1) * BATCH] for step in range(STEPS) for part in parts]
        )
        for i in (0, 1)
    )


def network() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


def fit(model: Any, optimizer: Any, data: tuple[np.ndarray, np.ndarray], batch: int, **options: Any) -> None:
    callbacks = options.pop("callbacks", [])
    epochs = options.pop("epochs", 2)
    model.compile(optimizer=optimizer, loss="mse", **options)
    model.fit(*data, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def train(
    make: Callable[[], Any], *, wrap: bool = True, build: Callable[[], Any] = network, **options: Any
) -> Any:
    """Returns a model that all ranks have trained."""
    model = build()
    optimizer = make()
    if wrap:
        assert rdmacoll.DistributedOptimizer(optimizer) is optimizer
    callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0, allow_unwrapped=not wrap)]
    fit(model, optimizer, dataset(RANK), BATCH, callbacks=callbacks, **options)
    return model


def matches_one_process(
    make: Callable[[], Any], *, build: Callable[[], Any] = network, **options: Any
) -> None:
    start = build()
    initial = [rdmacoll.engine.broadcast(w, 0) for w in start.get_weights()]

    def from_initial() -> Any:
        model = build()
        model.set_weights(initial)
        return model

    model = train(make, build=from_initial, **options)
    assert equal_on_all_ranks(model.get_weights())
    assert equal_on_all_ranks([np.asarray(v) for v in model.optimizer.variables])
    if RANK != 0:
        return
    alone = from_initial()
    fit(alone, make(), joined(), BATCH * SIZE, **options)
    moved = 0.0
    for mine, wanted, before in zip(model.get_weights(), alone.get_weights(), initial):
        np.testing.assert_allclose(mine, wanted, atol=TOLERANCE, rtol=TOLERANCE)
        moved = max(moved, float(np.abs(wanted - before).max()))
    assert moved > 10 * TOLERANCE  # the weights have changed


def check_sgd() -> None:
    matches_one_process(lambda: keras.optimizers.SGD(0.1, momentum=0.9))


def check_adam() -> None:
    matches_one_process(lambda: keras.optimizers.Adam(1e-2))


def check_clipping_sees_the_whole_batch() -> None:
    matches_one_process(lambda: keras.optimizers.SGD(0.5, clipnorm=0.05))
    matches_one_process(lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05))
    matches_one_process(lambda: keras.optimizers.SGD(0.5, clipvalue=0.01))


def check_schedule_weight_decay_and_ema() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.8)
    matches_one_process(
        lambda: keras.optimizers.AdamW(
            schedule, weight_decay=1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4
        )
    )


def check_accumulation() -> None:
    before = rdmacoll.metrics()["batches"]
    matches_one_process(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3, global_clipnorm=0.5))
    # 12 steps are 4 updates; the rest are the broadcasts of this test.
    assert rdmacoll.metrics()["batches"] - before < 4 + 30


def check_several_steps_per_execution() -> None:
    matches_one_process(lambda: keras.optimizers.Adam(1e-2), steps_per_execution=3)


def check_eager_steps() -> None:
    matches_one_process(lambda: keras.optimizers.Adam(1e-2), run_eagerly=True)


def check_loss_scale_factor() -> None:
    matches_one_process(lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0, clipnorm=0.5))


def check_a_loop_of_ones_own() -> None:
    def loop(model: Any, optimizer: Any, data: tuple[np.ndarray, np.ndarray], batch: int) -> None:
        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        for begin in range(0, len(data[0]), batch):
            step(tf.constant(data[0][begin : begin + batch]), tf.constant(data[1][begin : begin + batch]))

    models = [network(), network()]
    initial = [rdmacoll.engine.broadcast(w, 0) for w in models[0].get_weights()]
    for model in models:
        model.set_weights(initial)
    loop(models[0], rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.2)), dataset(RANK), BATCH)
    loop(models[1], keras.optimizers.SGD(0.2), joined(), BATCH * SIZE)
    assert equal_on_all_ranks(models[0].get_weights())
    for mine, wanted in zip(models[0].get_weights(), models[1].get_weights()):
        np.testing.assert_allclose(mine, wanted, atol=TOLERANCE, rtol=TOLERANCE)


def check_without_the_wrapper_ranks_drift_apart() -> None:
    model = train(lambda: keras.optimizers.SGD(0.1), wrap=False)
    assert equal_on_all_ranks(model.get_weights()) == (SIZE == 1)


def embedding() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Lambda(lambda x: tf.cast(tf.abs(x) * 10.0, tf.int32) % 7),
            keras.layers.Embedding(7, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def check_sparse_gradients() -> None:
    matches_one_process(lambda: keras.optimizers.SGD(0.2), build=embedding)
    matches_one_process(lambda: keras.optimizers.Adam(1e-2), build=embedding)


def check_gradients_that_are_none() -> None:
    model = network()
    unused = keras.Variable(np.ones(3, np.float32))
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1))
    variables = [*model.trainable_variables, unused]
    rdmacoll.broadcast_variables(variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            step(*map(tf.constant, dataset(RANK)))
    assert equal_on_all_ranks(model.get_weights())


def check_one_rank_that_overflows_stops_the_step_of_all() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = network()
        optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.Adam(1e-2))
        model.compile(optimizer=optimizer, loss="mse")
        assert type(model.optimizer).__name__ == "LossScaleOptimizer"
        x, y = dataset(RANK)
        if RANK == SIZE - 1:
            x[BATCH : 2 * BATCH] = 1e30  # only its second batch
        callback = rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert equal_on_all_ranks(model.get_weights())
    scale = float(np.asarray(model.optimizer.dynamic_scale))
    assert scale <= 2.0**14  # 2**15 at the start, and halved on every rank
    steps = np.array([int(np.asarray(optimizer.iterations))], np.int64)
    assert equal_on_all_ranks([steps, np.float32([scale])])
    assert 0 < steps[0] < STEPS


class CustomSGD(keras.optimizers.SGD):
    """An optimizer of the program."""


def check_files_load_without_us() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model = train(lambda: keras.optimizers.AdamW(1e-3))
        model.save(path)
        x = dataset(RANK)[0]
        np.save(path.with_suffix(".x.npy"), x)
        np.save(path.with_suffix(".y.npy"), model.predict(x, verbose=0))
        program = f"""
import sys, keras, numpy as np
model = keras.models.load_model({str(path)!r})
x, y = (np.load({str(path)!r}[:-6] + suffix) for suffix in (".x.npy", ".y.npy"))
assert not any(name.startswith("rdmacoll") for name in sys.modules)
assert type(model.optimizer) is keras.optimizers.AdamW, type(model.optimizer)
np.testing.assert_allclose(model.predict(x, verbose=0), y, rtol=1e-5, atol=1e-6)
assert int(model.optimizer.iterations.numpy()) == {STEPS * 2}
model.fit(x, y, epochs=1, verbose=0)
"""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI", "RDMACOLL"))}
        if RANK == 0:
            subprocess.run(
                [sys.executable, "-c", program], check=True, timeout=400, env=environment, cwd=folder
            )
        loaded = keras.models.load_model(path)
        assert type(loaded.optimizer) is keras.optimizers.AdamW
        rdmacoll.DistributedOptimizer(loaded.optimizer)
    config = keras.saving.serialize_keras_object(rdmacoll.DistributedOptimizer(CustomSGD(0.25)))
    plain = keras.saving.serialize_keras_object(CustomSGD(0.25))
    assert {k: v for k, v in config.items() if k != "config"} == {
        k: v for k, v in plain.items() if k != "config"
    }


def check_a_second_wrap_is_an_error() -> None:
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD())
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert "already" in str(raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedOptimizer(optimizer)))
    raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedOptimizer("adam"))
    raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedOptimizer(network()))


def check_copies_and_pickles_are_wrapped_and_else_as_plain_ones() -> None:
    for way in (copy.deepcopy, copy.copy, lambda value: pickle.loads(pickle.dumps(value))):
        plain, ours = keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)
        rdmacoll.DistributedOptimizer(ours, op=rdmacoll.Sum, postscale_factor=0.5, bucket_bytes=99)
        for optimizer in (plain, ours):
            optimizer.build([keras.Variable(np.ones(3, np.float32))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras leaves slots out of a copy, and says so
            expected, copied = way(plain), way(ours)
        assert copied is not ours
        assert type(copied).__name__ == "Adam"
        assert copied.get_config() == {**expected.get_config(), "name": copied.name}
        assert len(expected.variables) == len(copied.variables)
        for wanted, found in zip(expected.variables, copied.variables):
            np.testing.assert_array_equal(np.asarray(wanted), np.asarray(found))
        raised(rdmacoll.ConfigError, lambda copied=copied: rdmacoll.DistributedOptimizer(copied))
        variable, gradient = keras.Variable(np.zeros(3, np.float32)), tf.fill((3,), float(RANK))
        ours = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), op=rdmacoll.Sum, postscale_factor=0.5)
        way(ours).apply([gradient], [variable])
        np.testing.assert_allclose(np.asarray(variable), -0.5 * sum(range(SIZE)))


def check_a_copy_and_its_original_work_in_one_step() -> None:
    ours = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), op=rdmacoll.Sum)
    others = [copy.deepcopy(ours), copy.deepcopy(ours), copy.deepcopy(copy.deepcopy(ours))]
    variables = [keras.Variable(np.zeros(2, np.float32)) for _ in range(4)]
    for optimizer, variable in zip([ours, *others], variables):
        optimizer.build([variable])

    @tf.function
    def step() -> None:
        for factor, (optimizer, variable) in enumerate(zip([ours, *others], variables), 1):
            optimizer.apply([tf.fill((2,), float(factor * (RANK + 1)))], [variable])

    step()
    for factor, variable in enumerate(variables, 1):
        np.testing.assert_allclose(np.asarray(variable), -factor * sum(range(1, SIZE + 1)))


def check_a_cloned_model_trains_with_a_copy() -> None:
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1))
    copied = functools.partial(copy.deepcopy, optimizer)
    model = train(copied, wrap=False, build=lambda: keras.models.clone_model(network()))
    assert equal_on_all_ranks(model.get_weights())


def check_compiled_models_fall_back() -> None:
    model = network()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=True)
    assert not model.jit_compile
    assert any("jit_compile" in str(warning.message) for warning in caught)
    plain = network()
    plain.compile(keras.optimizers.SGD(), "mse", jit_compile=True)
    assert plain.jit_compile
    automatic = network()
    automatic.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile="auto")
    assert not automatic.jit_compile


class Stateful(keras.layers.Layer):
    """Tests variables of unusual dtypes."""

    def build(self, input_shape: Any) -> None:
        self.flag = self.add_weight(shape=(2,), dtype="bool", initializer="zeros", trainable=False)
        self.count = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
        self.flag.assign(np.array([RANK % 2 == 0, True]))
        self.count.assign(100 + RANK)

    def call(self, x: Any) -> Any:
        return x


def check_the_callback_sends_everything_before_the_first_batch() -> None:
    model = keras.Sequential(
        [
            keras.layers.Input((5,)),
            Stateful(),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    seen: list[list[np.ndarray]] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                variables = [*self.model.variables, *self.model.optimizer.variables]
                seen.append([np.asarray(keras.ops.convert_to_numpy(v)) for v in variables])

    model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.Adam(1e-3 * (RANK + 1))), "mse")
    mine = np.concatenate([w.ravel() for w in model.get_weights()]).astype(np.float64)
    callback = rdmacoll.callbacks.BroadcastGlobalVariablesCallback(SIZE - 1)
    model.fit(*dataset(RANK), batch_size=BATCH, epochs=1, verbose=0, callbacks=[callback, Look()])
    assert SIZE == 1 or not equal_on_all_ranks([mine])
    assert {"bool", "int64"} <= {array.dtype.name for array in seen[0]}
    assert equal_on_all_ranks(seen[0])
    root = SIZE - 1
    layer = model.layers[0]
    assert int(layer.count.numpy()) == 100 + root
    assert np.asarray(layer.flag).tolist() == [root % 2 == 0, True]
    assert abs(float(model.optimizer.learning_rate.numpy()) - 1e-3 * (root + 1)) < 1e-9


def check_metrics_are_averaged() -> None:
    logs: dict[str, Any] = {"loss": 1.0 + RANK, "accuracy": np.float32(RANK), "list": [1, 2]}
    rdmacoll.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    mean = (SIZE - 1) / 2
    assert (logs["loss"], logs["accuracy"], logs["list"]) == (1 + mean, mean, [1, 2])


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
