"""Tests the collectives of rdmacoll.tensorflow and rdmacoll.keras, with Horovod's meaning, against closed
forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import all_values, close, own_data, raised, run_all

import rdmacoll.keras
import rdmacoll.tensorflow as hvd
import rdmacoll.tensorflow.keras

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
INTEGERS = ("uint8", "int8", "int32", "int64")


def both(call: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Returns the results of an eager call and of one in a graph."""
    return [call(*inputs), tf.function(call)(*inputs)]


def gradients(call: Callable[[Any], Any], source: Any, weight: Callable[[Any], Any]) -> list[Any]:
    """Returns the gradients of `source`, eager and in a graph. weight: makes the gradient of the result."""

    def step(value: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            result = call(value)
            loss = tf.reduce_sum(result * weight(result))
        return tape.gradient(loss, value)

    return both(step, source)


def check_arguments_have_horovods_order() -> None:
    x = own_data((3,))
    total = np.sum(all_values((3,)), axis=0)
    for result in both(lambda x: hvd.allreduce(x, False, "/cpu:0", "", hvd.Compression.none), x):
        close(result, total)
    for result in both(lambda x: hvd.allreduce(x, op=0), x):
        close(result, total / SIZE)
    for result in both(lambda x: hvd.allreduce(x, op=1, prescale_factor=2.0, postscale_factor=3.0), x):
        close(result, total * 6)
    for result in both(lambda x: hvd.grouped_allreduce([x, x], True), x):
        close(result[1], total / SIZE)
    for op, value in ((3, np.min), (4, np.max), (5, np.prod)):
        for result in both(lambda x: hvd.allreduce(x, None, "", "", hvd.Compression.none, op), x):  # noqa: B023
            close(result, value(all_values((3,)), axis=0))
    for module, average in ((rdmacoll.keras, True), (rdmacoll.tensorflow.keras, None)):
        close(module.allreduce(value=x), total / SIZE)
        close(module.allreduce(x, None, False), total)
        close(module.allreduce(x, op=hvd.Max), np.max(all_values((3,)), axis=0))
        close(module.allreduce(float(RANK), "a_number", average), (SIZE - 1) / 2)
        close(module.broadcast(RANK + 1.0, SIZE - 1), SIZE)
        close(module.allgather([[RANK]]), np.arange(SIZE)[:, None])
        close(module.reducescatter(tf.ones((SIZE, 2)), op=hvd.Sum), np.full((1, 2), SIZE))


def check_integers_are_averaged_and_scaled_by_truncation() -> None:
    for dtype in INTEGERS:
        kind = tf.as_dtype(dtype).as_numpy_dtype
        own = np.array([7, 2, RANK], kind)
        sums = np.array([7 * SIZE, 2 * SIZE, sum(range(SIZE))]).astype(kind)
        for result in both(hvd.allreduce, tf.constant(own)):
            assert result.dtype == kind
            assert (result.numpy() == (sums.astype(np.float64) / SIZE).astype(kind)).all(), (dtype, result)
        scaled = np.sum([np.array([3, 1, r // 2]) for r in range(SIZE)], axis=0)
        for result in both(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), tf.constant(own)):
            assert (result.numpy() == scaled.astype(kind)).all(), (dtype, result)
    rows = tf.constant(np.full((SIZE, 2), 5, np.int32))
    for result in both(hvd.reducescatter, rows):
        assert (result.numpy() == 5).all()
    mixed = [tf.constant([RANK]), tf.constant([RANK + 0.5])]
    for result in both(lambda *values: hvd.grouped_allreduce(list(values)), *mixed):
        assert result[0].numpy().tolist() == [(SIZE - 1) // 2]
        close(result[1], [SIZE / 2])


def check_slices_stay_sparse_and_refuse_what_horovod_refuses() -> None:
    def slices() -> Any:
        return tf.IndexedSlices(tf.fill((2, 2), float(RANK)), tf.constant([RANK, 5]), tf.constant([9, 2]))

    def dense(op: int) -> Any:
        return tf.convert_to_tensor(hvd.allreduce(slices(), op=op))

    rows = np.zeros((9, 2), np.float32)
    for rank in range(SIZE):
        rows[[rank, 5]] += rank
    for result, divisor in ((dense(hvd.Sum), 1), (tf.function(dense)(hvd.Average), SIZE)):
        close(result, rows / divisor)
    whole = tf.IndexedSlices(tf.constant([[RANK, 3]]), tf.constant([RANK]), tf.constant([SIZE, 2]))
    for call in (hvd.allreduce, tf.function(lambda one: hvd.grouped_allreduce([one])[0])):
        mean = tf.convert_to_tensor(call(whole))
        assert mean.dtype == tf.float64
        close(mean, [[rank / SIZE, 3 / SIZE] for rank in range(SIZE)], "float64")
    grouped = hvd.grouped_allreduce([tf.ones(2), slices(), slices()], op=hvd.Sum)
    assert isinstance(grouped[1], tf.IndexedSlices)
    close(tf.convert_to_tensor(grouped[2]), rows)
    for wrong in ({"op": hvd.Min}, {"op": hvd.Product}, {"op": 2}, {"prescale_factor": 0.5}):
        raised(NotImplementedError, lambda: hvd.allreduce(slices(), **wrong))  # noqa: B023
        raised(NotImplementedError, tf.function(lambda: hvd.allreduce(slices(), **wrong).values))  # noqa: B023
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum), [SIZE])


def check_gradients_are_horovods() -> None:
    upstream = [float(3 + rank) for rank in range(SIZE)]
    mean = np.mean(upstream)
    shape = (SIZE * 2, 3)

    def weight(result: Any) -> Any:
        return tf.fill(tf.shape(result), upstream[RANK])

    for op, value in (
        (hvd.Average, mean),
        (hvd.Sum, mean * SIZE),
        (hvd.Max, max(upstream)),
        (hvd.Min, min(upstream)),
        (hvd.Product, np.prod(upstream)),
    ):
        for found in gradients(lambda x: hvd.allreduce(x, op=op), own_data(shape), weight):  # noqa: B023
            close(found, np.full(shape, value))
    for found in gradients(lambda x: hvd.allreduce(x, prescale_factor=2.0), own_data(shape), weight):
        close(found, np.full(shape, 2 * mean))
    for found in gradients(lambda x: hvd.allgather(x), own_data((RANK + 1, 2)), weight):
        close(found, np.full((RANK + 1, 2), mean))
    for found in gradients(lambda x: hvd.grouped_allgather([x, x])[1], own_data((RANK + 1, 2)), weight):
        close(found, np.full((RANK + 1, 2), mean))
    for found in gradients(lambda x: hvd.broadcast(x, SIZE - 1), own_data(shape), weight):
        close(found, np.full(shape, mean if RANK == SIZE - 1 else 0.0))
    gathered = np.repeat(upstream, 2)[:, None] * np.ones(3)
    for op, factor in ((hvd.Average, 1), (hvd.Sum, SIZE)):
        call = lambda x: hvd.reducescatter(x, op=op, postscale_factor=0.5)  # noqa: B023, E731
        for found in gradients(call, own_data(shape), weight):
            close(found, gathered * factor * 0.5)
    splits = [rank + 1 for rank in range(SIZE)]
    received = [upstream[rank] for rank in range(SIZE) for _ in range(splits[rank])]
    for found in gradients(lambda x: hvd.alltoall(x, splits)[0], own_data((sum(splits), 2)), weight):
        close(found, np.array(received)[:, None] * np.ones(2))


def check_gradients_of_results_may_have_another_dtype() -> None:
    sources = [tf.ones((SIZE, 2), tf.float64), tf.zeros((SIZE, 2), tf.float64)]
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):

        def slope(*x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = call(list(x))[0]  # noqa: B023
            return tape.gradient(result, x[0], tf.ones(tf.shape(result), tf.float32))

        for found in both(slope, *sources):
            assert found.dtype == tf.float64
            close(found, np.ones((SIZE, 2)))


def check_gradients_of_rdmacolls_own_names_are_its_own() -> None:
    for found in gradients(lambda x: rdmacoll.allgather(x), own_data((2,)), tf.ones_like):
        close(found, np.full(2, SIZE))
    for found in gradients(lambda x: rdmacoll.broadcast(x, 0), own_data((2,)), tf.ones_like):
        close(found, np.full(2, SIZE if RANK == 0 else 0))


def pair(left: Any, right: Any) -> Any:
    """Returns the combination of two values by Adasum's formula."""
    shared = np.sum(left * right)
    return (1 - shared / (2 * np.sum(left * left))) * left + (
        1 - shared / (2 * np.sum(right * right))
    ) * right


def check_adasum_combines_along_a_tree() -> None:
    if SIZE & (SIZE - 1):
        raised(NotImplementedError, lambda: hvd.allreduce(tf.ones(1), op=hvd.Adasum))
        return
    for dtype in ("float16", "float32", "float64"):
        values = [one.astype(np.float64) for one in all_values((2, 3), dtype)]
        while len(values) > 1:
            values = [pair(*two) for two in zip(values[::2], values[1::2])]
        x = own_data((2, 3), dtype)
        for result in both(lambda x: hvd.allreduce(x, op=hvd.Adasum), x):
            assert result.dtype == x.dtype
            close(result, values[0], dtype)
        scaled = hvd.grouped_allreduce([x, x], op=2, prescale_factor=2.0, postscale_factor=0.25)
        close(scaled[1], values[0] / 2, dtype)
    if SIZE > 1:
        for found in gradients(lambda x: hvd.allreduce(x, op=hvd.Adasum), own_data((2,)), tf.ones_like):
            close(found, np.ones(2))  # equal gradients count once
    zeros = hvd.allreduce(tf.zeros(3), op=hvd.Adasum)
    close(zeros, np.zeros(3))
    raised(ValueError, lambda: hvd.allreduce(tf.constant([1]), op=hvd.Adasum))


def check_received_splits_are_int32_and_wrong_ones_refused() -> None:
    splits = [RANK + 1] * SIZE
    for rows, received in both(lambda x: hvd.alltoall(x, splits), tf.fill((sum(splits), 2), float(RANK))):
        assert received.dtype == tf.int32
        assert received.numpy().tolist() == [rank + 1 for rank in range(SIZE)]
        close(rows, np.repeat(np.arange(SIZE), np.arange(SIZE) + 1)[:, None] * np.ones(2))
    assert not isinstance(hvd.alltoall(tf.ones(SIZE)), (list, tuple))
    for wrong in ([1] * (SIZE + 1), [SIZE + 1] * SIZE, [-1] * SIZE):
        for call in (hvd.alltoall, tf.function(hvd.alltoall)):
            raised(tf.errors.InvalidArgumentError, lambda: call(tf.ones(SIZE), wrong))  # noqa: B023
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum), [SIZE])


def check_mismatches_have_horovods_class() -> None:
    if SIZE == 1:
        return
    calls = [
        lambda: hvd.allreduce(tf.ones(3 + min(RANK, 1)), name="shape"),
        lambda: hvd.allreduce(tf.ones(3, tf.float32 if RANK else tf.int32), op=hvd.Sum, name="dtype"),
        lambda: hvd.broadcast(tf.ones(3), min(RANK, 1), "root"),
        lambda: hvd.allgather(tf.ones((2, 2 + min(RANK, 1))), "columns"),
    ]
    for call in calls:
        eager = raised(tf.errors.FailedPreconditionError, call)
        assert isinstance(eager, rdmacoll.MismatchError)
        raised(tf.errors.FailedPreconditionError, tf.function(call))
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum), [SIZE])


def check_wrong_arguments_have_horovods_class() -> None:
    raised(ValueError, lambda: hvd.allreduce(tf.ones(1), average=True, op=hvd.Sum))
    raised(ValueError, lambda: rdmacoll.keras.allreduce(1.0, average=False, op=hvd.Sum))
    raised(ValueError, lambda: hvd.allreduce(tf.ones(1), op=7))
    raised(NotImplementedError, lambda: hvd.reducescatter(tf.ones(1), op=2))
    raised(RuntimeError, lambda: hvd.broadcast_global_variables(0))
    assert hvd.grouped_allreduce([]) == []
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum), [SIZE])


def check_a_call_that_one_rank_refuses_shifts_nothing() -> None:
    if SIZE == 1:
        return
    if RANK == 0:
        raised(ValueError, lambda: hvd.allreduce(tf.ones(2), average=True, op=hvd.Sum))
    else:
        raised(rdmacoll.RdmacollError, lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum), [SIZE])


def check_a_group_that_one_rank_has_empty_shifts_nothing() -> None:
    if SIZE == 1:
        return
    rows = tf.ones((SIZE, 2))
    for grouped in hvd.grouped_allreduce, hvd.grouped_reducescatter, hvd.grouped_allgather:
        if RANK == 0:
            assert grouped([]) == []
        else:
            text = str(raised(rdmacoll.MismatchError, lambda: grouped([rows])))  # noqa: B023
            assert "the group has no tensors" in text, text
        close(hvd.allreduce(rows, op=hvd.Sum), np.full((SIZE, 2), SIZE))


class _Halves:
    """A compressor as users of Horovod write them."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tf.cast(tensor / 2, tf.float64), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx) * 2


def check_compressors_of_users_and_of_horovods_names_are_used() -> None:
    x = own_data((3,))
    total = np.sum(all_values((3,)), axis=0)
    for compression, dtype in ((_Halves, "float32"), (hvd.Compression.fp16, "float16")):
        for result in both(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=compression), x):  # noqa: B023
            assert result.dtype == tf.float32
            close(result, total, dtype)
    packed, context = hvd.Compression.fp16.compress(x)
    assert packed.dtype == tf.float16
    assert hvd.Compression.fp16.decompress(packed, context).dtype == tf.float32


def check_variables_are_broadcast_in_place() -> None:
    for inplace in (False, True):
        variables = [tf.Variable([float(RANK)]), tf.Variable(RANK)]
        hvd.broadcast_variables(variables, SIZE - 1, inplace=inplace)
        assert [float(one) for one in (variables[0][0], variables[1])] == [SIZE - 1, SIZE - 1]
    variables = [tf.Variable(float(RANK))]
    close(hvd.broadcast_(variables, 0)[0], 0.0)


def check_join_is_an_op_that_returns_the_last_rank() -> None:
    for join in (hvd.join, tf.function(lambda: hvd.join())):
        if RANK == SIZE - 1:
            close(hvd.allreduce(tf.ones(2), op=hvd.Sum), [1, 1])
        last = join()
        assert last.dtype == tf.int32
        assert int(last) == SIZE - 1


run_all(globals())
