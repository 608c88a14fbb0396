"""Keras 2 without eager execution, as programs from before TensorFlow 2 train: everything is in a graph of
TensorFlow 1, run in Keras' session. The argument: a folder with `tf_keras`, or "" in TensorFlow 2.15."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import equal_on_all_ranks, raised, run_all, value

import rdmacoll

tf.compat.v1.disable_eager_execution()
if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])
keras = importlib.import_module("tf_keras") if sys.argv[1] else tf.keras

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
TOLERANCE = 2e-5
BATCH, STEPS = 8, 4
legacy = keras.optimizers.legacy
keras.utils.set_random_seed(77 + RANK)


def dataset(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * STEPS, 5), salt=3)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def joined(passes: int = 1) -> tuple[np.ndarray, ...]:
    """The data of all ranks, in batches of `SIZE * passes` of theirs."""
    parts, size = [dataset(rank) for rank in range(SIZE)], BATCH * passes
    return tuple(
        np.concatenate([p[i][at : at + size] for at in range(0, BATCH * STEPS, size) for p in parts])
        for i in (0, 1)
    )


def network() -> Any:
    layers = [keras.layers.Input((5,)), keras.layers.Dense(16, activation="tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(1, dtype="float32")])


def fit(
    model: Any, optimizer: Any, data: Any, batch: int, callbacks: Sequence[Any] = (), **options: Any
) -> Any:
    model.compile(optimizer=optimizer, loss="mse", metrics=options.pop("metrics", ["mae"]))
    options = {"epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, batch_size=batch, callbacks=list(callbacks), **options)


def close(model: Any, other: Any) -> None:
    for mine, wanted in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_allclose(mine, wanted, atol=TOLERANCE, rtol=TOLERANCE)


def matches_one_process(make: Callable[[], Any], passes: int = 1, **options: Any) -> None:
    keras.backend.clear_session()  # small graphs are faster
    model, alone = network(), network()
    initial = [rdmacoll.engine.broadcast(w, 0) for w in alone.get_weights()]
    alone.set_weights(initial)
    model.set_weights(initial)
    optimizer = rdmacoll.DistributedOptimizer(
        make(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    fit(model, optimizer, dataset(RANK), BATCH, **options)
    assert equal_on_all_ranks(model.get_weights())
    fit(alone, make(), joined(passes), BATCH * SIZE * passes, **options)
    close(model, alone)
    assert max(np.abs(w - b).max() for w, b in zip(alone.get_weights(), initial)) > 100 * TOLERANCE


def check_legacy_optimizers() -> None:
    assert not tf.executing_eagerly()
    matches_one_process(lambda: legacy.SGD(0.1, momentum=0.9, clipnorm=0.1))
    matches_one_process(lambda: legacy.Adam(1e-2, global_clipnorm=0.5))


def check_several_passes_to_a_step() -> None:
    matches_one_process(lambda: legacy.SGD(0.1, momentum=0.9), passes=2)
    matches_one_process(lambda: legacy.Adam(1e-2, clipnorm=0.5), passes=4)


def check_loss_scaling() -> None:
    scaling = keras.mixed_precision.LossScaleOptimizer
    matches_one_process(lambda: scaling(legacy.SGD(0.1, momentum=0.9, clipnorm=0.1)))
    matches_one_process(lambda: scaling(legacy.Adam(1e-2)), passes=2)


def check_batches_by_hand_and_evaluation() -> None:
    keras.backend.clear_session()
    models = [network(), network()]
    initial = [rdmacoll.engine.broadcast(w, 0) for w in models[0].get_weights()]
    losses = []
    for model, data, batch in zip(models, (dataset(RANK), joined()), (BATCH, BATCH * SIZE)):
        model.set_weights(initial)
        optimizer = legacy.SGD(0.1, momentum=0.9)
        model.compile(rdmacoll.DistributedOptimizer(optimizer) if model is models[0] else optimizer, "mse")
        for at in range(0, len(data[0]), batch):
            model.train_on_batch(*(part[at : at + batch] for part in data))
        losses.append(model.evaluate(*joined(), batch_size=BATCH, verbose=0))
    close(*models)
    np.testing.assert_allclose(losses[0], losses[1], rtol=TOLERANCE)
    assert equal_on_all_ranks(models[0].get_weights())


def check_optimizers_that_know_no_graph_are_refused() -> None:
    refused = [keras.optimizers.SGD(), keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())]
    refused += [tf.keras.optimizers.SGD()] if keras is not tf.keras else []  # of Keras 3
    for optimizer in refused:
        said = str(raised(rdmacoll.ConfigError, lambda one=optimizer: rdmacoll.DistributedOptimizer(one)))
        assert "cannot train without eager execution" in said
        assert "optimizer of keras.optimizers.legacy" in said


def check_the_optimizers_of_tensorflow_1() -> None:
    matches_one_process(lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
    matches_one_process(lambda: tf.compat.v1.train.AdamOptimizer(1e-2), passes=2)


if __name__ == "__main__":
    run_all(dict(globals()))
    rdmacoll.shutdown()
