"""Tests the ops in which ranks give or get different parts. The argument is the number of inter-op
threads."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from tf_common import REDUCE, all_values, close, expected, own_data, raised, run_all, value

import rdmacoll
from rdmacoll.cli.references import rows_of
from rdmacoll.ops import (
    allgather,
    alltoall,
    gather,
    grouped_allgather,
    grouped_reducescatter,
    reduce,
    reducescatter,
    scatter,
)

tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
ROOT = SIZE // 2
MOVED = ("float32", "bool", "uint16", "int64", "bfloat16", "complex128")


def both_ways(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Returns the function for eager code, and as a graph with unknown shapes."""
    return [function, tf.function(function, reduce_retracing=True)]


def splits_of(rank: int) -> list[int]:
    """Returns how many rows `rank` gives to each rank. Some counts are 0."""
    return [(rank * 2 + peer) % 3 for peer in range(SIZE)]


def pieces(dtype: str) -> list[np.ndarray]:
    """Returns the rows that every rank has for this rank."""
    found = []
    for rank in range(SIZE):
        ends = np.cumsum(splits_of(rank))
        rows = value(rank, (int(ends[-1]), 2), dtype)
        found.append(rows[ends[RANK] - splits_of(rank)[RANK] : ends[RANK]])
    return found


def check_reducescatters_every_op() -> None:
    for dtype in ("int32", "int64", "float16", "float32", "float64"):
        for op in REDUCE:
            if op == rdmacoll.Average and dtype.startswith("int"):
                continue
            for shape in ((0,), (1,), (SIZE + 1, 2), (70,)):
                for call in both_ways(functools.partial(reducescatter, op=op)):
                    wanted = expected(op, shape, dtype)[rows_of(shape[0], RANK, SIZE)]
                    result = call(own_data(shape, dtype))
                    assert result.dtype.name == dtype
                    assert tuple(result.shape) == wanted.shape
                    close(result, wanted, dtype)


def check_sums_travel_as_16_bits() -> None:
    rows = rows_of(SIZE + 1, RANK, SIZE)
    for compression, tolerance in ((rdmacoll.Compression.fp16, 1e-2), (rdmacoll.Compression.bf16, 1e-1)):
        call = functools.partial(reducescatter, op=rdmacoll.Sum, compression=compression)
        for run in both_ways(call):
            result = run(own_data((SIZE + 1, 2)))
            assert result.dtype == tf.float32
            wanted = expected(rdmacoll.Sum, (SIZE + 1, 2), "float32")[rows]
            np.testing.assert_allclose(result.numpy(), wanted, atol=tolerance * SIZE)


def check_rows_may_change_once_they_are_planned() -> None:
    """Repeated operations run by a plan, without control messages. A rank with other row counts ends the
    plan.

    Its peers then replay the operations that they have begun with the old counts."""

    @tf.function(reduce_retracing=True)
    def step(rows: Any, parts: Any, splits: Any) -> Any:
        return allgather(rows, name="planned rows"), alltoall(parts, splits, name="planned parts")

    def messages(more: int, more_of_one: int) -> int:
        """Checks the results of a step and returns its control messages.

        more, more_of_one: the additional rows of each rank, and of the last rank."""
        before = rdmacoll.metrics()["control_messages"]
        counts = [rank + 1 + more for rank in range(SIZE)]
        counts[-1] += more_of_one
        rows = [value(rank, (count, 2)) for rank, count in enumerate(counts)]
        parts = [value(rank, (count * SIZE,)) for rank, count in enumerate(counts)]
        gathered, (received, received_splits) = step(
            tf.constant(rows[RANK]), tf.constant(parts[RANK]), tf.constant([counts[RANK]] * SIZE)
        )
        close(gathered, np.concatenate(rows))
        close(received, np.concatenate([part.reshape(SIZE, -1)[RANK] for part in parts]))
        assert received_splits.numpy().tolist() == counts
        return rdmacoll.metrics()["control_messages"] - before

    def settles(more: int, more_of_one: int) -> bool:
        # A plan ends early if a rank does not run for a second.
        return 0 in [sum(messages(more, more_of_one) for _ in range(4)) for _ in range(12)]

    assert settles(0, 0)
    assert SIZE == 1 or messages(0, 5) > 0
    messages(0, 0)
    messages(0, 1)
    assert settles(0, 7)
    assert SIZE == 1 or messages(2, 7) > 0
    assert settles(2, 7)


def check_reduces_to_the_root() -> None:
    for op in REDUCE:
        for shape in ((), (0,), (5, 2), (20_000,)):
            for call in both_ways(functools.partial(reduce, root_rank=ROOT, op=op)):
                wanted = expected(op, shape, "float32") if RANK == ROOT else np.zeros(shape)
                close(call(own_data(shape) * 1.0), wanted)


def check_alltoalls_with_and_without_splits() -> None:
    for dtype in MOVED:
        sent = own_data((sum(splits_of(RANK)), 2), dtype)
        for call in both_ways(alltoall):
            result, received = call(sent, tf.constant(splits_of(RANK)))
            np.testing.assert_array_equal(result.numpy(), np.concatenate(pieces(dtype)))
            assert received.numpy().tolist() == [splits_of(rank)[RANK] for rank in range(SIZE)]
            even = call(own_data((SIZE, 3), dtype))
            right = np.stack([rows[RANK] for rows in all_values((SIZE, 3), dtype)])
            np.testing.assert_array_equal(even.numpy(), right)


def check_gathers_and_scatters() -> None:
    for dtype in MOVED:
        for call in both_ways(functools.partial(gather, root_rank=ROOT)):
            rows = [value(rank, (rank + 1, 2), dtype) for rank in range(SIZE)]
            wanted = np.concatenate(rows) if RANK == ROOT else np.zeros((0, 2))
            result = call(tf.constant(rows[RANK]))
            assert tuple(result.shape) == wanted.shape
            np.testing.assert_array_equal(result.numpy(), wanted)
        whole = value(ROOT, (7, 2), dtype)
        sources = tf.constant(whole) if RANK == ROOT else tf.zeros((0, 2), dtype)
        for call in both_ways(functools.partial(scatter, root_rank=ROOT)):
            np.testing.assert_array_equal(call(sources).numpy(), whole[rows_of(7, RANK, SIZE)])
            splits = [0] * (SIZE - 1) + [7]
            result = call(sources, splits=tf.constant(splits))
            np.testing.assert_array_equal(result.numpy(), whole if RANK == SIZE - 1 else whole[:0])
    assert gather(tf.constant(RANK), 0).shape == ((SIZE,) if RANK == 0 else (0,))


def check_groups_of_mixed_dtypes() -> None:
    shapes = [((3, 2), "float32"), ((2,), "float64"), ((0, 3), "float32"), ((SIZE,), "int32")]
    tensors = [own_data(shape, dtype, salt=i) for i, (shape, dtype) in enumerate(shapes)]
    for name in (None, "group"):
        parts = grouped_reducescatter(tensors, rdmacoll.Sum, name)
        *wholes, flags = grouped_allgather([*tensors, own_data((2, 3), "bool")], name)
        np.testing.assert_array_equal(flags.numpy(), np.concatenate(all_values((2, 3), "bool")))
        for i, (shape, dtype) in enumerate(shapes):
            close(
                parts[i], expected(rdmacoll.Sum, shape, dtype, salt=i)[rows_of(shape[0], RANK, SIZE)], dtype
            )
            close(wholes[i], np.concatenate(all_values(shape, dtype, salt=i)), dtype)
    assert grouped_reducescatter([]) == grouped_allgather([]) == []


def check_shapes_are_known_while_tracing() -> None:
    @tf.function(input_signature=[tf.TensorSpec([4, None, 3])])
    def step(x: Any) -> Any:
        exchanged, received = alltoall(x, tf.constant([4] + [0] * (SIZE - 1)))
        parts = grouped_reducescatter([x, x[0]], rdmacoll.Sum)
        return exchanged, received, *parts, scatter(x, 0), gather(x, 0), reduce(x, 0)

    shapes = [out.shape.as_list() for out in step.get_concrete_function().structured_outputs]
    rows = [None, None, 3]
    assert shapes == [rows, [None], rows, [None, 3], rows, rows, [4, None, 3]], shapes


def check_loops_and_branches() -> None:
    @tf.function
    def step(x: Any) -> Any:
        def body(row: Any) -> Any:
            whole = allgather(reducescatter(row, rdmacoll.Sum))
            return alltoall(alltoall(whole)) + reduce(row, 0, rdmacoll.Sum) * 0.0

        return tf.map_fn(body, x, parallel_iterations=4)

    shape = (6, 2 * SIZE)
    close(step(own_data(shape)), expected(rdmacoll.Sum, shape, "float32"))


def slope(function: Callable[[Any], Any], x: Any, weight_of: Callable[[Any], Any]) -> Any:
    """Returns the gradient of a weighted sum of `function(x)`. `weight_of` makes the weights from its
    shape."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
        loss = tf.reduce_sum(y * weight_of(tf.shape(y)))
    return tape.gradient(loss, x)


def numbered(shape: Any) -> Any:
    """Returns weights that differ between ranks and positions."""
    count = tf.reduce_prod(shape)
    return tf.reshape(tf.range(1.0, tf.cast(count, tf.float32) + 1.0), shape) * (RANK + 1.0)


def weights(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1.0, np.prod(shape) + 1.0).reshape(shape) * (rank + 1.0)


def close_slopes(name: str, function: Callable[[Any], Any], x: Any, wanted: np.ndarray) -> None:
    for run in (slope, tf.function(slope)):
        print(f"rank {RANK}: gradient of {name}", flush=True)
        close(run(function, x, numbered), wanted)


def check_gradients_of_sums() -> None:
    rows = SIZE + 2
    parts = [rows_of(rows, rank, SIZE) for rank in range(SIZE)]
    gathered = np.concatenate([weights(rank, (part.stop - part.start, 2)) for rank, part in enumerate(parts)])
    x = own_data((rows, 2))
    scaled = {"op": rdmacoll.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0}
    close_slopes("reducescatter", lambda x: reducescatter(x, rdmacoll.Sum), x, gathered)
    close_slopes("its average", lambda x: reducescatter(x), x, gathered / SIZE)
    close_slopes("scaled", lambda x: reducescatter(x, **scaled), x, gathered * 1.5)
    close_slopes("a group", lambda x: grouped_reducescatter([x, x * 2.0], rdmacoll.Sum)[1], x, gathered * 2)
    at_root = weights(ROOT, (rows, 2))
    close_slopes("reduce", lambda x: reduce(x, ROOT, rdmacoll.Sum), x, at_root)
    close_slopes("its average", lambda x: reduce(x, ROOT), x, at_root / SIZE)
    for function in (
        lambda x: reducescatter(x, rdmacoll.Product),
        lambda x: reducescatter(x, rdmacoll.Max, prescale_factor=2.0),
        lambda x: reduce(x, 0, rdmacoll.Product),
    ):
        error = raised(rdmacoll.ConfigError, lambda f=function: slope(f, x, numbered))
        assert "has no gradient" in str(error)


def check_gradients_of_moves() -> None:
    # Each of this rank's rows has the weight of its place on the receiving rank.
    begins = [
        np.cumsum([0, *[splits_of(giver)[taker] for giver in range(SIZE)]])[RANK] for taker in range(SIZE)
    ]
    wanted = [
        weights(taker, (sum(splits_of(giver)[taker] for giver in range(SIZE)), 2))[
            begin : begin + splits_of(RANK)[taker]
        ]
        for taker, begin in enumerate(begins)
    ]
    x = own_data((sum(splits_of(RANK)), 2))
    close_slopes("alltoall", lambda x: alltoall(x, splits_of(RANK))[0], x, np.concatenate(wanted))

    rows = [rank + 1 for rank in range(SIZE)]
    begin = sum(rows[:RANK])
    wanted_rows = weights(ROOT, (sum(rows), 2))[begin : begin + rows[RANK]]
    close_slopes("gather", lambda x: gather(x, ROOT), own_data((rows[RANK], 2)), wanted_rows)
    close_slopes("gather of scalars", lambda x: gather(x, ROOT), own_data(()), weights(ROOT, (SIZE,))[RANK])

    splits = [(rank * 3 + 1) % 4 for rank in range(SIZE)]
    total = sum(splits)
    gathered = np.concatenate([weights(rank, (splits[rank], 2)) for rank in range(SIZE)])
    wanted_root = gathered if RANK == ROOT else np.zeros((total, 2))
    close_slopes("scatter", lambda x: scatter(x, ROOT, splits), own_data((total, 2)), wanted_root)

    pair = grouped_allgather([tf.ones((RANK, 2)), tf.ones((2, 1))])
    assert [tuple(tensor.shape) for tensor in pair] == [(sum(range(SIZE)), 2), (2 * SIZE, 1)]
    both = [weights(rank, (2 * SIZE, 1)) for rank in range(SIZE)]
    close_slopes(
        "a grouped allgather",
        lambda x: grouped_allgather([tf.ones((RANK, 2)), x])[1],
        own_data((2, 1)),
        sum(both)[2 * RANK : 2 * RANK + 2],
    )


def check_gradients_in_loops() -> None:
    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.map_fn(lambda row: alltoall(row) ** 2, x, parallel_iterations=4)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    close(step(own_data((5, SIZE))), 2 * value(RANK, (5, SIZE)))


def check_what_is_wrong_is_refused() -> None:
    scalar = tf.constant(1.0)
    for call in (lambda: alltoall(scalar), lambda: reducescatter(scalar), lambda: scatter(scalar, 0)):
        assert "a scalar has none" in str(raised(rdmacoll.ConfigError, call))
    for splits in ([1.5], [[1]], []):
        error = raised(rdmacoll.ConfigError, lambda s=splits: alltoall(tf.ones(SIZE), s))
        assert "splits=" in str(error)
    error = raised(rdmacoll.ConfigError, lambda: alltoall(tf.ones(SIZE), [1] * (SIZE + 1)))
    assert f"splits has {SIZE + 1} numbers" in str(error)
    error = raised(rdmacoll.ConfigError, lambda: alltoall(tf.ones(SIZE), [2] * SIZE))
    assert f"are {2 * SIZE} rows together, but the tensor has {SIZE}" in str(error)
    for call in (lambda: reduce(scalar, SIZE), lambda: gather(scalar, -1), lambda: scatter([1.0], "0")):
        assert "root_rank=" in str(raised(rdmacoll.ConfigError, call))
    if SIZE > 1:
        error = raised(rdmacoll.MismatchError, lambda: gather(tf.ones((1, 2 + RANK)), 0))
        assert "(-1, 2)" in str(error)
        assert "(-1, 3)" in str(error)


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
