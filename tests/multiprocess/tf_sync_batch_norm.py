"""Tests batch normalization over ranks, in the Keras that `tf.keras` is: outputs and gradients are those of a
plain layer in one process that has the joined batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import equal_on_all_ranks, raised, run_all, value

import rdmacoll.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
keras = tf.keras
IS_KERAS_3 = hasattr(keras, "Variable")
ALL = range(SIZE)
# Rows, and the other dimensions, of each rank's batch; the axis of channels.
SHAPES = {(5,): 1, (3, 2, 4): 3, (4, 3, 2): 1}
TOLERANCES = {"float32": 1e-5, "float64": 1e-12, "mixed_float16": 1e-2, "mixed_bfloat16": 1e-2}
Arrays = dict[str, np.ndarray]


def rows_of(rank: int) -> int:
    return 3 + 2 * rank


def plain(**options: Any) -> Any:
    """Returns Keras's own layer. Keras 2's fused kernels are off, since their moving variance differs."""
    return keras.layers.BatchNormalization(**options, **({} if IS_KERAS_3 else {"fused": False}))


def batches(ranks: Any, shape: tuple[int, ...], rows: Callable[[int], int] = rows_of, **options: Any) -> Any:
    """Returns inputs and factors of the outputs, of the ranks' joined batches."""
    offset, scale = options.get("offset", 3.0), options.get("scale", 2.0)
    inputs = [
        value(rank, (rows(rank), *shape), "float64", salt=1) * (scale + rank) + offset for rank in ranks
    ]
    factors = [value(rank, (rows(rank), *shape), "float64", salt=2) for rank in ranks]
    return np.concatenate(inputs), np.concatenate(factors)


def results(
    layer: Any, data: Any, *, is_graph: bool = False, mask: Any = None, training: bool | None = True
) -> Arrays:
    """Returns output, gradients and statistics after one call with different weights for each channel."""
    inputs, factors = (tf.constant(part, layer.compute_dtype) for part in data)
    layer.build(inputs.shape)
    channels = int(layer.moving_mean.shape[0])
    for number, one in enumerate((layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)):
        one.assign(np.linspace(0.5, 1.5, channels) + number / 4)
    variables = [one.value if IS_KERAS_3 else one for one in (layer.gamma, layer.beta)]

    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            options = {} if mask is None else {"mask": tf.constant(mask)}
            outputs = layer(inputs, training=training, **options)
            loss = tf.reduce_sum(tf.cast(outputs * factors, tf.float32))
        return outputs, *tape.gradient(loss, [inputs, *variables])

    found = (tf.function(step) if is_graph else step)()
    moving = (layer.moving_mean, layer.moving_variance)
    names = ("outputs", "inputs", "gamma", "beta", "moving_mean", "moving_variance")
    values = [*found, *(tf.convert_to_tensor(one) for one in moving)]
    return {name: tf.cast(one, tf.float64).numpy() for name, one in zip(names, values)}


def summed(found: Arrays, process_set: Any = hvd.global_process_set) -> Arrays:
    """Returns the results with the gradients of weights summed over the ranks."""
    total = {
        name: hvd.allreduce(found[name], op=hvd.Sum, process_set=process_set) for name in ("gamma", "beta")
    }
    return {**found, **{name: one.numpy() for name, one in total.items()}}


def own_rows(found: Arrays, ranks: Any = ALL, rows: Callable[[int], int] = rows_of) -> Arrays:
    """Returns the results of one process, of which the rows are those of this rank."""
    begin = sum(rows(rank) for rank in ranks if rank < RANK)
    part = slice(begin, begin + rows(RANK))
    return {**found, "outputs": found["outputs"][part], "inputs": found["inputs"][part]}


def agree(found: Arrays, wanted: Arrays, tolerance: float) -> None:
    for name, one in wanted.items():
        scale = max(1.0, np.abs(one).max(initial=0.0))
        np.testing.assert_allclose(found[name] / scale, one / scale, tolerance, tolerance, err_msg=name)


def check_unequal_batches_are_normalized_as_the_joined_one() -> None:
    for policy, tolerance in TOLERANCES.items():
        for shape, axis in SHAPES.items():
            options = {"axis": axis, "momentum": 0.75, "dtype": keras.mixed_precision.Policy(policy)}
            if IS_KERAS_3:
                options["dtype"] = policy
            wanted = own_rows(results(plain(**options), batches(ALL, shape)))
            for is_graph in (False, True):
                layer = hvd.SyncBatchNormalization(**options)
                found = summed(results(layer, batches([RANK], shape), is_graph=is_graph))
                agree(found, wanted, tolerance)
                assert equal_on_all_ranks([found["moving_mean"], found["moving_variance"]])


def check_statistics_of_one_rank_are_others() -> None:
    data = batches([RANK], (5,))
    found, alone = results(hvd.SyncBatchNormalization(), data), results(plain(), data)
    difference = np.abs(found["outputs"] - alone["outputs"]).max()
    assert (difference > 1e-2) == (SIZE > 1)


def check_nothing_is_exchanged_outside_of_training() -> None:
    if RANK == 0:  # the others would be waited for
        data = batches([0], (5,))
        for is_frozen, training in ((False, False), (False, None), (True, True)):
            layers = [hvd.SyncBatchNormalization(), plain()]
            for layer in layers:
                layer.trainable = not is_frozen
            found, wanted = (results(layer, data, training=training) for layer in layers)
            agree(found, wanted, 1e-6)
    hvd.barrier()


def check_a_rank_may_have_no_rows() -> None:
    def rows(rank: int) -> int:
        return 0 if rank == SIZE - 1 else 4

    if SIZE == 1:
        return
    wanted = own_rows(results(plain(), batches(ALL, (5,), rows)), rows=rows)
    agree(summed(results(hvd.SyncBatchNormalization(), batches([RANK], (5,), rows))), wanted, 1e-5)


def check_batches_without_rows_leave_the_moving_statistics() -> None:
    layer = hvd.SyncBatchNormalization(momentum=0.5)
    before = results(layer, batches([RANK], (5,)))
    layer(tf.zeros((0, 5)), training=True)
    for name in ("moving_mean", "moving_variance"):
        after = tf.convert_to_tensor(getattr(layer, name)).numpy()
        np.testing.assert_allclose(after, before[name], 1e-6, 1e-6, err_msg=name)


def check_masked_positions_do_not_count() -> None:
    def masks(ranks: Any) -> np.ndarray:
        return np.concatenate([value(rank, (rows_of(rank), 6), "bool", salt=3) for rank in ranks])

    data = batches([RANK], (6, 4))
    data[0][~masks([RANK])] = np.inf  # must not be looked at
    joined = batches(ALL, (6, 4))
    wanted = own_rows(results(plain(), joined, mask=masks(ALL)))
    found = summed(results(hvd.SyncBatchNormalization(), batches([RANK], (6, 4)), mask=masks([RANK])))
    agree(found, wanted, 1e-5)
    moving = results(hvd.SyncBatchNormalization(), data, mask=masks([RANK]))["moving_mean"]
    agree({"moving_mean": moving}, {"moving_mean": wanted["moving_mean"]}, 1e-5)


def check_values_far_from_zero_keep_their_variance() -> None:
    for policy, offset, tolerance in (("float32", 1e4, 1e-3), ("mixed_float16", 500.0, 1e-2)):
        data = batches(ALL, (5,), offset=offset)
        rounded = data[0].astype(np.float16 if "16" in policy else np.float32).astype(np.float64)
        own = slice(sum(map(rows_of, range(RANK))), sum(map(rows_of, range(RANK + 1))))
        layer = hvd.SyncBatchNormalization(
            momentum=0.0, dtype=policy if IS_KERAS_3 else keras.mixed_precision.Policy(policy)
        )
        found = results(layer, [part[own] for part in data])
        np.testing.assert_allclose(found["moving_variance"], rounded.var(axis=0), tolerance)
        np.testing.assert_allclose(found["moving_mean"], rounded.mean(axis=0), 1e-6)


def check_ranks_of_a_process_set_join_their_batches() -> None:
    ranks = [rank for rank in ALL if rank != 1]
    one = hvd.add_process_set(ranks) if SIZE > 1 else hvd.global_process_set
    for given in (one, ranks) if SIZE > 1 else (one,):
        found = results(hvd.SyncBatchNormalization(process_set=given), batches([RANK], (5,)))
        if RANK in ranks:
            agree(summed(found, one), own_rows(results(plain(), batches(ranks, (5,))), ranks), 1e-5)
        else:
            agree(found, results(plain(), batches([RANK], (5,))), 1e-6)
    if SIZE > 1:
        hvd.remove_process_set(one)
        layer = hvd.SyncBatchNormalization(process_set=ranks)
        error = raised(ValueError, lambda: results(layer, batches([RANK], (5,))))
        assert "add_process_set" in str(error)


def network(make: Callable[..., Any]) -> Any:
    layers = [keras.layers.Input((6, 6, 1))]
    for _ in range(2):
        layers += [keras.layers.Conv2D(4, 3, use_bias=False), make(momentum=0.5)]
        layers += [keras.layers.Activation("tanh")]
    inputs = outputs = layers[0]
    for layer in layers[1:]:
        outputs = layer(outputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(outputs)))


def check_a_model_trains_as_in_one_process() -> None:
    keras.utils.set_random_seed(5)
    models = [network(hvd.SyncBatchNormalization), network(plain)]
    models[1].set_weights(models[0].get_weights())
    batch, steps = 4, 3
    parts = [value(rank, (steps, batch, 6, 6, 1), salt=4) * (1 + rank) + rank for rank in ALL]
    joined = np.concatenate(parts, axis=1)

    def fit(model: Any, optimizer: Any, inputs: np.ndarray) -> list[np.ndarray]:
        model.compile(optimizer, "mse")
        flat = inputs.reshape(-1, *inputs.shape[2:])
        targets = np.sin(flat.sum(axis=(1, 2, 3)))
        model.fit(flat, targets, batch_size=inputs.shape[1], epochs=2, shuffle=False, verbose=0)
        return [np.array(one) for one in model.get_weights()]

    before = [np.array(one) for one in models[1].get_weights()]
    found = fit(models[0], hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), parts[RANK])
    wanted = fit(models[1], keras.optimizers.SGD(0.05, momentum=0.9), joined)
    assert equal_on_all_ranks(found)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, 2e-4, 2e-4)
    assert max(np.abs(one - other).max() for one, other in zip(wanted, before)) > 0.05


def check_saved_and_cloned_models_have_such_layers() -> None:
    def make(**options: Any) -> Any:
        return hvd.SyncBatchNormalization(process_set=[0], **options)

    model = network(make)
    data = value(0, (3, 6, 6, 1))
    objects = {"SyncBatchNormalization": hvd.SyncBatchNormalization}
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras", custom_objects=objects)
    np.testing.assert_allclose(loaded.predict(data, verbose=0), model.predict(data, verbose=0), 1e-6)
    for one in (loaded, keras.models.clone_model(model)):
        layers = [layer for layer in one.layers if isinstance(layer, hvd.SyncBatchNormalization)]
        assert [list(layer.process_set) for layer in layers] == [[0], [0]]
        assert len({layer.name for layer in layers}) == 2


def check_fused_kernels_are_refused() -> None:
    for fused in (True, None):
        raised(ValueError, lambda fused=fused: hvd.SyncBatchNormalization(fused))
    assert hvd.SyncBatchNormalization(False).epsilon == plain().epsilon


run_all(globals())
