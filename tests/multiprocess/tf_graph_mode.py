"""Tests Keras 2 without eager execution, like programs from before TensorFlow 2. Everything is in a graph of
TensorFlow 1 and runs in Keras' session. The argument is a folder with `tf_keras`, or "" in TensorFlow
2.15."""

from __future__ import annotations

import importlib
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import equal_on_all_ranks, raised, run_all, value

import rdmacoll
from rdmacoll.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

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
    """Returns the data of all ranks. Each batch joins `SIZE * passes` batches of the ranks."""
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
    """Compares a training with one process. Ranks begin with other weights and receive those of rank 0."""
    keras.backend.clear_session()  # small graphs are faster
    model, alone = network(), network()
    initial = [rdmacoll.engine.broadcast(w, 0) for w in alone.get_weights()]
    alone.set_weights(initial)
    if RANK == 0:
        model.set_weights(initial)
    optimizer = rdmacoll.DistributedOptimizer(
        make(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    fit(model, optimizer, dataset(RANK), BATCH, [BroadcastGlobalVariablesCallback(0)], **options)
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


def check_one_rank_that_overflows_stops_the_step_of_all() -> None:
    for passes in (1, 2):
        keras.mixed_precision.set_global_policy("mixed_float16")
        try:
            model, optimizer = network(), legacy.Adam(1e-2)
            x, y = dataset(RANK)
            if RANK == SIZE - 1:
                x[BATCH : 2 * BATCH] = 1e30
            wrapped = rdmacoll.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
            begin = BroadcastGlobalVariablesCallback(0)
            fit(model, wrapped, (x, y), BATCH, [begin], epochs=1, metrics=None)
        finally:
            keras.mixed_precision.set_global_policy("float32")
        assert "LossScale" in type(model.optimizer).__name__
        assert all(np.isfinite(w).all() for w in model.get_weights())
        assert equal_on_all_ranks(model.get_weights())
        scale = np.float32(keras.backend.get_value(model.optimizer.loss_scale))
        assert scale < 2.0**15
        assert equal_on_all_ranks([scale])


def check_metrics_are_averaged_before_the_rate_is_chosen() -> None:
    """The mean of all ranks' losses falls and decides the rate. The last rank's losses rise."""
    keras.backend.clear_session()
    model = network()
    begin, means = BroadcastGlobalVariablesCallback(0), MetricAverageCallback()
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0)
    x, y = dataset(RANK)
    optimizer = rdmacoll.DistributedOptimizer(legacy.SGD(0.05))
    history = fit(model, optimizer, (x, y * (1 + RANK)), BATCH, [begin, means, plateau], epochs=4).history
    assert equal_on_all_ranks([np.array(history[name]) for name in ("loss", "mae", "lr")])
    assert equal_on_all_ranks(model.get_weights())


def check_metrics_of_a_model_without_reductions_are_an_error() -> None:
    keras.backend.clear_session()
    data = dataset(RANK)
    text = str(
        raised(
            rdmacoll.ConfigError,
            lambda: fit(network(), legacy.SGD(0.05), data, BATCH, [MetricAverageCallback()]),
        )
    )
    assert "has reduced no gradient of model" in text, text
    fit(network(), legacy.SGD(0.05), data, BATCH, [MetricAverageCallback(allow_unwrapped=True)])


def check_a_checkpoint_of_rank_0_is_all_that_a_training_needs() -> None:
    """Weights, slots and the count go on like those of an uninterrupted training."""
    for make in (lambda: legacy.Adam(1e-2), lambda: legacy.SGD(0.1, momentum=0.9)):
        keras.backend.clear_session()
        whole, first = network(), network()
        initial = [rdmacoll.engine.broadcast(w, 0) for w in first.get_weights()]
        whole.set_weights(initial)
        first.set_weights(initial)
        fit(whole, make(), joined(), BATCH * SIZE, epochs=4)
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "model.h5")
            saves = [keras.callbacks.ModelCheckpoint(path)] if RANK == 0 else []
            fit(first, rdmacoll.DistributedOptimizer(make()), dataset(RANK), BATCH, saves)
            if RANK == 0:
                model = keras.models.load_model(path)
                optimizer = model.optimizer
            else:
                model, optimizer = network(), make()
        begin = BroadcastGlobalVariablesCallback(0)
        fit(model, rdmacoll.DistributedOptimizer(optimizer), dataset(RANK), BATCH, [begin])
        assert equal_on_all_ranks(model.get_weights())
        close(model, whole)


def check_a_later_fit_leaves_the_graph_as_it_is() -> None:
    keras.backend.clear_session()
    model, data = network(), dataset(RANK)
    fit(
        model,
        rdmacoll.DistributedOptimizer(legacy.Adam(1e-2)),
        data,
        BATCH,
        [BroadcastGlobalVariablesCallback(0)],
    )
    counts = []
    for _ in range(2):
        model.fit(*data, batch_size=BATCH, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
        counts.append(len(tf.compat.v1.get_default_graph().get_operations()))
    assert counts[0] == counts[1]
    assert equal_on_all_ranks(model.get_weights())


def check_a_model_that_is_not_wrapped_is_refused() -> None:
    keras.backend.clear_session()
    begin = BroadcastGlobalVariablesCallback(0)
    error = raised(
        rdmacoll.ConfigError, lambda: fit(network(), legacy.SGD(0.1), dataset(RANK), BATCH, [begin])
    )
    assert "has reduced no gradient" in str(error)


def check_optimizers_that_know_no_graph_are_refused() -> None:
    refused = [keras.optimizers.SGD(), keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())]
    refused += [tf.keras.optimizers.SGD()] if keras is not tf.keras else []  # an optimizer of Keras 3
    for optimizer in refused:
        answers = str(raised(rdmacoll.ConfigError, lambda one=optimizer: rdmacoll.DistributedOptimizer(one)))
        assert "cannot train without eager execution" in answers
        assert "optimizer of keras.optimizers.legacy" in answers


def check_the_optimizers_of_tensorflow_1() -> None:
    matches_one_process(lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
    matches_one_process(lambda: tf.compat.v1.train.AdamOptimizer(1e-2), passes=2)


def check_slots_of_tensorflow_1_that_rank_0_has_restored() -> None:
    keras.backend.clear_session()
    model, optimizer = (
        network(),
        rdmacoll.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)),
    )
    fit(model, optimizer, dataset(RANK), BATCH, [BroadcastGlobalVariablesCallback(0)])
    if RANK == 0:
        for slot in optimizer.variables():
            keras.backend.set_value(slot, np.ones(slot.shape, np.float32))
    model.fit(*dataset(RANK), batch_size=BATCH, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert equal_on_all_ranks(model.get_weights())
    assert equal_on_all_ranks(keras.backend.batch_get_value(optimizer.variables()))


if __name__ == "__main__":
    run_all(dict(globals()))
    rdmacoll.shutdown()
