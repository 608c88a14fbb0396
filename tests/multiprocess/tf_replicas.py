"""Tests that two replicas in each rank train like one process on the joined batch. The replicas are those of
`tf.distribute.MirroredStrategy` over two logical processors. The arguments are the folder of `tf_keras` and,
for all trainings instead of a few, `all`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
sys.path.append(sys.argv[1])
import numpy as np
import tensorflow as tf  # before Keras, which starts its devices

processors = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import keras  # noqa: E402
import tf_keras  # noqa: E402
from tf_common import equal_on_all_ranks, raised, run_all, value  # noqa: E402

import rdmacoll  # noqa: E402

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
REPLICAS = STRATEGY.num_replicas_in_sync
v1 = tf.compat.v1
BATCH, STEPS = 4, 3  # for each replica
PASSES = 2
NORM = 0.1  # less than the norms of the gradients
new, old, old_legacy = keras.optimizers, tf_keras.optimizers, tf_keras.optimizers.legacy


def some(cases: list[Any]) -> list[Any]:
    """Returns all cases with the argument `all`, otherwise the last case."""
    return cases if "all" in sys.argv else cases[-1:]


def in_all(cases: list[Any]) -> list[Any]:
    return cases if "all" in sys.argv else []


def dataset(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x = value(rank, (BATCH * REPLICAS * STEPS, 3), salt=3)
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def joined() -> tuple[np.ndarray, np.ndarray]:
    """Returns the data of all ranks, joined batch by batch."""
    size = BATCH * REPLICAS
    parts = [dataset(rank) for rank in range(SIZE)]
    x, y = (
        np.concatenate([part[i][s * size : (s + 1) * size] for s in range(STEPS) for part in parts])
        for i in (0, 1)
    )
    return x, y


def initial(rank: int) -> list[np.ndarray]:
    return [0.5 * value(rank, shape, salt=i) for i, shape in enumerate([(3, 4), (4,), (4, 1), (1,)])]


def network(library: Any, rank: int) -> Any:
    layers = [library.layers.Input((3,)), library.layers.Dense(4, activation="tanh"), library.layers.Dense(1)]
    model = library.Sequential(layers)
    model.set_weights(initial(rank))
    return model


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert equal_on_all_ranks(found)
    for mine, data_of_others in zip(found, wanted):
        np.testing.assert_allclose(mine, data_of_others, atol=2e-5, rtol=2e-4)
    assert max(float(np.abs(w - b).max()) for w, b in zip(wanted, initial(0))) > 1e-2


def fitted(library: Any, make: Callable[[], Any], *, is_alone: bool, **options: Any) -> list[np.ndarray]:
    with contextlib.nullcontext() if is_alone else STRATEGY.scope():
        model = network(library, 0 if is_alone else RANK)
        optimizer = make()
        if not is_alone:
            rdmacoll.DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse", **options)
    data, size = (joined(), SIZE) if is_alone else (dataset(RANK), 1)
    callbacks = [] if is_alone else [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(*data, BATCH * REPLICAS * size, epochs=1, verbose=0, shuffle=False, callbacks=callbacks)
    return [np.array(w) for w in model.get_weights()]


def fits(library: Any, make: Callable[[], Any], **options: Any) -> None:
    same(*(fitted(library, make, is_alone=is_alone, **options) for is_alone in (False, True)))


def check_fit_with_keras_3() -> None:
    fits(keras, lambda: new.SGD(0.5, global_clipnorm=NORM))
    if "all" in sys.argv:
        fits(keras, lambda: new.SGD(0.5, momentum=0.9))
        fits(keras, lambda: new.SGD(0.5), run_eagerly=True)
        fits(keras, lambda: new.LossScaleOptimizer(new.SGD(0.5, clipnorm=NORM), initial_scale=4.0))


def check_fit_with_keras_2() -> None:
    scaling = tf_keras.mixed_precision.LossScaleOptimizer
    for home in in_all([old, old_legacy]):
        fits(tf_keras, lambda home=home: home.SGD(0.5, momentum=0.9, global_clipnorm=NORM))
        fits(tf_keras, lambda home=home: home.SGD(0.5), run_eagerly=True)
        fits(tf_keras, lambda home=home: scaling(home.SGD(0.5), initial_scale=4.0))


def check_loss_scaling_around_a_wrapped_optimizer() -> None:
    def inside() -> Any:
        return new.LossScaleOptimizer(rdmacoll.DistributedOptimizer(new.SGD(0.5)), initial_scale=4.0)

    with STRATEGY.scope():
        model = network(keras, RANK)
        model.compile(inside(), "mse")
    callback = rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*dataset(RANK), BATCH * REPLICAS, verbose=0, shuffle=False, callbacks=[callback])
    wanted = fitted(keras, lambda: new.LossScaleOptimizer(new.SGD(0.5), initial_scale=4.0), is_alone=True)
    same([np.array(w) for w in model.get_weights()], wanted)


def looped(
    make: Callable[[], Any], *, is_alone: bool, wraps: str, is_function: bool = True, computes: str = ""
) -> list[np.ndarray]:
    """Trains in a user's loop. wraps: "optimizer", "tape" or both. computes: the optimizer's method that
    returns gradients."""
    scope = contextlib.nullcontext() if is_alone else STRATEGY.scope()
    with scope:
        weights = [tf.Variable(array) for array in initial(0 if is_alone else RANK)]
        optimizer = make()
        if not is_alone and "optimizer" in wraps:
            rdmacoll.DistributedOptimizer(optimizer)
        if hasattr(optimizer, "build"):
            optimizer.build(weights)
    if not is_alone:
        rdmacoll.broadcast_variables(weights)

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean((tf.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3] - y) ** 2)

    def step(x: Any, y: Any) -> None:
        tape = tf.GradientTape()
        if not is_alone and "tape" in wraps:
            rdmacoll.DistributedGradientTape(tape)
        with tape:
            loss = loss_of(x, y) / (1 if is_alone else REPLICAS)
        if computes == "minimize":
            optimizer.minimize(lambda: loss_of(x, y) / (1 if is_alone else REPLICAS), var_list=weights)
        elif computes:
            optimizer.apply_gradients(getattr(optimizer, computes)(loss, weights, tape=tape))
        else:
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    def call(x: Any, y: Any) -> None:
        if is_alone:
            step(x, y)
        else:
            halves = [tf.split(part, REPLICAS) for part in (x, y)]
            STRATEGY.run(step, [_for_each_replica(half) for half in halves])

    data, size = (joined(), SIZE) if is_alone else (dataset(RANK), 1)
    run = tf.function(call) if is_function else call
    for begin in range(0, len(data[0]), BATCH * REPLICAS * size):
        run(*(tf.constant(part[begin : begin + BATCH * REPLICAS * size]) for part in data))
    return [w.numpy() for w in weights]


def _for_each_replica(values: list[Any]) -> Any:
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )


def check_loops() -> None:
    makes = {
        "Keras 3": lambda: new.SGD(0.5),
        "Keras 2": lambda: old.SGD(0.5),
        "legacy": lambda: old_legacy.SGD(0.5),
        "v1": lambda: v1.train.GradientDescentOptimizer(0.5),
    }
    for library, make in list(makes.items())[: None if "all" in sys.argv else 2]:
        wanted = looped(make, is_alone=True, wraps="", is_function=False)
        for wraps in some(["tape", "optimizer and tape", "optimizer"]):
            computes = "minimize" if (library, wraps) == ("v1", "optimizer") else ""
            for is_function in some([False, True]):
                found = looped(make, is_alone=False, wraps=wraps, is_function=is_function, computes=computes)
                same(found, wanted)


def check_loops_that_compute_gradients() -> None:
    for make, name in in_all([(old.SGD, "compute_gradients"), (old_legacy.SGD, "_compute_gradients")]):
        wanted = looped(lambda make=make: make(0.5), is_alone=True, wraps="", computes=name)
        for wraps in some(["optimizer", "optimizer and tape"]):
            found = looped(lambda make=make: make(0.5), is_alone=False, wraps=wraps, computes=name)
            same(found, wanted)


def check_operations_of_replicas_do_not_mix() -> None:
    inputs = [np.float32([10.0 * rank + replica for replica in range(REPLICAS)]) for rank in range(SIZE)]
    mine = _for_each_replica(list(tf.constant(inputs[RANK])))

    def step(x: Any) -> tuple[Any, Any]:
        return rdmacoll.allreduce(x, op=rdmacoll.Sum), rdmacoll.allreduce(x, op=rdmacoll.Sum, name="loss")

    for call in (step, tf.function(step)):
        for found in STRATEGY.run(call, [mine]):
            local = [float(part) for part in STRATEGY.experimental_local_results(found)]
            assert local == np.sum(inputs, axis=0).tolist(), local

    @tf.function
    def several() -> tuple[Any, Any]:
        return STRATEGY.run(step, [mine])

    for _ in range(5):
        for found in several():
            local = [float(part) for part in STRATEGY.experimental_local_results(found)]
            assert local == np.sum(inputs, axis=0).tolist(), local


def passing(
    library: Any, make: Callable[[], Any], *, scales: bool = False, **options: Any
) -> list[np.ndarray]:
    """Trains with two passes to a step. Two batches of the ranks are one batch of the single process."""
    with STRATEGY.scope():
        model = network(library, RANK)
        optimizer = rdmacoll.DistributedOptimizer(
            make(), backward_passes_per_step=PASSES, average_aggregated_gradients=True
        )
        if scales:
            optimizer = library.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
        model.compile(optimizer, "mse", **options)
    callbacks = [rdmacoll.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    # The share of a rank in a batch of `joined` is cut into passes.
    model.fit(*dataset(RANK), BATCH * REPLICAS // PASSES, verbose=0, shuffle=False, callbacks=callbacks)
    return [np.array(w) for w in model.get_weights()]


def check_several_passes_make_a_step() -> None:
    scaling = tf_keras.mixed_precision.LossScaleOptimizer
    makes: list[tuple[Any, Callable[[], Any], dict[str, Any]]] = [
        (keras, lambda: new.Adam(0.05, global_clipnorm=NORM, weight_decay=0.01), {}),
        (tf_keras, lambda: old.Adam(0.05, global_clipnorm=NORM), {}),
        (tf_keras, lambda: old_legacy.Adam(0.05, clipnorm=NORM), {}),
    ]
    if "all" in sys.argv:
        makes += [(library, make, {"run_eagerly": True}) for library, make, _ in makes[:3]]
        makes += [
            (keras, lambda: new.LossScaleOptimizer(new.SGD(0.5, clipnorm=NORM), initial_scale=4.0), {}),
            (tf_keras, lambda: scaling(old.SGD(0.5), initial_scale=4.0), {}),
            (tf_keras, lambda: scaling(old_legacy.SGD(0.5), initial_scale=4.0), {}),
        ]
    for library, make, options in makes if "all" in sys.argv else makes[:2]:
        print(library.__name__, options, flush=True)
        same(passing(library, make, **options), fitted(library, make, is_alone=True))
    if "all" in sys.argv:
        found = passing(keras, lambda: new.SGD(0.5, clipnorm=NORM), scales=True)
        same(found, fitted(keras, lambda: new.SGD(0.5, clipnorm=NORM), is_alone=True))


def check_next_values_are_the_greatest_of_all_replicas() -> None:
    """In Keras 3 the gradients of some variables are their next values, as those of float8."""
    for aggregation, passes, is_scaled, taped in [
        ("none", 1, False, False),
        ("mean", 1, True, False),
        ("mean", 1, False, True),
        ("none", PASSES, True, False),
        ("mean", PASSES, False, False),
        ("mean", PASSES, False, True),
    ]:
        with STRATEGY.scope():
            shared, next_value = (
                keras.Variable(np.zeros(2, np.float32), aggregation=aggregation) for _ in range(2)
            )
            next_value.overwrite_with_gradient = True
            optimizer = new.SGD(1.0, gradient_accumulation_steps=None if passes == 1 else passes)
            if is_scaled:
                optimizer = new.LossScaleOptimizer(optimizer, initial_scale=4.0)
            optimizer = rdmacoll.DistributedOptimizer(optimizer)
            optimizer.build([shared, next_value])

        def step(number: Any, made: Any = (shared, next_value, optimizer, is_scaled, taped)) -> None:
            shared, next_value, optimizer, is_scaled, taped = made
            own = number + tf.cast(REPLICAS * RANK, tf.float32)
            own += tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((4.0 if is_scaled else 1.0) * shared.value + own * next_value.value)
            if taped:
                tape = rdmacoll.DistributedGradientTape(tape)
            found = tape.gradient(loss, [shared, next_value])
            optimizer.apply_gradients(zip(found, [shared, next_value]))

        run = tf.function(lambda number, step=step: STRATEGY.run(step, (number,)))
        for number in range(PASSES):
            run(tf.constant(10.0 * (PASSES - number)))
        first = 10.0 * (PASSES if passes == PASSES else 1)
        for one in STRATEGY.experimental_local_results(next_value.value):
            np.testing.assert_array_equal(one.numpy(), [first + REPLICAS * SIZE - 1] * 2)
        for one in STRATEGY.experimental_local_results(shared.value):
            np.testing.assert_allclose(one.numpy(), [-REPLICAS * PASSES / passes] * 2)


def check_passes_that_move_averages_are_refused() -> None:
    with STRATEGY.scope():
        variable = tf.Variable([1.0, 2.0])
        optimizer = new.SGD(0.5, gradient_accumulation_steps=2, use_ema=True)
        rdmacoll.DistributedOptimizer(optimizer).build([variable])

    def step() -> None:
        optimizer.apply_gradients([(tf.ones(2), variable)])

    for call in (step, tf.function(step)):
        text = str(raised(rdmacoll.ConfigError, lambda call=call: STRATEGY.run(call)))
        assert "steps=2 cannot be used with 2 replicas" in text, text
        assert "(MirroredStrategy)" in text, text
        assert "give each rank one replica" in text, text

    class Scaling(new.LossScaleOptimizer):  # type: ignore[misc]
        """An optimizer that may test whether gradients are finite before they are reduced."""

        def apply(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply(*args, **kwargs)

    with STRATEGY.scope():
        inner = new.SGD(0.5, gradient_accumulation_steps=2)
        scaled = rdmacoll.DistributedOptimizer(Scaling(inner))
        scaled.build([variable])
    text = str(
        raised(
            rdmacoll.ConfigError,
            lambda: STRATEGY.run(lambda: scaled.apply_gradients([(tf.ones(2), variable)])),
        )
    )
    assert "wrap the SGD instead of the Scaling around it" in text, text


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
