"""Tests how gradients travel: as 16 bits, and sparse gradients as rows or as sums."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import pickle
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from tf_common import all_values, close, equal_on_all_ranks, own_data, raised, run_all, value

import rdmacoll
import rdmacoll.tensorflow as hvd
from rdmacoll import Compression

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
NARROW = {"fp16": (Compression.fp16, tf.float16), "bf16": (Compression.bf16, tf.bfloat16)}
# The first number with steps of 2 to its neighbours. In 16 bits, ones that are added one by one are lost.
LARGE = {"fp16": 2048.0, "bf16": 256.0}


def rounded(array: np.ndarray, dtype: Any) -> np.ndarray:
    return tf.cast(tf.cast(array, dtype), tf.float64).numpy()


def sent_by(call: Callable[[], Any]) -> int:
    before = rdmacoll.metrics()["bytes_sent"]
    call()
    return int(rdmacoll.metrics()["bytes_sent"] - before)


def check_partial_sums_are_not_rounded() -> None:
    for name, (compression, _) in NARROW.items():
        # The last size is large enough for the ring algorithm, which adds on the way.
        for size in (1, 1000, 600_000 if SIZE == 3 else 20_000):
            for large_on in range(SIZE):
                x = tf.fill((size,), LARGE[name] if large_on == RANK else 1.0)
                for op, divisor in ((rdmacoll.Sum, 1), (rdmacoll.Average, SIZE)):
                    result = rdmacoll.allreduce(x, op=op, compression=compression)
                    wanted = rounded(np.full(size, (LARGE[name] + SIZE - 1) / divisor), NARROW[name][1])
                    np.testing.assert_array_equal(result.numpy(), wanted.astype(np.float32))
    if SIZE == 3:  # a sum in 16 bits would lose the ones
        in_turn = np.float16(np.float16(2048) + np.float16(1)) + np.float16(1)
        assert in_turn == 2048


def check_the_range_holds_on_the_way() -> None:
    most = tf.constant([60000.0, -60000.0])
    fp16 = Compression.fp16
    close(rdmacoll.allreduce(most, compression=fp16), [60000.0, -60000.0], "float16")
    third = rdmacoll.allreduce(most, op=rdmacoll.Sum, postscale_factor=0.5 / SIZE, compression=fp16)
    close(third, [30000.0, -30000.0], "float16")
    huge = most * 1000.0
    small = rdmacoll.allreduce(huge, op=rdmacoll.Sum, prescale_factor=1e-5, compression=fp16)
    close(small, [600.0 * SIZE, -600.0 * SIZE], "float16")
    assert np.isinf(rdmacoll.allreduce(huge, compression=fp16)).all()
    close(rdmacoll.allreduce(huge * 1e20, compression=Compression.bf16) / 6e27, [1.0, -1.0], "bfloat16")


def check_groups_keep_their_dtypes() -> None:
    for call in (rdmacoll.grouped_allreduce, tf.function(rdmacoll.grouped_allreduce)):
        for compression, dtype in NARROW.values():
            kinds = ["float32", "int32", "float64", "float16", "bfloat16", "float32"]
            sources = [own_data((5,), kind, salt=i) for i, kind in enumerate(kinds)]
            results = call(sources, op=rdmacoll.Sum, compression=compression)
            for i, (kind, result) in enumerate(zip(kinds, results)):
                assert result.dtype.name == kind
                values = all_values((5,), kind, salt=i)
                if kind in ("float32", "float64"):
                    values = [rounded(v, dtype) for v in values]
                tolerance_of = "bfloat16" if compression is Compression.bf16 else "float16"
                close(result, np.sum(np.float64(values), axis=0), kind if kind == "int32" else tolerance_of)
            assert equal_on_all_ranks([r.numpy() for r in results])


def check_half_the_bytes_travel() -> None:
    x = own_data((1 << 18,))
    whole = sent_by(lambda: rdmacoll.allreduce(x))
    for compression, _ in NARROW.values():
        half = sent_by(lambda c=compression: rdmacoll.allreduce(x, compression=c))
        assert SIZE == 1 or 0.4 * whole < half < 0.6 * whole, (half, whole)


def check_gradients_of_what_was_rounded() -> None:
    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(rdmacoll.allreduce(x, op=rdmacoll.Sum, compression=Compression.fp16)) * 3.0
        return tape.gradient(loss, x)

    for call in (slope, tf.function(slope)):
        result = call(own_data((4,)))
        assert result.dtype == tf.float32
        close(result, np.full(4, 3.0 * SIZE))


def check_gradients_of_tensors_whose_shapes_a_graph_does_not_know() -> None:
    here = np.arange(SIZE * 2, dtype=np.float32).reshape(SIZE, 2) + RANK
    ones = [1] * SIZE
    calls: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda x: rdmacoll.allreduce(x),
        "allgather": lambda x: rdmacoll.allgather(x),
        "alltoall": lambda x: rdmacoll.alltoall(x),
        "alltoall with splits": lambda x: rdmacoll.alltoall(x, ones)[0],
        "broadcast": lambda x: rdmacoll.broadcast(x, 0),
        "gather": lambda x: rdmacoll.gather(x, 0),
        "reduce": lambda x: rdmacoll.reduce(x, 0),
        "reducescatter": lambda x: rdmacoll.reducescatter(x),
        "scatter": lambda x: rdmacoll.scatter(x, 0),
        "allgather of Horovod": lambda x: hvd.allgather(x),
        "alltoall of Horovod": lambda x: hvd.alltoall(x, ones)[0],
        "reducescatter of Horovod": lambda x: hvd.reducescatter(x),
    }
    for name, call in calls.items():

        def slope(x: Any, call: Callable[[Any], Any] = call) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = tf.ensure_shape(call(x), (None, 2))  # its gradient has a known rank
                loss = tf.reduce_sum(tf.square(result))
            return tape.gradient(loss, x)

        known = tf.function(slope)(tf.constant(here)).numpy()
        unknown = tf.function(slope, input_signature=[tf.TensorSpec(None)])(here)
        np.testing.assert_array_equal(unknown.numpy(), known, name)


def step(optimizer: Any, variables: list[Any], gradients: list[Any]) -> None:
    tf.function(lambda: optimizer.apply(gradients, variables))()


def check_the_optimizer_rounds_before_it_clips() -> None:
    for compression, dtype in NARROW.values():
        gradients = [value(rank, (6,), salt=rank) for rank in range(SIZE)]
        mean = rounded(np.mean([rounded(g, dtype) for g in gradients], axis=0), dtype)
        clipped = -mean * min(1.0, 0.25 / np.linalg.norm(mean))
        optimizer = keras.optimizers.SGD(1.0, clipnorm=0.25)
        rdmacoll.DistributedOptimizer(optimizer, compression=compression)
        weights = keras.Variable(np.zeros(6, np.float32))
        step(optimizer, [weights], [tf.constant(gradients[RANK])])
        np.testing.assert_allclose(np.array(weights), clipped, rtol=1e-5, atol=1e-6)
        assert equal_on_all_ranks([np.array(weights)])


def check_the_loss_scale_falls_until_gradients_fit() -> None:
    inner = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Compression.fp16)
    optimizer = keras.mixed_precision.LossScaleOptimizer(inner)
    weights = keras.Variable(np.zeros(2, np.float32))
    optimizer.build([weights])
    gradient = 64.0 if RANK == SIZE - 1 else 1.0  # with the scale of 2**15, too large on one rank alone
    train = tf.function(lambda: optimizer.apply([optimizer.scale_loss(tf.fill((2,), gradient))], [weights]))
    for _ in range(8):
        train()
    scale = float(np.array(optimizer.dynamic_scale))
    assert 64.0 * scale <= 65504 < 64.0 * 2 * scale
    updates = 8 - round(np.log2(2**15 / scale))
    assert updates > 0
    np.testing.assert_array_equal(np.array(weights), np.float32([-updates * (63 + SIZE) / SIZE] * 2))


class OwnScaling(keras.mixed_precision.LossScaleOptimizer):
    """Loss scaling of a program, which tests the gradients before it applies them."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in grads])
        self.test = tf.cast(finite, tf.float32)
        return super().apply(grads, trainable_variables)


def check_loss_scaling_with_an_apply_of_its_own_reduces_once() -> None:
    found = [value(rank, (4,), salt=rank) for rank in range(SIZE)]
    joined = {rdmacoll.Average: np.mean(found, axis=0), rdmacoll.Sum: np.sum(found, axis=0)}
    for (op, whole), passes, is_function in itertools.product(joined.items(), (1, 2), (False, True)):

        def trained(
            sources: Any, last: float, wraps: Any, passes: int = passes, is_function: bool = is_function
        ) -> Any:
            inner = keras.optimizers.SGD(1.0, clipnorm=0.5)
            optimizer = wraps(OwnScaling(inner, initial_scale=8.0, dynamic_growth_steps=1))
            weights = keras.Variable(np.zeros(4, np.float32))
            optimizer.build([weights])

            def step(gradient: Any) -> None:
                optimizer.apply([optimizer.scale_loss(gradient)], [weights])

            train = tf.function(step) if is_function else step
            for number in range(2 * passes):
                train(tf.constant(sources * np.float32(1 + number // passes)))
            for _ in range(passes):
                train(tf.fill((4,), last))
            return np.array(weights), float(np.array(optimizer.dynamic_scale))

        options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
        wrap = functools.partial(rdmacoll.DistributedOptimizer, op=op, **options)
        mine = trained(found[RANK], np.inf if RANK == SIZE - 1 else 1.0, wrap)
        alone = trained(whole, np.inf, lambda one: one, passes=1)
        np.testing.assert_allclose(mine[0], alone[0], rtol=1e-5, atol=1e-6)
        assert equal_on_all_ranks([*map(np.array, mine)])
        assert mine[1] == (16.0 if passes == 1 else 32.0)  # each pass doubles or halves it


def check_copies_compress_too() -> None:
    optimizer = rdmacoll.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Compression.bf16)
    for way in (copy.deepcopy, lambda original: pickle.loads(pickle.dumps(original))):
        weights = keras.Variable(np.zeros(1, np.float32))
        step(way(optimizer), [weights], [tf.constant([1.0 + 2.0**-10])])
        assert np.array(weights) == -1.0


def check_ranks_have_to_agree_on_it() -> None:
    if SIZE == 1:
        return
    compression = Compression.fp16 if RANK == 0 else Compression.none
    for call in (
        lambda: rdmacoll.allreduce(tf.ones(3), compression=compression),
        lambda: step(
            rdmacoll.DistributedOptimizer(keras.optimizers.SGD(), compression=compression),
            [keras.Variable(np.zeros(2))],
            [tf.ones(2)],
        ),
    ):
        error = rdmacoll.error_from(raised((rdmacoll.MismatchError, tf.errors.FailedPreconditionError), call))
        assert "float16" in str(error), error
        assert "float32" in str(error), error
    for wrong in ("fp16", tf.float16, True):
        error = raised(rdmacoll.ConfigError, lambda w=wrong: rdmacoll.allreduce(tf.ones(1), compression=w))
        assert "Compression.bf16" in str(error)


def slices(rank: int, rows: int, of: int, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    indices = np.random.default_rng([rank, rows]).integers(
        0, of - 1, rows + rank
    )  # the last row is never used
    return value(rank, (len(indices), width), salt=rows), indices


def reduced_slices(sources: Any, **options: Any) -> Any:
    """Returns calls whose result is the gradient of a table after a lookup of these rows."""
    table = tf.Variable(tf.zeros(sources.dense_shape))

    def call() -> Any:
        with rdmacoll.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(tf.gather(table, sources.indices) * sources.values)
        return tape.gradient(loss, table)

    return call, tf.function(call)


def check_rows_are_gathered_or_summed_by_their_number() -> None:
    of = 8
    for rows in (0, 1, 3, 2 * of):
        everything = [slices(rank, rows, of) for rank in range(SIZE)]
        total = sum(len(indices) for _, indices in everything)
        dense = np.zeros((of, 3))
        for values, indices in everything:
            np.add.at(dense, indices, values)
        touched = np.unique(np.concatenate([indices for _, indices in everything]))
        sources = tf.IndexedSlices(*map(tf.constant, slices(RANK, rows, of)), tf.constant([of, 3]))
        for compression, tolerance_of in ((None, "float32"), (Compression.fp16, "float16")):
            options = {"compression": compression, "postscale_factor": 2.0}
            for op, divisor in ((rdmacoll.Sum, 1), (rdmacoll.Average, SIZE)):
                for call in reduced_slices(sources, op=op, sparse_as_dense="auto", **options):
                    result = call()
                    assert isinstance(result, tf.IndexedSlices)
                    assert sorted(set(result.indices.numpy())) == list(touched)
                    assert len(result.indices) == (len(touched) if total > 2 * of else total)
                    close(tf.convert_to_tensor(result), 2 * dense / divisor, tolerance_of)
                    assert equal_on_all_ranks([result.values.numpy(), result.indices.numpy()])
            for call in reduced_slices(sources, **options):
                assert len(call().indices) == total
                close(tf.convert_to_tensor(call()), 2 * dense / SIZE, tolerance_of)
            for call in reduced_slices(sources, sparse_as_dense=True, **options):
                close(call(), 2 * dense / SIZE, tolerance_of)
            for way in (False, True, "auto"):
                for call in (rdmacoll.allreduce, tf.function(rdmacoll.allreduce)):
                    alone = call(sources, sparse_as_dense=way, **options)
                    assert isinstance(alone, tf.Tensor if way is True else tf.IndexedSlices)
                    is_summed = way == "auto" and total > 2 * of
                    assert way is True or len(alone.indices) == (len(touched) if is_summed else total)
                    close(tf.convert_to_tensor(alone), 2 * dense / SIZE, tolerance_of)


def check_gradients_of_reduced_slices() -> None:
    of = 8
    weights = [value(rank, (of, 3), salt=70) for rank in range(SIZE)]

    def slope_of(indices: np.ndarray, **options: Any) -> Callable[[Any], Any]:
        def slope(values: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(values)
                sources = tf.IndexedSlices(values, tf.constant(indices), tf.constant([of, 3]))
                total = tf.convert_to_tensor(rdmacoll.allreduce(sources, **options))
                loss = tf.reduce_sum(total * weights[RANK])
            return tape.gradient(loss, values)

        return slope

    for rows in (1, 2 * of):  # "auto" gathers with the first number and sums with the second
        sources, indices = slices(RANK, rows, of)
        for op, divisor in ((rdmacoll.Sum, 1), (rdmacoll.Average, SIZE)):
            for way in (False, True, "auto"):
                slope = slope_of(indices, op=op, sparse_as_dense=way)
                for call in (slope, tf.function(slope)):
                    found = tf.convert_to_tensor(call(tf.constant(sources)))
                    close(found, np.sum(weights, axis=0)[indices] / divisor)


def check_slices_that_are_made_dense_have_every_op() -> None:
    most = [RANK, SIZE][RANK % 2]  # the values of an index that occurs twice are added before the reduction
    sources = tf.IndexedSlices(tf.constant([1.0, float(most)]), tf.constant([2, 2]), tf.constant([4]))
    result = rdmacoll.allreduce(sources, op=rdmacoll.Max, sparse_as_dense=True)
    highest = max([1 + [rank, SIZE][rank % 2] for rank in range(SIZE)])
    close(result, [0, 0, highest, 0])
    close(rdmacoll.grouped_allreduce([sources, tf.ones(1)], op=rdmacoll.Max)[0], [0, 0, highest, 0])
    error = raised(
        rdmacoll.ConfigError, lambda: rdmacoll.allreduce(sources, op=rdmacoll.Max, sparse_as_dense="auto")
    )
    assert "sparse_as_dense=True" in str(error)


def check_many_rows_cost_no_more_than_sums() -> None:
    values, indices = slices(RANK, 20_000, 100, 16)
    sources = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([100, 16]))
    for call in reduced_slices(sources, op=rdmacoll.Sum, sparse_as_dense="auto"):
        assert len(call().indices) == 99
        sent = sent_by(call)
        assert SIZE == 1 or sent < SIZE * indices.nbytes + 4 * 100 * 16 * 4 < values.nbytes, sent


def check_how_sparse_is_dense_has_three_answers() -> None:
    for call in (
        lambda: rdmacoll.DistributedGradientTape(tf.GradientTape(), sparse_as_dense="always"),
        lambda: rdmacoll.DistributedOptimizer(keras.optimizers.SGD(), sparse_as_dense="always"),
        lambda: rdmacoll.allreduce(tf.ones(1), sparse_as_dense="always"),
    ):
        error = raised(rdmacoll.ConfigError, call)
        assert str(error) == "sparse_as_dense='always': False, True and \"auto\" are allowed."


def check_an_optimizer_leaves_rows_alone_that_nobody_has() -> None:
    for rows in (1, 40):
        table = keras.Variable(np.ones((6, 3), np.float32))
        optimizer = keras.optimizers.SGD(0.5)
        rdmacoll.DistributedOptimizer(optimizer, op=rdmacoll.Sum, sparse_as_dense="auto")
        values, indices = slices(RANK, rows, 6)
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([6, 3]))
        step(optimizer, [table], [gradient])
        wanted = np.ones((6, 3))
        for rank in range(SIZE):
            others, places = slices(rank, rows, 6)
            np.add.at(wanted, places, -0.5 * others)
        np.testing.assert_allclose(np.array(table), wanted, rtol=1e-5, atol=1e-5)
        assert equal_on_all_ranks([np.array(table)])


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
