"""Tests Keras 2 on real ranks: tape, new and legacy optimizers, loss scaling, callback, files. The argument
`smoke` runs the first two checks only. Newer TensorFlow has Keras 2 with TF_USE_LEGACY_KERAS=1, through
`tf_keras`."""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import equal_on_all_ranks, raised, run_all, value

import rdmacoll

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
TOLERANCE = 2e-4
BATCH, STEPS = 8, 6
keras = tf.keras
keras.utils.set_random_seed(77 + RANK)


def dataset(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * STEPS, 5), salt=3)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def joined() -> tuple[np.ndarray, ...]:
    parts = [dataset(rank) for rank in range(SIZE)]
    return tuple(
        np.concatenate(
            [part[i][step * BATCH : (step + 1) * BATCH] for step in range(STEPS) for part in parts]
        )
        for i in (0, 1)
    )


def network(*, is_built: bool = True) -> Any:
    layers = [keras.layers.Input((5,))] if is_built else []
    return keras.Sequential(
        [*layers, keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1, dtype="float32")]
    )


def fit(model: Any, optimizer: Any, data: Any, batch: int, callbacks: Any = (), **options: Any) -> None:
    model.compile(optimizer=optimizer, loss="mse", **options)
    model.fit(*data, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))


def matches_one_process(make: Callable[[], Any], **options: Any) -> None:
    initial = [rdmacoll.engine.broadcast(w, 0) for w in network().get_weights()]
    model, alone = network(), network()
    alone.set_weights(initial)
    if RANK == 0:
        model.set_weights(initial)
    callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit(model, rdmacoll.DistributedOptimizer(make()), dataset(RANK), BATCH, callbacks, **options)
    assert equal_on_all_ranks(model.get_weights())
    if RANK != 0:
        return
    fit(alone, make(), joined(), BATCH * SIZE, **options)
    for mine, wanted in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(mine, wanted, atol=TOLERANCE, rtol=TOLERANCE)
    assert max(np.abs(w - b).max() for w, b in zip(alone.get_weights(), initial)) > 10 * TOLERANCE


def check_the_tape_trains() -> None:
    models = [network(), network()]
    initial = [rdmacoll.engine.broadcast(w, 0) for w in models[0].get_weights()]

    def loop(model: Any, tape_of: Callable[[Any], Any], data: Any, batch: int) -> None:
        model.set_weights(initial)
        optimizer = keras.optimizers.Adam(1e-2)

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tape_of(tf.GradientTape()) as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        for begin in range(0, len(data[0]), batch):
            step(*(tf.constant(part[begin : begin + batch]) for part in data))

    loop(models[0], rdmacoll.DistributedGradientTape, dataset(RANK), BATCH)
    loop(models[1], lambda tape: tape, joined(), BATCH * SIZE)
    assert equal_on_all_ranks(models[0].get_weights())
    for mine, wanted in zip(models[0].get_weights(), models[1].get_weights()):
        np.testing.assert_allclose(mine, wanted, atol=TOLERANCE, rtol=TOLERANCE)


def check_new_optimizers() -> None:
    matches_one_process(lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.5))


def check_more_new_optimizers() -> None:
    matches_one_process(lambda: keras.optimizers.SGD(0.2, momentum=0.9, clipnorm=0.1))
    matches_one_process(lambda: keras.optimizers.Adam(1e-2, use_ema=True), steps_per_execution=3)
    matches_one_process(lambda: keras.optimizers.Adam(1e-2), run_eagerly=True)


def check_legacy_optimizers() -> None:
    matches_one_process(lambda: keras.optimizers.legacy.SGD(0.2, momentum=0.9, clipnorm=0.1))
    matches_one_process(lambda: keras.optimizers.legacy.Adam(1e-2, global_clipnorm=0.5))


def check_one_rank_that_overflows_stops_the_step_of_all() -> None:
    for make in (keras.optimizers.Adam, keras.optimizers.legacy.Adam):
        keras.mixed_precision.set_global_policy("mixed_float16")
        try:
            model = network()
            optimizer = rdmacoll.DistributedOptimizer(make(1e-2))
            x, y = dataset(RANK)
            if RANK == SIZE - 1:
                x[BATCH : 2 * BATCH] = 1e30
            callback = rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)
            model.compile(optimizer=optimizer, loss="mse")
            assert "LossScale" in type(model.optimizer).__name__
            model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
        finally:
            keras.mixed_precision.set_global_policy("float32")
        assert all(np.isfinite(w).all() for w in model.get_weights())
        assert equal_on_all_ranks(model.get_weights())
        scale = np.float32(model.optimizer.loss_scale)
        assert scale <= 2.0**14
        assert equal_on_all_ranks([scale])


def check_without_the_wrapper_ranks_drift_apart() -> None:
    model = network()
    callbacks = [rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0, allow_unwrapped=True)]
    fit(model, keras.optimizers.SGD(0.1), dataset(RANK), BATCH, callbacks)
    assert equal_on_all_ranks(model.get_weights()) == (SIZE == 1)


def check_a_model_that_is_built_late() -> None:
    model = network(is_built=False)
    callbacks = [rdmacoll.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit(model, rdmacoll.DistributedOptimizer(keras.optimizers.Adam(1e-2)), dataset(RANK), BATCH, callbacks)
    assert equal_on_all_ranks(model.get_weights())


def check_a_second_wrap_is_an_error() -> None:
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        optimizer = make()
        assert rdmacoll.DistributedOptimizer(optimizer) is optimizer
        assert isinstance(optimizer, make)
        assert make().get_config() == optimizer.get_config()
        raised(rdmacoll.ConfigError, lambda optimizer=optimizer: rdmacoll.DistributedOptimizer(optimizer))


def check_loss_scaling_can_be_inside_and_outside() -> None:
    scaling = keras.mixed_precision.LossScaleOptimizer
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for wrap in (
            lambda optimizer: rdmacoll.DistributedOptimizer(scaling(optimizer)),
            lambda optimizer: scaling(rdmacoll.DistributedOptimizer(optimizer)),
        ):
            optimizer, weights = wrap(make(0.25)), [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
            # The last rank's gradients are not finite in the second step, so all ranks skip it.
            for factor in (1.0, np.inf if RANK == SIZE - 1 else 1.0, 1.0):
                gradients = [tf.fill(w.shape, factor * RANK * optimizer.loss_scale) for w in weights]
                optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(gradients), weights))
            moved = 2 * 0.25 * (SIZE - 1) / 2
            np.testing.assert_array_equal(weights[0].numpy(), [1.0 - moved, 2.0 - moved])
            np.testing.assert_array_equal(weights[1].numpy(), [3.0 - moved])
            raised(rdmacoll.ConfigError, lambda o=optimizer: rdmacoll.DistributedOptimizer(o))
            raised(rdmacoll.ConfigError, lambda o=optimizer: rdmacoll.DistributedOptimizer(o.inner_optimizer))


class OwnStep:
    """A mixin for loss scaling of a program, with a step of its own."""

    def apply_gradients(self, grads_and_vars: Any, **options: Any) -> Any:
        pairs = [(2.0 * gradient, variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(pairs, **options)  # type: ignore[misc]


def check_loss_scaling_with_a_step_of_its_own_reduces_once() -> None:
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        plain = keras.mixed_precision.LossScaleOptimizer(make(0.25))
        scaled = type("Own", (OwnStep, type(plain)), {})(make(0.25), initial_scale=8)
        optimizer, weight = rdmacoll.DistributedOptimizer(scaled, op=rdmacoll.Sum), tf.Variable([1.0, 2.0])
        for factor in (1.0, np.inf if RANK == SIZE - 1 else 1.0, 1.0):
            gradient = tf.fill((2,), factor * RANK * optimizer.loss_scale)
            optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients([gradient]), [weight]))
        moved = 2 * 0.25 * 2.0 * sum(range(SIZE))
        np.testing.assert_allclose(weight.numpy(), [1.0 - moved, 2.0 - moved])


def check_a_graph_of_tensorflow_1_is_for_legacy_optimizers() -> None:
    """Also tests a graph beside eager execution. Other optimizers would train nothing there."""
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with tf.Graph().as_default():
        model = network()
        model.compile(optimizer, "mse")
        error = raised(rdmacoll.ConfigError, lambda: model.fit(*dataset(RANK), verbose=0))
        assert "cannot train without eager execution" in str(error)
        raised(rdmacoll.ConfigError, lambda: optimizer.apply_gradients([]))
        raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        rdmacoll.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1))


def check_elastic_states_have_the_learning_rate() -> None:
    """Keras 2 has it beside the optimizer's list. A callback may have changed it before a rank comes."""
    kinds = keras.optimizers.SGD, keras.optimizers.legacy.SGD
    scaled = [
        lambda rate: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(rate), initial_scale=8)
    ]
    for kind in (*kinds, *scaled):
        model = network()
        model.compile(rdmacoll.DistributedOptimizer(kind(0.5)), "mse")
        state = rdmacoll.keras.elastic.KerasState(model)
        rate = model.optimizer.learning_rate
        rate.assign(0.25 + RANK)
        state.sync()
        assert rate.numpy() == 0.25
        rate.assign(0.125)
        scale = getattr(model.optimizer, "_loss_scale", None)
        if kind in scaled:
            scale._current_loss_scale.assign(2.0)
        state.restore()
        assert rate.numpy() == 0.25
        assert kind not in scaled or scale().numpy() == 8.0


def check_files_hold_the_plain_optimizer() -> None:
    for make in (keras.optimizers.Adam, keras.optimizers.legacy.Adam):
        plain, ours = make(0.125), rdmacoll.DistributedOptimizer(make(0.125))
        assert keras.saving.serialize_keras_object(ours) == keras.saving.serialize_keras_object(plain)
        model = network()
        fit(model, ours, dataset(RANK), BATCH, [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)])
        for suffix in ("keras", "h5") if make is keras.optimizers.Adam else ("h5",):
            with tempfile.TemporaryDirectory() as folder:
                path = str(pathlib.Path(folder) / f"model.{suffix}")
                model.save(path)
                loaded = keras.models.load_model(path)
            assert type(loaded.optimizer) is make, type(loaded.optimizer).__mro__
            assert int(loaded.optimizer.iterations.numpy()) == STEPS * 2
            rdmacoll.DistributedOptimizer(loaded.optimizer)


if __name__ == "__main__":
    checks = dict(globals())
    if "smoke" in sys.argv:
        names = [name for name in checks if name.startswith("check_")][:2]
        checks = {name: checks[name] for name in names}
    run_all(checks)
    rdmacoll.shutdown()
