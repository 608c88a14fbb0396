"""Tests the callbacks on real ranks, with every Keras. The first argument is 3, a folder with `tf_keras`, or
2 for TensorFlow's Keras. The names of checks may follow. Without names, all checks run.

Rank 0 also trains one process on the joined batches, for comparison. The tolerance allows rounding. Ranks
that begin with different weights differ by much more.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tf_callback_passes import (  # noqa: F401
    check_half_filled_sums_come_from_the_root_alone,
    check_half_filled_sums_stay_with_their_rank,
)
from tf_callback_trainings import (
    BATCH,
    IS_KERAS_3,
    STEPS,
    Gan,
    Taped,
    close,
    dataset,
    fit,
    fit_alone,
    keras,
    kinds,
    loaded,
    network,
    saved,
    state_of,
    state_variables,
    ways,
    weights_of,
)
from tf_common import SEED, equal_on_all_ranks, raised, run_all

import rdmacoll
from rdmacoll.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
keras.utils.set_random_seed(SEED + RANK)


def check_a_model_that_is_never_built_trains_as_in_one_process() -> None:
    gan = Gan(3 + RANK, 0.01 * (1 + RANK), rdmacoll.DistributedOptimizer)
    gan.compile()
    fit(gan, BroadcastGlobalVariablesCallback(SIZE - 1))
    found = [array for one in (gan.generator, gan.others["discriminator"][0]) for array in weights_of(one)]
    assert equal_on_all_ranks([*found, gan.temperature.numpy()])
    assert equal_on_all_ranks([array for one in gan.optimizers_by_name.values() for array in state_of(one)])
    alone = Gan(3 + SIZE - 1, 0.01 * SIZE, lambda optimizer: optimizer)
    alone.compile()
    fit_alone(alone)
    networks = (alone.generator, alone.others["discriminator"][0])
    close(found, [array for one in networks for array in weights_of(one)])


class Restore(keras.callbacks.Callback):
    """Sets weights on rank 0 alone, as BackupAndRestore does."""

    def on_train_begin(self, logs: Any = None) -> None:
        if RANK == 0:
            self.model.set_weights([np.full_like(one, 0.25) for one in self.model.get_weights()])


def check_a_callback_behind_ours_restores_on_one_rank_alone() -> None:
    for callbacks in (
        [BroadcastGlobalVariablesCallback(0), Restore()],
        [Restore(), BroadcastGlobalVariablesCallback(0)],
    ):
        model, alone = network(), network()
        model.compile(rdmacoll.DistributedOptimizer(kinds()[-1](0.01)), "mse")
        fit(model, *callbacks)
        alone.compile(kinds()[-1](0.01), "mse")
        alone.set_weights([np.full_like(one, 0.25) for one in alone.get_weights()])
        fit_alone(alone)
        close(weights_of(model), weights_of(alone))
        assert equal_on_all_ranks(weights_of(model))


def check_ranks_that_begin_at_different_epochs_are_told() -> None:
    model = network()
    model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    for first, answers in ((1, "begins at epoch 1 on rank 0 and "), (4, "has no epoch left on rank 0 and ")):
        options = {"initial_epoch": first if RANK == 0 else 0, "epochs": 4}
        call = lambda options=options: fit(model, BroadcastGlobalVariablesCallback(0), **options)  # noqa: E731
        text = str(raised(rdmacoll.ConfigError, call))
        others = "rank 1" if SIZE == 2 else "ranks 1, 2"
        assert f"fit {answers}begins at epoch 0 on {others}: " in text, text
        assert "initial_epoch" in text
    history = fit(model, BroadcastGlobalVariablesCallback(0), initial_epoch=2, epochs=4)
    assert history.epoch == [2, 3]


def check_rank_0_alone_loads_a_training() -> None:
    for kind, way in ways():
        with tempfile.TemporaryDirectory() as folder:
            path = saved(kind, pathlib.Path(folder), way)
            if RANK == 0:
                model, alone = loaded(kind, path, way), loaded(kind, path, way)
                rdmacoll.DistributedOptimizer(model.optimizer)
            else:
                model = network()
                model.compile(rdmacoll.DistributedOptimizer(kind(0.5)), "mse")
            fit(model, BroadcastGlobalVariablesCallback(0))
            assert equal_on_all_ranks(weights_of(model)), (kind, way)
            assert int(model.optimizer.iterations.numpy()) == 2 * STEPS, (kind, way)
            rate = float(model.optimizer.learning_rate.numpy())
            assert abs(rate - 0.02) < 1e-6, (kind, way, rate)
            if RANK == 0:
                fit_alone(alone)
                close(weights_of(model), weights_of(alone))


def check_loss_scaling_of_one_rank_goes_on_on_all() -> None:
    policy = keras.mixed_precision
    set_policy = policy.set_dtype_policy if IS_KERAS_3 else policy.set_global_policy
    for kind in kinds():
        set_policy("mixed_float16")
        try:
            model = network()
            model.compile(kind(0.01), "mse")
            if RANK == 0:  # some steps before the others
                fit(model, data=dataset(7))
            model.compile(rdmacoll.DistributedOptimizer(model.optimizer), "mse")
            fit(model, BroadcastGlobalVariablesCallback(0))
        finally:
            set_policy("float32")
        assert equal_on_all_ranks(weights_of(model)), kind
        assert equal_on_all_ranks(state_of(model.optimizer)), kind
        # If the gradients of a rank overflow, all ranks skip the step and halve the scale. Keras 2 counts a
        # skipped step among its iterations.
        scale = model.optimizer.dynamic_scale if IS_KERAS_3 else model.optimizer.loss_scale
        left_out = round(np.log2(2.0**15 / float(np.asarray(scale))))
        made = int(model.optimizer.iterations.numpy())
        assert left_out < STEPS, (kind, left_out)
        assert made == 2 * STEPS - (left_out if IS_KERAS_3 else 0), (kind, left_out, made)


def check_a_model_without_reductions_is_an_error() -> None:
    for kind in kinds():
        model = network(name="lonely")
        model.compile(kind(0.01), "mse")
        text = str(
            raised(rdmacoll.ConfigError, lambda model=model: fit(model, BroadcastGlobalVariablesCallback(0)))
        )
        for word in (
            "'lonely'",
            "(Adam)",
            "rdmacoll.DistributedOptimizer(model.optimizer)",
            "allow_unwrapped=True",
        ):
            assert word in text, text
        fit(model, BroadcastGlobalVariablesCallback(0, allow_unwrapped=True))
        # The model is compiled with a wrapped optimizer, then with a plain one.
        model = network()
        model.compile(rdmacoll.DistributedOptimizer(kind(0.01)), "mse")
        for _ in range(2):  # the second time nothing is traced
            fit(model, BroadcastGlobalVariablesCallback(0))
        model.compile(kind(0.01), "mse")
        raised(rdmacoll.ConfigError, lambda model=model: fit(model, BroadcastGlobalVariablesCallback(0)))


def check_an_optimizer_beside_wrapped_ones_is_an_error() -> None:
    optimizers: list[Any] = []

    def wrap_one(optimizer: Any) -> Any:
        optimizers.append(optimizer)
        return rdmacoll.DistributedOptimizer(optimizer) if len(optimizers) == 1 else optimizer

    gan = Gan(3, 0.01, wrap_one)
    gan.compile()
    text = str(raised(rdmacoll.ConfigError, lambda: fit(gan, BroadcastGlobalVariablesCallback(0))))
    for word in ("the Adam at model/", "/g is not wrapped", "/kernel", "allow_unwrapped=True"):
        assert word in text, text
    fit(gan, BroadcastGlobalVariablesCallback(0, allow_unwrapped=True))
    # The training is traced already.
    rdmacoll.DistributedOptimizer(optimizers[1])
    text = str(raised(rdmacoll.ConfigError, lambda: fit(gan, BroadcastGlobalVariablesCallback(0))))
    assert "was wrapped after Keras had traced the training with the plain one. Call model.compile" in text
    gan.compile()
    fit(gan, BroadcastGlobalVariablesCallback(0))
    assert equal_on_all_ranks([array for one in optimizers for array in state_of(one)])


def check_a_training_without_the_wrapped_optimizer_is_an_error() -> None:
    model = network()
    model.compile(kinds()[-1](0.01), "mse")
    fit(model)
    first = model.train_function  # it is traced with the plain one
    model.make_train_function = lambda force=False: first  # a program's own, which makes no second one
    model.optimizer = rdmacoll.DistributedOptimizer(kinds()[-1](0.01))
    text = str(raised(rdmacoll.MismatchError, lambda: fit(model, BroadcastGlobalVariablesCallback(0))))
    assert "no gradient of it was reduced" in text, text
    assert "and then model.compile, or pass allow_unwrapped=True" in text


def check_a_model_that_is_traced_before_its_optimizer_is_wrapped_is_traced_again() -> None:
    for kind in kinds():
        model = network()
        model.compile(kind(0.01), "mse")
        fit(model)
        model.optimizer = rdmacoll.DistributedOptimizer(kind(0.01))
        fit(model, BroadcastGlobalVariablesCallback(0))
        assert equal_on_all_ranks(weights_of(model))


def check_a_tape_with_a_plain_optimizer_is_legal() -> None:
    for kind in kinds():
        model = Taped()
        model.compile(kind(0.01))
        for _ in range(2):
            fit(model, BroadcastGlobalVariablesCallback(0))
        assert equal_on_all_ranks(weights_of(model))


def check_an_optimizer_beside_the_model_goes_on_from_one_rank() -> None:
    for momentum in (0.0, 0.5):
        model, alone = network(), network()
        outside, plain = (keras.optimizers.SGD(0.05, momentum=0.9) for _ in range(2))
        rdmacoll.DistributedOptimizer(outside)

        class Stepped(keras.Model):
            """A model whose optimizer is not an attribute."""

            def __init__(self, trained: Any, optimizer: Any) -> None:
                super().__init__()
                self.trained = trained
                self.step = lambda pairs: optimizer.apply_gradients(pairs)

            def train_step(self, data: Any) -> dict[str, Any]:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self.trained(data[0]) - data[1]) ** 2)
                variables = self.trained.trainable_variables
                self.step(zip(tape.gradient(loss, variables), variables))
                return {"loss": loss}

        for one, optimizer in ((model, outside), (alone, plain)):
            one.set_weights([np.full_like(w, 0.1) for w in one.get_weights()])
            if RANK == 0:
                optimizer.build(one.trainable_variables)
                slots = [slot for slot in state_variables(optimizer) if len(slot.shape) > 0]
                assert len(slots) == 4
                for slot in slots:
                    slot.assign(tf.fill(slot.shape, momentum))
        steps = [Stepped(model, outside), Stepped(alone, plain)]
        for one in steps:
            one.compile()
        fit(steps[0], BroadcastGlobalVariablesCallback(0))
        assert equal_on_all_ranks(weights_of(model))
        if RANK == 0:
            fit_alone(steps[1])
            close(weights_of(model), weights_of(alone))


def check_a_rank_with_a_plain_optimizer_is_told_before_it_trains() -> None:
    model = network()
    optimizer = keras.optimizers.SGD(0.01)
    others = keras.optimizers.SGD(0.01)
    rdmacoll.DistributedOptimizer(optimizer if RANK == 0 else others)
    model.compile(optimizer, "mse")
    text = str(raised(rdmacoll.MismatchError, lambda: fit(model, BroadcastGlobalVariablesCallback(0))))
    assert "different wrapped optimizers: DistributedOptimizer_" in text, text
    assert " on rank 0 and none on rank" in text
    assert int(optimizer.iterations.numpy()) == 0


def check_several_passes_are_reduced_later() -> None:
    for is_eager in (False, True):
        model = network()
        optimizer = rdmacoll.DistributedOptimizer(kinds()[-1](0.01), backward_passes_per_step=3)
        model.compile(optimizer, "mse", run_eagerly=is_eager)
        fit(model, BroadcastGlobalVariablesCallback(0))
        assert equal_on_all_ranks(weights_of(model))


def check_what_the_first_batch_makes_follows() -> None:
    class Late(keras.Model):
        """A model that Keras 2 builds in the first batch."""

        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.head(x)

    for kind in kinds():
        model, optimizer = Late(), rdmacoll.DistributedOptimizer(kind(0.01))
        model.compile(optimizer, "mse")
        fit(model, BroadcastGlobalVariablesCallback(SIZE - 1))
        assert equal_on_all_ranks(weights_of(model))
        assert equal_on_all_ranks(state_of(optimizer))


def check_a_model_that_one_rank_alone_has_built_is_named() -> None:
    if IS_KERAS_3:  # Keras 3 builds models before `fit` begins
        return
    model = keras.Sequential([keras.layers.Dense(2, name="early"), keras.layers.Dense(1)], name="built")
    if RANK == 0:
        model.build((None, 3))
    model.compile(rdmacoll.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    text = str(raised(rdmacoll.MismatchError, lambda: fit(model, BroadcastGlobalVariablesCallback(0))))
    assert (
        "variable early/kernel:0 (model: model/0) is float32 (3, 2) on rank 0 and missing on rank" in text
    ), text
    assert "model.build(input_shape)" in text


def check_a_learning_rate_of_one_rank_is_that_of_all() -> None:
    for kind in kinds():
        model, optimizer = network(), rdmacoll.DistributedOptimizer(kind(0.01 * (1 + RANK)))
        model.compile(optimizer, "mse")
        fit(model, BroadcastGlobalVariablesCallback(SIZE - 1))
        assert abs(float(optimizer.learning_rate.numpy()) - 0.01 * SIZE) < 1e-6
        assert equal_on_all_ranks(weights_of(model))


def check_hyperparameters_that_no_broadcast_can_send_are_named() -> None:
    schedules = keras.optimizers.schedules
    for kind, name, options in (
        (kinds()[0], "beta_1 of Adam (optimizer) is 0.8 on rank 0 and 0.9 on rank", {"beta_1": 0.8}),
        (
            kinds()[-1],
            "learning_rate of Adam (optimizer) is {",
            {"learning_rate": schedules.ExponentialDecay(0.1, 2, 0.5)},
        ),
    ):
        model = network()
        model.compile(rdmacoll.DistributedOptimizer(kind(**(options if RANK == 0 else {}))), "mse")
        call = lambda model=model: fit(model, BroadcastGlobalVariablesCallback(0))  # noqa: E731
        text = str(raised(rdmacoll.MismatchError, call))
        assert name in text, text


def check_steps_per_execution_and_one_callback_alone() -> None:
    model = network()
    model.compile(rdmacoll.DistributedOptimizer(kinds()[-1](0.01)), "mse", steps_per_execution=2)
    callback = BroadcastGlobalVariablesCallback(0)
    # Without a list Keras 3 calls `on_train_batch_end` from another thread.
    model.fit(*dataset(RANK), batch_size=BATCH, verbose=0, callbacks=callback, validation_data=dataset(RANK))
    assert equal_on_all_ranks(weights_of(model))
    if not IS_KERAS_3:  # Keras 3 does not tune the number
        model.compile(rdmacoll.DistributedOptimizer(kinds()[-1](0.01)), "mse", steps_per_execution="auto")
        text = str(raised(rdmacoll.ConfigError, lambda: fit(model, BroadcastGlobalVariablesCallback(0))))
        assert f'steps_per_execution="auto" on ranks {", ".join(map(str, range(SIZE)))}: ' in text, text


def check_a_process_set_trains_for_itself() -> None:
    if SIZE < 3:
        return
    ours = rdmacoll.add_process_set([1, 2])
    model = network()
    initial = weights_of(model)
    optimizer = kinds()[-1](0.01)
    if RANK > 0:
        rdmacoll.DistributedOptimizer(optimizer, process_set=ours)
    model.compile(optimizer, "mse")
    metric = MetricAverageCallback(process_set=ours)
    text = str(raised(rdmacoll.ConfigError, lambda: BroadcastGlobalVariablesCallback(0, process_set=ours)))
    assert "root_rank=0 is not in ProcessSet([1, 2])" in text
    history = fit(model, BroadcastGlobalVariablesCallback(2, process_set=ours), metric, epochs=2)
    losses = rdmacoll.engine.allgather(np.float64([history.history["loss"][-1]]))
    kernels = rdmacoll.engine.allgather(np.array(model.get_weights()[0])[None])
    assert losses[1] == losses[2] != losses[0]
    assert np.array_equal(kernels[1], kernels[2])
    assert not np.array_equal(kernels[0], kernels[1])
    assert not np.array_equal(initial[0], model.get_weights()[0])
    rdmacoll.remove_process_set(ours)


def check_metrics_are_matched_by_name() -> None:
    callback = MetricAverageCallback()
    counters = (3, 11) if RANK == 0 else (0, 1)
    names = [f"auc_{number}" if number else "auc" for number in counters]
    logs: dict[str, Any] = {name: 10.0 * position + RANK for position, name in enumerate(names)}
    logs = dict(sorted(logs.items()))  # as Keras 3 has them
    logs.update({"loss": np.float32(RANK), "list": [1, 2], "note": "text", "best": None})
    logs.update({("rare" if RANK == 0 else "other"): 5.0 + RANK, "f1": np.array([RANK, 1.0], np.float32)})
    callback.on_epoch_end(0, logs)
    mean = (SIZE - 1) / 2
    assert [*(logs[name] for name in names), *logs["f1"].tolist()] == [mean, 10.0 + mean, mean, 1.0]
    assert [logs[name] for name in ("loss", "list", "note", "best")] == [mean, [1, 2], "text", None]
    assert logs["rare" if RANK == 0 else "other"] == 5.0 + RANK
    empty: dict[str, Any] = {} if RANK == 0 else {"loss": 1.5}
    callback.on_epoch_end(1, empty)
    assert empty == ({} if RANK == 0 else {"loss": 1.5})


if __name__ == "__main__":
    chosen = sys.argv[2:]
    run_all({name: one for name, one in globals().items() if not chosen or name in chosen})
    rdmacoll.shutdown()
