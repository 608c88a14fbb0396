"""Tests learning rates that change during `fit`, and checkpoints without a path. The first argument is 3,
or a folder with `tf_keras`. Each weight is compared with its closed form."""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any

import numpy as np
from tf_callback_trainings import IS_KERAS_3, keras
from tf_common import close, raised, run_all

import rdmacoll
import rdmacoll.tensorflow.keras as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STEPS = 3
callbacks = hvd.callbacks


class Noted(keras.callbacks.Callback):
    """Notes the rate of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))


def sgd(**options: Any) -> list[Any]:
    """Returns optimizers of each kind of this Keras."""
    kinds = [keras.optimizers.SGD]
    kinds += [] if IS_KERAS_3 else [keras.optimizers.legacy.SGD]
    return [kind(**options) for kind in kinds]


def trained(
    optimizer: Any, schedule: Any, epochs: int, steps: int = STEPS
) -> tuple[float, list[float], list[float]]:
    """Returns the weight after a training in which each gradient is 1, the rates of all batches, and the
    rates in the logs."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    model.compile(hvd.DistributedOptimizer(optimizer), lambda _, predicted: predicted)
    noted = Noted()
    history = model.fit(
        np.ones((steps, 1), np.float32),
        np.ones((steps, 1), np.float32),
        1,
        epochs,
        0,
        callbacks=[callbacks.BroadcastGlobalVariablesCallback(0), schedule, noted],
    )
    return float(np.asarray(layer.kernel)[0, 0]), noted.rates, history.history["lr"]


def expected(rates: list[float], first: float, momentum: float, *, corrects: bool) -> float:
    """Returns the weight by the rule of momentum, which is scaled with the rate when the rate changes."""
    weight, velocity, old = 0.0, 0.0, first
    for rate in rates:
        scale = rate / old if corrects else 1.0
        velocity = momentum * scale * velocity - rate
        weight, old = weight + velocity, rate
    return weight


def check_a_number_decays_by_epochs() -> None:
    for optimizer in sgd(learning_rate=0.5, momentum=0.9):
        schedule = callbacks.LearningRateScheduleCallback(0.4, 0.5, 1)
        weight, rates, logs = trained(optimizer, schedule, 3)
        close(rates, np.repeat([0.5, 0.4, 0.2], STEPS))
        close(logs, [0.5, 0.4, 0.2])
        close(weight, expected(rates, 0.5, 0.9, corrects=True))


def check_momentum_is_corrected_if_wanted() -> None:
    for optimizer in sgd(learning_rate=1.0, momentum=0.5):
        schedule = callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: 0.1**epoch, momentum_correction=False
        )
        weight, rates, _ = trained(optimizer, schedule, 2)
        close(weight, expected(rates, 1.0, 0.5, corrects=False))


def check_a_schedule_ends_at_its_epoch_and_changes_at_each_batch() -> None:
    for optimizer in sgd(learning_rate=1.0):
        schedule = callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: 1.0 + epoch, end_epoch=1, staircase=False
        )
        weight, rates, _ = trained(optimizer, schedule, 2)
        close(rates, [1.0, 4 / 3, 5 / 3] + [5 / 3] * STEPS)
        close(weight, -sum(rates))


def check_the_rate_warms_up_to_the_first_one() -> None:
    for optimizer in sgd(learning_rate=1.0, momentum=0.9):
        schedule = callbacks.LearningRateWarmupCallback(1.0, 2, verbose=1)
        weight, rates, logs = trained(optimizer, schedule, 3)
        batches = np.arange(1, 2 * STEPS + 1) / STEPS
        close(rates, [*((batches * (SIZE - 1) / 2 + 1) / SIZE), *[1.0] * STEPS])
        close(logs[-1], 1.0)
        close(weight, expected(rates, 1.0, 0.9, corrects=True))
    # Another `fit` has other steps, as in the next world of an elastic job. New ranks have a new callback.
    rates = trained(keras.optimizers.SGD(1.0), schedule, 2, 2 * STEPS)[1]
    close(rates, (np.arange(1, 4 * STEPS + 1) / (2 * STEPS) * (SIZE - 1) / 2 + 1) / SIZE)


def check_wrong_arguments_are_refused() -> None:
    raised(ValueError, lambda: callbacks.LearningRateScheduleCallback(None, 0.1))
    decays = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    schedule = callbacks.LearningRateScheduleCallback(0.1, 0.5)
    raised(ValueError, lambda: trained(keras.optimizers.SGD(decays), schedule, 1))


def check_a_frozen_model_needs_no_wrapped_optimizer() -> None:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, trainable=False)])
    kernel = model.layers[0].kernel
    kernel.assign([[float(RANK + 1)]])
    model.compile("sgd", "mse")
    broadcast = callbacks.BroadcastGlobalVariablesCallback(SIZE - 1)
    model.fit(np.ones((2, 1)), np.ones(2), verbose=0, callbacks=[broadcast])
    close(np.asarray(kernel), [[SIZE]])


def check_a_model_without_reductions_is_seen_by_each_callback() -> None:
    if SIZE == 1:
        return

    def fit(optimizer: Any, *calls: Any) -> None:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        for _ in range(2):  # the second time nothing is traced
            model.fit(np.ones((2, 1)), np.ones(2), verbose=0, callbacks=[*calls])

    begin = functools.partial(callbacks.BroadcastGlobalVariablesCallback, 0)
    for kind in callbacks.MetricAverageCallback, functools.partial(callbacks.LearningRateWarmupCallback, 0.1):
        for plain in sgd():
            text = str(raised(ValueError, lambda: fit(plain, kind())))  # noqa: B023
            assert "has reduced no gradient of model" in text, text
            assert f"pass allow_unwrapped=True to {type(kind()).__name__} if" in text, text
        for plain, another, wrapped in zip(sgd(), sgd(), map(hvd.DistributedOptimizer, sgd())):
            fit(plain, kind(allow_unwrapped=True))
            fit(another, begin(allow_unwrapped=True), kind())
            fit(wrapped, begin(), kind())


def check_only_ranks_of_a_set_warm_up_and_need_a_wrapped_optimizer() -> None:
    if SIZE == 1:
        return
    ours = rdmacoll.add_process_set([SIZE - 1])
    for plain in sgd(learning_rate=1.0):
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(plain, "mse")
        noted, warmup = Noted(), callbacks.LearningRateWarmupCallback(0.5, 2, process_set=ours)
        model.fit(np.ones((2, 1)), np.ones(2), 1, 2, 0, callbacks=[warmup, noted])
        close(noted.rates, [0.5] * 4)
    rdmacoll.remove_process_set(ours)


def check_the_best_model_is_written_to_a_path_that_is_set_later() -> None:
    if not IS_KERAS_3:
        return  # the class is that of TensorFlow's Keras
    with tempfile.TemporaryDirectory() as folder:
        for kind in (callbacks.BestModelCheckpoint, hvd_keras_callbacks().BestModelCheckpoint):
            best = kind(monitor="loss", mode="min")
            error = raised(ValueError, lambda: fitted(best))  # noqa: B023
            assert "filepath" in str(error)
            best = kind(monitor="loss", mode="min")
            best.filepath = f"{folder}/{kind.__name__}.keras"
            fitted(best)
            assert pathlib.Path(best.filepath).is_file()
        weights = callbacks.BestModelCheckpoint("loss", 0, True)
        weights.filepath = f"{folder}/one.weights.h5"
        fitted(weights)
        assert pathlib.Path(weights.filepath).is_file()


def hvd_keras_callbacks() -> Any:
    import rdmacoll.keras

    return rdmacoll.keras.callbacks


def fitted(callback: Any) -> None:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 1)), np.ones(2), verbose=0, callbacks=[callback])


run_all(globals())
