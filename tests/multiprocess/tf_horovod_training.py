"""Tests optimizers, tapes and callbacks with the arguments of Horovod. Each step is compared with its closed
form."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_common import close, raised, run_all

import rdmacoll.keras
import rdmacoll.tensorflow as hvd
import rdmacoll.tensorflow.keras
from rdmacoll.ops import Compression

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = np.mean(np.arange(SIZE))
NONE = Compression.none


def after_step(wrap: Any, **options: Any) -> float:
    """Returns a weight of 0 after one step of gradient descent with the gradient -RANK."""
    variable = keras.Variable(np.zeros(1, np.float32))
    optimizer = wrap(keras.optimizers.SGD(1.0), **options)
    optimizer.apply_gradients([(tf.constant([-float(RANK)]), variable)])
    return float(variable.numpy()[0])


def check_optimizers_take_horovods_arguments_in_its_order() -> None:
    sum_of_ranks = MEAN * SIZE
    wraps = {
        hvd.DistributedOptimizer: (None, False, "", "", NONE, False, 1, hvd.Sum, 1.0, False, 0, 2),
        rdmacoll.tensorflow.keras.DistributedOptimizer: (
            None,
            "",
            "",
            NONE,
            False,
            1.0,
            hvd.Sum,
            1,
            False,
            2,
        ),
        rdmacoll.keras.DistributedOptimizer: (None, "", "", NONE, False, 1.0, hvd.Sum, 0, []),
    }
    for wrap, positional in wraps.items():
        close(after_step(lambda one: wrap(one, *positional)), sum_of_ranks)  # noqa: B023
        close(after_step(wrap), MEAN)
        close(after_step(wrap, op=hvd.Max), 0.0)
        close(after_step(wrap, gradient_predivide_factor=4.0), MEAN)
        close(after_step(wrap, postscale_factor=3.0), 3 * MEAN)
        said = raised(TypeError, lambda: wrap(keras.optimizers.SGD(), compresion=NONE))  # noqa: B023
        assert "DistributedOptimizer and DistributedGradientTape have no argument 'compresion'" in str(said)
        for wrong in (
            {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
            {"gradient_predivide_factor": -1.0},
            {"op": 2},
            {"groups": "two"},
            {"groups": -1},
            {"groups": [3]},
            {"num_groups": 0.5},
        ):
            raised(ValueError, lambda: after_step(wrap, **wrong))  # noqa: B023


def check_tapes_take_horovods_arguments_in_its_order() -> None:
    def gradient(*positional: Any, **options: Any) -> Any:
        variable = tf.Variable([0.0])
        with tf.GradientTape() as tape:
            loss = variable * float(RANK)
        return hvd.DistributedGradientTape(tape, *positional, **options).gradient(loss, variable)

    close(gradient(), [MEAN])
    close(gradient("", "", NONE, False, hvd.Sum), [MEAN * SIZE])
    close(gradient("", "", Compression.fp16, False, hvd.Average, 2.0, 0, 1), [MEAN])
    raised(ValueError, lambda: gradient(op=hvd.Sum, gradient_predivide_factor=2.0))


def check_ranks_outside_of_a_set_keep_their_gradients() -> None:
    if SIZE == 1:
        return
    one = hvd.add_process_set([0])
    close(after_step(hvd.DistributedOptimizer, process_set=one), RANK)
    variable = tf.Variable([0.0])
    with tf.GradientTape() as tape:
        loss = variable * float(RANK)
    close(hvd.DistributedGradientTape(tape, process_set=one).gradient(loss, variable), [RANK])
    hvd.remove_process_set(one)


def check_gradients_of_local_sources_stay_this_ranks_own() -> None:
    layers = [keras.layers.Dense(1, use_bias=False) for _ in range(2)]
    for layer in layers:
        layer.build((None, 1))
    kernels = [layer.kernel.value if hasattr(layer.kernel, "value") else layer.kernel for layer in layers]
    x = tf.constant([[float(RANK + 1)]])
    mean = np.mean([rank + 1.0 for rank in range(SIZE)])

    def taped() -> tuple[Any, Any]:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(x * kernels[0] + x * kernels[1])
        return tape, loss

    def step(**options: Any) -> list[Any]:
        tape, loss = taped()
        return hvd.PartialDistributedGradientTape(tape, local_layers=layers[0], **options).gradient(
            loss, kernels
        )

    for call in (step, tf.function(step)):
        for found, wanted in zip(call(), ((RANK + 1) / SIZE, mean)):
            close(found, [[wanted]])
        close(call(scale_local_gradients=False)[0], [[RANK + 1]])
    tape, loss = taped()
    tape = hvd.DistributedGradientTape(tape)
    close(tape.gradient(loss, kernels)[0], [[mean]])
    tape.register_local_source(kernels[0])
    (own,), (shared,) = tape.get_local_and_global_gradients(loss, kernels)
    close(own[1], [[(RANK + 1) / SIZE]])
    close(shared[1], [[mean]])
    raised(ValueError, lambda: hvd.PartialDistributedGradientTape(taped()[0], local_layers=[3]))


def check_variables_of_one_rank_are_not_broadcast() -> None:
    callbacks = rdmacoll.tensorflow.keras.callbacks
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    shared, own = model.layers[0].kernel, model.layers[1].kernel
    for variable in (shared, own):
        variable.assign([[float(RANK + 1)]])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    rdmacoll.declare_local([own])
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0, "", [own])
    model.fit(
        np.ones((4, 1)), np.ones(4), verbose=0, callbacks=[broadcast, callbacks.MetricAverageCallback("")]
    )
    close(shared.numpy(), [[1.0]])
    close(own.numpy(), [[RANK + 1.0]])


class Halved(keras.optimizers.SGD):
    """An optimizer that Keras does not have."""


def check_a_loaded_model_trains_on_all_ranks() -> None:
    for module in (rdmacoll.keras, rdmacoll.tensorflow.keras):
        with tempfile.TemporaryDirectory() as folder:
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            model.compile(module.DistributedOptimizer(Halved(0.5)), "mse")
            model.save(f"{folder}/model.keras")
            loaded = module.load_model(f"{folder}/model.keras", [Halved], None, Compression.none)
        assert isinstance(loaded.optimizer, Halved)
        kernel = loaded.layers[0].kernel
        kernel.assign([[0.0]])
        loaded.optimizer.apply_gradients([(tf.constant([[-float(RANK)]]), kernel)])
        close(kernel.numpy(), [[MEAN / 2]])


def check_a_hook_takes_a_device() -> None:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=float(RANK))
        hook = hvd.BroadcastGlobalVariablesHook(SIZE - 1, "/cpu:0")
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            close(session.run(variable), SIZE - 1)


run_all(globals())
