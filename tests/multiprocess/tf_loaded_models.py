"""Tests models whose optimizer is plain when `fit` could begin: loaded ones, and those that are compiled
again. Argument: the folder of `tf_keras`, or "" for Keras 3 alone."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from tf_common import equal_on_all_ranks, keras_packages, run_all, value

import rdmacoll
import rdmacoll.tensorflow.keras as hvd

PACKAGES = keras_packages()
rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
IS_WARNED_OF = "is not wrapped, as after load_model or another compile."


def data_of(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (16, 3), salt=5)
    return x, x.sum(axis=1, keepdims=True)


def network(package: Any, optimizer: Any, *, run_eagerly: bool = True, **options: Any) -> Any:
    """Returns a compiled model, equal on all ranks. It runs eagerly, which is faster for a few batches."""
    layers = package.layers
    model = package.Sequential([layers.Input((3,)), layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer, "mse", run_eagerly=run_eagerly, **options)
    return model


def fit(model: Any, callbacks: Any = None) -> str:
    """Trains for an epoch of four batches. Returns the lines on stderr."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        model.fit(*data_of(RANK), batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
    return text.getvalue()


def trains_as_one_process(model: Any, plain: Any) -> None:
    """Trains `model` on all ranks, and `plain` on the joined batches of all ranks. Both have to be equal."""
    parts = [np.stack(part).reshape(SIZE, 4, 4, -1) for part in zip(*map(data_of, range(SIZE)))]
    x, y = (part.swapaxes(0, 1).reshape(16 * SIZE, -1) for part in parts)
    plain.set_weights(model.get_weights())
    plain.fit(x, y, batch_size=4 * SIZE, shuffle=False, verbose=0)
    fit(model)
    assert equal_on_all_ranks(model.get_weights())
    for mine, wanted in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


def loaded(model: Any, load: Callable[[str], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "model.keras")
        model.save(path)
        return load(path)


def wrapped(package: Any) -> Any:
    return rdmacoll.DistributedOptimizer(package.optimizers.SGD(0.01))


def is_warned_of(text: str) -> bool:
    """Returns whether rank 0 is warned, and checks that it alone may be."""
    assert RANK == 0 or IS_WARNED_OF not in text
    return bool(rdmacoll.engine.broadcast(np.array([IS_WARNED_OF in text]), 0)[0])


def check_a_plain_optimizer_after_load_model_or_compile_is_warned_of_once() -> None:
    for package in PACKAGES:
        model = network(package, wrapped(package), run_eagerly=False)
        assert not is_warned_of(fit(model))
        plain = loaded(model, package.models.load_model)
        text = fit(plain, package.callbacks.History())
        assert is_warned_of(text)
        assert RANK > 0 or f"model {plain.name!r} by gradients of this rank alone" in text
        assert not equal_on_all_ranks(plain.get_weights())
        plain.compile("sgd", "mse")
        assert not is_warned_of(fit(plain))
        model.compile("sgd", "mse")
        assert is_warned_of(fit(model, []))


def check_a_model_that_is_wrapped_again_is_not_warned_of() -> None:
    for package in PACKAGES:
        model = loaded(network(package, wrapped(package)), package.models.load_model)
        rdmacoll.DistributedOptimizer(model.optimizer)
        assert not is_warned_of(fit(model))
        trains_as_one_process(model, network(package, package.optimizers.SGD(0.01)))


def check_callbacks_that_allow_a_plain_optimizer_are_enough() -> None:
    for package in PACKAGES:
        callbacks = [rdmacoll.keras.callbacks.MetricAverageCallback(allow_unwrapped=True)]
        assert not is_warned_of(fit(network(package, "sgd"), callbacks))


def check_models_that_train_in_another_way_are_not_warned_of() -> None:
    for package in PACKAGES:

        class Tape(package.Sequential):  # type: ignore[misc, name-defined]
            """A model that reduces by a tape."""

            def train_step(self, data: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
                tape = rdmacoll.DistributedGradientTape(tape)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return {"loss": loss}

        class Nothing(Tape):
            """A model that no optimizer updates."""

            def train_step(self, data: Any) -> Any:
                return {"loss": tf.reduce_mean(data[0])}

        for kind in (Tape, Nothing):
            model = kind([package.layers.Input((3,)), package.layers.Dense(1)])
            model.compile("sgd")
            rdmacoll.broadcast_variables(model.variables)
            assert not is_warned_of(fit(model))
            assert not is_warned_of(fit(model))
        frozen = network(package, "sgd")
        frozen.trainable = False
        frozen.compile("sgd", "mse")
        assert not is_warned_of(fit(frozen))


def check_a_model_of_one_rank_is_not_warned_of() -> None:
    for package in PACKAGES:
        text = "" if RANK != SIZE - 1 else fit(network(package, "sgd"))
        assert not is_warned_of(text)


def check_a_model_that_was_compiled_with_xla_trains_without_it() -> None:
    compiled = network(keras, keras.optimizers.SGD(0.01), run_eagerly=False, jit_compile=True)
    by_keras = loaded(compiled, keras.models.load_model)
    rdmacoll.DistributedOptimizer(by_keras.optimizer)
    by_us = loaded(compiled, hvd.load_model)
    rows = value(RANK, (4, 3)), value(RANK, (4, 1))
    compiled.train_on_batch(*rows)  # with XLA
    rdmacoll.broadcast_variables(compiled.variables)
    rdmacoll.DistributedOptimizer(compiled.optimizer)
    for model in (by_keras, by_us, compiled):
        assert model.jit_compile
        trains_as_one_process(model, network(keras, keras.optimizers.SGD(0.01)))
        assert not model.jit_compile


def check_sums_of_passes_go_on_as_sums_or_there_is_a_warning() -> None:
    def sgd(rate: float, passes: int | None = None) -> Any:
        return keras.optimizers.SGD(rate, gradient_accumulation_steps=passes)

    def wrap(path: str, **options: Any) -> Any:
        model = keras.models.load_model(path)
        rdmacoll.DistributedOptimizer(model.optimizer, **options)
        return model

    first = network(keras, rdmacoll.DistributedOptimizer(sgd(0.01), backward_passes_per_step=4))
    fit(first)
    passes: dict[str, Any] = {"backward_passes_per_step": 4}
    means = {**passes, "average_aggregated_gradients": True}
    # A sum of four passes is a mean with four times the learning rate.
    for load, options, rate in [
        (hvd.load_model, passes, 0.04),
        (hvd.load_model, {}, 0.01),
        (wrap, passes, 0.04),
        (wrap, means, 0.01),
        (wrap, {}, 0.01),
    ]:
        with contextlib.redirect_stderr(io.StringIO()) as text:
            model = loaded(first, functools.partial(load, **options))
        warning = "If backward_passes_per_step=4 was given before it was saved, its updates were sums"
        assert (warning in text.getvalue()) == (not options and RANK == 0), text.getvalue()
        trains_as_one_process(model, network(keras, sgd(rate, 4)))
    with contextlib.redirect_stderr(io.StringIO()) as text:
        rdmacoll.DistributedOptimizer(sgd(0.01, 4))
        copy.deepcopy(first.optimizer)
        copy.deepcopy(model.optimizer)
    assert "gradient_accumulation_steps" not in text.getvalue()


if __name__ == "__main__":
    wrapped(keras)  # from here on `fit` is patched
    for one in PACKAGES[1:]:
        wrapped(one)
    run_all(globals())
    rdmacoll.shutdown()
