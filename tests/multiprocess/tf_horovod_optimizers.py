"""Tests local variables and several passes in a step with Horovod's optimizers and tapes. Each training
equals that of one process, which has the variables of all ranks and trains on the joined batches.

Arguments: the folder of `tf_keras`, or "" in TensorFlow 2.15; "all": each library in each way.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
if sys.argv[1]:
    sys.path.append(sys.argv[1])
import keras
import numpy as np
import tensorflow as tf
from tf_common import close, equal_on_all_ranks, raised, run_all, value

import rdmacoll.keras as hvd_keras
import rdmacoll.tensorflow as hvd
import rdmacoll.tensorflow.keras as hvd_tf_keras

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STEPS = 4
v1 = tf.compat.v1
PACKAGES = [keras]
MAKE: dict[str, Callable[[], Any]] = {"v1": lambda: v1.train.AdamOptimizer(0.1)}
if sys.argv[1]:
    import tf_keras

    PACKAGES.append(tf_keras)
    MAKE["Keras 3"] = lambda: keras.optimizers.Adam(0.1)
KERAS_2: Any = PACKAGES[-1]
MAKE["Keras 2"] = lambda: KERAS_2.optimizers.Adam(0.1)
MAKE["Keras 2 legacy"] = lambda: KERAS_2.optimizers.legacy.Adam(0.1)
FAMILIES = ("Keras 3", "Keras 2 legacy", "v1") + ("Keras 2",) * ("all" in sys.argv or not sys.argv[1])


def variables(count: int) -> list[Any]:
    return [tf.Variable(value(99, (3,), salt=place)) for place in range(count)]


def loss_of(rank: int, number: int, shared: Any, own: Any) -> Any:
    a, b = tf.unstack(tf.gather(tf.constant(value(rank, (STEPS, 2, 3))), number))
    return tf.reduce_sum(a * shared * own + b * own * own)


def of_one_process(make: Callable[[], Any], *, passes: int = 1, is_mean: bool = False) -> list[np.ndarray]:
    """Returns the weight of all ranks and this rank's own after the training of one process."""
    shared, *owns = weights = variables(1 + SIZE)
    for own in owns:
        own.assign(owns[0])
    optimizer = make()
    for first in range(0, STEPS, passes):
        with tf.GradientTape() as tape:
            losses = [
                loss_of(rank, first + place, shared, own)
                for rank, own in enumerate(owns)
                for place in range(passes)
            ]
            loss = tf.add_n(losses) / (SIZE * (passes if is_mean else 1))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return [shared.numpy(), owns[RANK].numpy()]


def of_this_rank(step: Callable[[int, Any, Any], Any], *, is_function: bool = False) -> list[np.ndarray]:
    """Returns both weights after the steps. step: takes its number and the weights."""
    shared, own = variables(2)

    def numbered(number: Any) -> None:
        step(number, shared, own)

    call = tf.function(numbered, autograph=False) if is_function else numbered
    for number in range(STEPS):
        call(tf.constant(number))
    return [shared.numpy(), own.numpy()]


def same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    assert equal_on_all_ranks([found[0]])
    for one, other in zip(found, wanted):
        close(one, other)


def taped(number: int, weights: Sequence[Any], wrap: Callable[[Any], Any] = lambda tape: tape) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = loss_of(RANK, number, *weights)
    return list(wrap(tape).gradient(loss, weights))


def by_compute(optimizer: Any) -> Callable[..., None]:
    """Returns a step by the optimizer's own gradients."""

    def step(number: int, *weights: Any) -> None:
        compute = getattr(optimizer, "_compute_gradients", None) or optimizer.compute_gradients
        optimizer.apply_gradients(compute(lambda: loss_of(RANK, number, *weights), list(weights)))

    return step


def by_tape(optimizer: Any) -> Callable[..., None]:
    """Returns a step by the gradients of a plain tape."""
    return lambda number, *weights: optimizer.apply_gradients(zip(taped(number, weights), weights))


def each() -> list[tuple[str, Callable[[], Any]]]:
    return [(name, MAKE[name]) for name in FAMILIES if name in MAKE]


def ways(name: str) -> list[tuple[Callable[..., Any], bool]]:
    """Returns the ways to train with this library: a kind of step, and whether it is a tf.function."""
    if name == "v1":
        return [(by_compute, True)]
    found = [(by_compute, False), (by_tape, True)]
    return [*found, (by_compute, True), (by_tape, False)] if "all" in sys.argv else found


def with_local(step: Callable[[Any], Callable[..., None]], optimizer: Any) -> Callable[..., None]:
    """Returns a step after which the second weight is local."""

    def whole(number: int, shared: Any, own: Any) -> None:
        optimizer.register_local_var(own)
        step(optimizer)(number, shared, own)

    return whole


def check_local_variables_train_as_in_one_process() -> None:
    for name, make in each():
        wanted = of_one_process(make)
        for step, is_function in ways(name):
            optimizer = hvd.DistributedOptimizer(make())
            same(of_this_rank(with_local(step, optimizer), is_function=is_function), wanted)


def check_local_gradients_are_whole_without_the_scale() -> None:
    for _, make in each():
        weights = variables(2)
        optimizer = hvd.DistributedOptimizer(make(), scale_local_gradients=False)
        optimizer.register_local_var(weights[1])
        compute = getattr(optimizer, "_compute_gradients", None) or optimizer.compute_gradients
        _, (found, _) = compute(lambda weights=weights: loss_of(RANK, 0, *weights), weights)
        close(found, taped(0, weights)[1])


def check_local_sources_of_a_tape_train_as_in_one_process() -> None:
    for _, make in each():
        wanted = of_one_process(make)
        for is_function in (False, True):
            for wrap in (lambda one: one, hvd.DistributedOptimizer):

                def local_tape(plain: Any, own: Any) -> Any:
                    tape = hvd.DistributedGradientTape(plain)
                    tape.register_local_source(own)
                    return tape

                optimizer = wrap(make())

                def step(number: int, shared: Any, own: Any, optimizer: Any = optimizer) -> None:
                    found = taped(number, (shared, own), lambda plain: local_tape(plain, own))
                    # Changed gradients do not show where they come from.
                    changed = [0.5 * (2.0 * one) for one in found]
                    optimizer.apply_gradients(zip(changed, (shared, own)))

                same(of_this_rank(step, is_function=is_function), wanted)


def check_passes_of_a_step_train_as_in_one_process() -> None:
    for name, make in each():
        for is_mean in (False, True):
            wanted = of_one_process(make, passes=2, is_mean=is_mean)
            if name.startswith("Keras 2"):  # these count passes, as Horovod's do
                wanted = of_passes(make, is_mean=is_mean)
            for step, is_function in ways(name):
                optimizer = hvd.DistributedOptimizer(
                    make(), backward_passes_per_step=2, average_aggregated_gradients=is_mean
                )
                same(of_this_rank(with_local(step, optimizer), is_function=is_function), wanted)
                assert int(optimizer._agg_helper.counter) == 0


def of_passes(make: Callable[[], Any], *, is_mean: bool) -> list[np.ndarray]:
    """Returns the weights of one process whose optimizer also counts the passes between two steps."""
    plain = make()

    class Counting:
        def apply_gradients(self, pairs: Any) -> None:
            plain.iterations.assign_add(1)
            plain.apply_gradients(pairs)

    return of_one_process(Counting, passes=2, is_mean=is_mean)


def check_passes_are_counted() -> None:
    for name, make in each():
        optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=3)
        assert hvd.DistributedOptimizer(make())._agg_helper is None
        assert int(optimizer._agg_helper.counter) == 0
        step, (shared, own) = by_compute(optimizer), variables(2)
        for number in range(STEPS):
            before = shared.numpy()
            step(number, shared, own)
            assert int(optimizer._agg_helper.counter) == (number + 1) % 3
            assert np.array_equal(before, shared.numpy()) is ((number + 1) % 3 != 0)
            if name.startswith("Keras 2"):
                assert int(optimizer.iterations) == number + 1


def check_computed_gradients_are_applied_whatever_the_flags() -> None:
    optimizer = hvd.DistributedOptimizer(MAKE["Keras 2"](), backward_passes_per_step=2)

    def step(number: int, *weights: Any) -> None:
        pairs = optimizer._compute_gradients(lambda: loss_of(RANK, number, *weights), list(weights))
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    for is_function in (False, True):
        optimizer = hvd.DistributedOptimizer(MAKE["Keras 2"](), backward_passes_per_step=2)
        found = of_this_rank(with_local(lambda one: step, optimizer), is_function=is_function)
        same(found, of_passes(MAKE["Keras 2"], is_mean=False))


def check_gradients_of_the_loss_are_refused_where_they_would_be_ignored() -> None:
    optimizer = hvd.DistributedOptimizer(MAKE["Keras 2"]())
    weight = tf.Variable([1.0])
    error = raised(
        ValueError,
        lambda: optimizer._compute_gradients(lambda: weight * weight, [weight], grad_loss=[weight]),
    )
    assert "output_gradients" in str(error), error


def model_of(package: Any, shared: Any, own: Any) -> Any:
    inputs = package.layers.Input((3,))
    one, other = (package.layers.Dense(2, use_bias=False) for _ in range(2))
    model = package.Model(inputs, package.layers.Add()([one(inputs), other(inputs)]))
    one.kernel.assign(shared)
    other.kernel.assign(own)
    return model, one, other


def check_fit_trains_local_layers_as_in_one_process() -> None:
    first = [value(98, (3, 2), salt=place) for place in range(2)]
    data = [(value(rank, (12, 3)), value(rank, (12, 2), salt=1)) for rank in range(SIZE)]
    for package in PACKAGES:
        shared, *owns = weights = [tf.Variable(first[0]), *(tf.Variable(first[1]) for _ in range(SIZE))]
        plain = package.optimizers.Adam(0.1)
        for begin in range(0, 12, 4):
            with tf.GradientTape() as tape:
                losses = [
                    tf.reduce_mean((y[begin : begin + 4] - x[begin : begin + 4] @ (shared + own)) ** 2)
                    for (x, y), own in zip(data, owns)
                ]
                loss = tf.add_n(losses) / SIZE
            plain.apply_gradients(zip(tape.gradient(loss, weights), weights))
        model, one, other = model_of(package, *first)
        optimizer = hvd_keras.PartialDistributedOptimizer(package.optimizers.Adam(0.1), local_layers=other)
        model.compile(optimizer, "mse")
        broadcast = hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(*data[RANK], batch_size=4, shuffle=False, verbose=0, callbacks=[broadcast])
        same([one.kernel.numpy(), other.kernel.numpy()], [shared.numpy(), owns[RANK].numpy()])


def of_parts(part: Any) -> Any:
    return keras.optimizers.MultiOptimizer(lambda _: part)


def check_clipping_by_the_norm_of_all_gradients_is_refused() -> None:
    kinds = [keras.optimizers.SGD, KERAS_2.optimizers.SGD, KERAS_2.optimizers.legacy.SGD]
    kinds += [lambda *one, **clip: of_parts(kinds[0](*one, **clip))] if sys.argv[1] else []
    for kind in kinds if SIZE > 1 else []:
        for has_local in (False, True):
            weights = variables(2)
            optimizer = hvd.DistributedOptimizer(kind(1.0, global_clipnorm=1.0))
            step = functools.partial(optimizer.apply_gradients, [(tf.ones(3) + RANK, one) for one in weights])
            if has_local:
                optimizer.register_local_var(weights[1])
                assert "global_clipnorm=1" in str(raised(ValueError, step))
            else:
                step()
            assert equal_on_all_ranks([one.numpy() for one in weights])


def check_layers_may_be_built_later() -> None:
    layer = PACKAGES[0].layers.Dense(1, use_bias=False)
    optimizer = hvd_keras.PartialDistributedOptimizer(PACKAGES[0].optimizers.SGD(1.0), local_layers=[layer])
    layer.build((None, 1))
    layer.kernel.assign([[0.0]])
    optimizer.apply_gradients([(tf.constant([[-float(RANK)]]), layer.kernel)])
    close(layer.kernel.numpy(), [[RANK / SIZE]])


def check_ranks_outside_of_a_set_train_alone() -> None:
    if SIZE == 1:
        return
    others = hvd.add_process_set([0])

    def of_rank(make: Callable[[], Any], **options: Any) -> list[np.ndarray]:
        optimizer = hvd.DistributedOptimizer(make(), process_set=others, **options)
        return of_this_rank(by_compute(optimizer))

    for name, make in each():
        alone = make()
        wanted = of_this_rank(
            lambda number, *weights: alone.apply_gradients(zip(taped(number, weights), weights))  # noqa: B023
        )
        for found, one in zip(of_rank(make), wanted):
            close(found, one)
        if name in ("Keras 3", "v1"):
            sums = of_rank(make, backward_passes_per_step=2)
            plain = make()
            shared, own = weights = variables(2)
            for number in range(0, STEPS, 2):
                with tf.GradientTape() as tape:
                    loss = loss_of(RANK, number, shared, own) + loss_of(RANK, number + 1, shared, own)
                plain.apply_gradients(zip(tape.gradient(loss, weights), weights))
            for found, one in zip(sums, weights):
                close(found, one)
    hvd.remove_process_set(others)


def check_a_session_counts_passes() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        shared, own = (v1.get_variable(name, initializer=tf.zeros(1), use_resource=True) for name in "ab")
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
        )
        optimizer.register_local_var(own)
        assert optimizer._optimizer is optimizer
        count = v1.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(-float(RANK) * (shared + own), [shared, own])
        step = optimizer.apply_gradients(pairs, global_step=count)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for number in range(1, 6):
            session.run(step)
            assert session.run(count) == number
            close(session.run(shared), [number // 2 * (SIZE - 1) / 2])
            close(session.run(own), [number // 2 * RANK / SIZE])


class Quarters:
    """A compressor of a program, with Horovod's interface: 16 bits, with another scale."""

    calls = 0

    @staticmethod
    def compress(tensor: Any) -> Any:
        Quarters.calls += 1
        return tf.cast(tensor * 4.0, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tf.cast(tensor, context) / 4.0


def check_compressors_of_programs_are_called() -> None:
    mean = (SIZE - 1) / 2
    weight = tf.Variable([0.0])
    with tf.GradientTape(persistent=True) as plain:
        loss = -float(RANK) * weight
    assert Quarters.calls == 0
    close(hvd.DistributedGradientTape(plain, compression=Quarters).gradient(loss, weight), [-mean])
    assert Quarters.calls == 1
    for package in PACKAGES:
        optimizer = hvd.DistributedOptimizer(package.optimizers.SGD(1.0), compression=Quarters)
        weight = tf.Variable([0.0])  # no tape has reduced its gradients
        optimizer.apply_gradients([(tf.constant([-float(RANK)]), weight)])
        close(weight.numpy(), [mean])
        copy = type(optimizer).from_config(optimizer.get_config())
        copy.apply_gradients([(tf.constant([-float(RANK)]), weight)])
        close(weight.numpy(), [2 * mean])
    assert Quarters.calls == 1 + 2 * len(PACKAGES)
    error = raised(ValueError, lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=3))
    assert "compress(tensor)" in str(error)


run_all(globals())
