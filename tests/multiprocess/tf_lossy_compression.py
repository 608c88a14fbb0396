"""Tests compressors that keep residuals. A simulation in numpy has the messages and residuals of all
ranks."""

from __future__ import annotations

import math
import sys
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tf_common import close, equal_on_all_ranks, raised, run_all, value

import rdmacoll
import rdmacoll.keras as hvd
from rdmacoll.optimizer.residuals import residual_of

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
Compression = rdmacoll.Compression
RATIO, STEPS, SHAPE = 0.3, 4, (3, 5)
DIGITS_BAND = 0.03  # the accepted loss of accuracy


def topk() -> Any:
    return Compression.topk(RATIO)


def onebit() -> Any:
    return Compression.onebit


KINDS: dict[str, Any] = {"topk": topk, "onebit": onebit}


def sent(kind: str, vector: np.ndarray) -> np.ndarray:
    """Returns what others learn of a vector."""
    result = np.zeros_like(vector)
    if kind == "topk":
        places = np.argsort(-np.abs(vector))[: math.ceil(RATIO * vector.size)]
        result[places] = vector[places]
    else:
        for members in (vector >= 0, vector < 0):
            result[members] = vector[members].sum() / max(1, members.sum())
    return result


class Simulated:
    """All ranks' residuals of one variable."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.residuals = [np.zeros(math.prod(SHAPE)) for _ in range(SIZE)]

    def step(self, gradients: list[np.ndarray]) -> np.ndarray:
        """Returns the sum of the messages, and keeps the rest."""
        vectors = [one.ravel() + rest for one, rest in zip(gradients, self.residuals)]
        messages = [sent(self.kind, vector) for vector in vectors]
        self.residuals = [vector - message for vector, message in zip(vectors, messages)]
        return sum(messages).reshape(SHAPE)


def gradient_of(rank: int, step: int) -> np.ndarray:
    return value(rank, SHAPE, "float64", salt=10 + step).astype(np.float32)


def gradients_of(step: int) -> list[np.ndarray]:
    return [gradient_of(rank, step).astype(np.float64) for rank in range(SIZE)]


def taped(variable: Any, step: Any, **options: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(variable)
        loss = tf.reduce_sum(variable * step)
    return rdmacoll.DistributedGradientTape(tape, **options).gradient(loss, variable)


def check_sums_and_residuals_are_those_of_the_simulation() -> None:
    for kind, make in KINDS.items():
        for is_graph in (False, True):
            variable, simulated = tf.Variable(tf.zeros(SHAPE)), Simulated(kind)

            def reduced(gradient: Any) -> Any:
                return taped(variable, gradient, compression=make(), op=rdmacoll.Sum)  # noqa: B023

            call = tf.function(reduced) if is_graph else reduced
            for step in range(STEPS):
                found = call(tf.constant(gradient_of(RANK, step))).numpy()
                close(found, simulated.step(gradients_of(step)))
                close(residual_of(variable), simulated.residuals[RANK])
                assert equal_on_all_ranks([found])


def check_factors_and_averages_scale_the_sum() -> None:
    for kind, make in KINDS.items():
        variable, simulated = tf.Variable(tf.zeros(SHAPE)), Simulated(kind)
        options = {"compression": make(), "prescale_factor": 2.0, "postscale_factor": 0.25}
        for step in range(2):
            found = taped(variable, tf.constant(gradient_of(RANK, step)), **options)
            total = simulated.step([2 * one for one in gradients_of(step)])
            close(found, total / 4 / SIZE)


def check_optimizers_reduce_the_sums_of_several_passes() -> None:
    for kind, make in KINDS.items():
        variable, simulated = keras.Variable(np.zeros(SHAPE, np.float32)), Simulated(kind)
        optimizer = rdmacoll.DistributedOptimizer(
            keras.optimizers.SGD(1.0), compression=make(), backward_passes_per_step=2
        )
        wanted = np.zeros(SHAPE)
        for step in range(0, STEPS, 2):
            for one in (step, step + 1):
                optimizer.apply_gradients([(tf.constant(gradient_of(RANK, one)), variable)])
            both = [sum(pair) for pair in zip(gradients_of(step), gradients_of(step + 1))]
            wanted -= simulated.step(both) / SIZE
            close(variable.numpy(), wanted)
        assert equal_on_all_ranks([variable.numpy()])


def check_a_session_trains_so() -> None:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=tf.zeros(SHAPE))
        factor = tf.compat.v1.placeholder(tf.float32, SHAPE)
        optimizer = rdmacoll.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), compression=Compression.topk(RATIO)
        )
        step_of = optimizer.minimize(tf.reduce_sum(variable * factor))
        simulated, wanted = Simulated("topk"), np.zeros(SHAPE)
        with tf.compat.v1.Session() as session:
            session.run(
                [tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()]
            )
            for step in range(STEPS):
                session.run(step_of, {factor: gradient_of(RANK, step)})
                wanted -= simulated.step(gradients_of(step)) / SIZE
            close(session.run(variable), wanted)


def check_an_overflow_is_seen_by_all_and_kept_by_none() -> None:
    for make in KINDS.values():
        variable = tf.Variable(tf.zeros(SHAPE))
        taped(variable, tf.constant(gradient_of(RANK, 0)), compression=make())
        before = residual_of(variable).numpy()
        wrong = gradient_of(RANK, 1)
        if RANK == SIZE - 1:
            wrong[0, 0] = np.inf
        found = taped(variable, tf.constant(wrong), compression=make()).numpy()
        assert not np.isfinite(found).all()
        assert np.array_equal(residual_of(variable).numpy(), before)  # also on ranks without the overflow


def check_rows_of_slices_travel_whole() -> None:
    variable = tf.Variable(tf.zeros(SHAPE))

    def reduced() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(variable, [RANK % 3]) * float(RANK + 1))
        compression = Compression.topk(0.01)
        return rdmacoll.DistributedGradientTape(tape, compression=compression, op=rdmacoll.Sum).gradient(
            loss, variable
        )

    wanted = np.zeros(SHAPE)
    for rank in range(SIZE):
        wanted[rank % 3] += rank + 1
    close(tf.convert_to_tensor(reduced()), wanted)
    assert residual_of(variable) is None


def network() -> Any:
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])


def trained(model: Any, steps: range) -> list[np.ndarray]:
    for step in steps:
        inputs = value(RANK, (8, 4), salt=30 + step)
        model.train_on_batch(inputs, np.sin(inputs.sum(axis=1)))
    return [np.array(one) for one in model.get_weights()]


def compiled(kind: str) -> Any:
    keras.utils.set_random_seed(3)
    model = network()
    model.compile(
        rdmacoll.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=KINDS[kind]()), "mse"
    )
    return model


def check_a_checkpoint_has_this_ranks_residuals() -> None:
    whole = trained(compiled("topk"), range(6))
    with tempfile.TemporaryDirectory() as folder:
        first = compiled("topk")
        trained(first, range(3))
        path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{folder}/checkpoint")
        for has_residuals in (False, True):
            second = compiled("topk")
            second.optimizer.build(second.trainable_variables)
            if has_residuals:
                trained(second, range(1))
            status = tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
            status.assert_existing_objects_matched()
            for one, other in zip(trained(second, range(3, 6)), whole):
                np.testing.assert_array_equal(one, other)
    assert equal_on_all_ranks(whole)


def check_a_file_of_keras_has_this_ranks_residuals() -> None:
    whole = trained(compiled("onebit"), range(6))
    with tempfile.TemporaryDirectory() as folder:
        first, path = compiled("onebit"), f"{folder}/model.keras"
        trained(first, range(3))
        first.save(path)
        assert type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam
        second = hvd.load_model(path, compression=Compression.onebit)
        third = compiled("onebit")
        third.optimizer.build(third.trainable_variables)
        third.load_weights(path)
    for model in (second, third):
        for one, other in zip(trained(model, range(3, 6)), whole):
            np.testing.assert_array_equal(one, other)


def check_models_that_serve_have_no_residuals() -> None:
    model = compiled("topk")
    trained(model, range(1))
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        served = tf.saved_model.load(folder)
        assert not [
            one for one in tf.train.list_variables(f"{folder}/variables/variables") if "residual" in one[0]
        ]
        assert served.serve(np.ones((1, 4), np.float32)).shape == (1, 1)


def check_they_are_refused_where_they_cannot_work() -> None:
    compression = Compression.topk(0.5)
    variable, gradient = tf.Variable(tf.zeros(SHAPE)), tf.ones(SHAPE)
    for op in (rdmacoll.Min, rdmacoll.Max, rdmacoll.Product):
        error = raised(
            ValueError,
            lambda op=op: rdmacoll.DistributedOptimizer(
                keras.optimizers.SGD(), op=op, compression=compression
            ),
        )
        assert "op=Sum or op=Average" in str(error)
    tape = tf.GradientTape()
    error = raised(
        ValueError,
        lambda: rdmacoll.tensorflow.DistributedGradientTape(tape, op=hvd.Adasum, compression=compression),
    )
    assert "op=Adasum" in str(error)
    for call in (rdmacoll.allreduce, hvd.allreduce, rdmacoll.reducescatter):
        assert "DistributedOptimizer" in str(
            raised(ValueError, lambda call=call: call(gradient, compression=compression))
        )
    raised(ValueError, lambda: taped(tf.constant(gradient), gradient, compression=compression))
    for ratio in (0, -0.5, 1.5, "a", float("nan")):
        raised(ValueError, lambda ratio=ratio: Compression.topk(ratio))
    close(taped(variable, gradient, compression=Compression.topk(1)), np.ones(SHAPE))


def check_ranks_with_another_compression_are_told() -> None:
    if SIZE > 1:
        compression = Compression.topk(0.5 if RANK else 0.25)
        variable = tf.Variable(tf.zeros(SHAPE))
        error = raised(
            rdmacoll.MismatchError, lambda: taped(variable, tf.ones(SHAPE), compression=compression)
        )
        assert "topk(0.5)" in str(error)


def accuracy(compression: Any) -> float:
    """Returns the accuracy on the digits after a training of all ranks, each with its own part."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images, labels = (digits.data[order] / 16.0).astype(np.float32), digits.target[order]
    mine = slice(360 + RANK, None, SIZE)
    each = len(images[360:]) // SIZE
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = rdmacoll.DistributedOptimizer(
        keras.optimizers.SGD(0.03, momentum=0.9), compression=compression
    )
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(images[mine][:each], labels[mine][:each], 64 // SIZE, 15, verbose=0)
    assert equal_on_all_ranks([np.array(one) for one in model.get_weights()])
    return float(model.evaluate(images[:360], labels[:360], verbose=0)[1])


def check_digits_are_learned_as_with_whole_gradients() -> None:
    whole = accuracy(Compression.none)
    assert whole > 0.93
    for compression in (Compression.topk(0.1), Compression.onebit):
        found = accuracy(compression)
        print(f"{compression}: accuracy {found:.3f}, whole gradients {whole:.3f}", flush=True)
        assert found > whole - DIGITS_BAND


run_all({name: globals()[name] for name in sys.argv[1:]} or globals())
