"""Tests the TensorFlow ops on real ranks. Argument: the number of inter-op threads."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import (
    REDUCE,
    TOLERANCE,
    all_values,
    close,
    equal_on_all_ranks,
    expected,
    own_data,
    raised,
    run_all,
    value,
)

import rdmacoll
from rdmacoll.ops import (
    allgather,
    allreduce,
    broadcast,
    broadcast_,
    broadcast_variables,
    grouped_allreduce,
    grouped_broadcast,
)

tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()


def check_sums_on_every_rank() -> None:
    for dtype in ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"):
        for op in REDUCE:
            if op == rdmacoll.Average and dtype not in TOLERANCE:
                continue
            for shape in ((), (0,), (5,), (3, 4, 2)):
                result = allreduce(own_data(shape, dtype), op=op)
                assert result.dtype.name == dtype
                assert tuple(result.shape) == shape
                close(result, expected(op, shape, dtype), dtype)
                assert equal_on_all_ranks([result.numpy()])


def check_scales_in_double() -> None:
    result = allreduce(own_data((7,), "float64"), op=rdmacoll.Sum, prescale_factor=0.1, postscale_factor=0.3)
    close(result, expected(rdmacoll.Sum, (7,), "float64") * 0.1 * 0.3, "float64")


def check_groups_of_mixed_dtypes() -> None:
    shapes = [((3,), "float32"), ((2, 2), "float64"), ((), "float32"), ((0, 3), "float64"), ((1,), "float32")]
    tensors = [own_data(shape, dtype, salt=i) for i, (shape, dtype) in enumerate(shapes)]
    for name in (None, "group"):
        results = grouped_allreduce(tensors, name=name)
        for i, (shape, dtype) in enumerate(shapes):
            close(results[i], expected(rdmacoll.Average, shape, dtype, salt=i), dtype)
    assert grouped_allreduce([]) == []


def check_many_steps_of_a_function() -> None:
    @tf.function
    def step(x: Any, y: Any) -> Any:
        total = allreduce(x * 2.0, op=rdmacoll.Sum)
        mean = allreduce(y)
        return total + mean, *grouped_allreduce([x, y, total])

    for salt in range(20):
        results = step(own_data((50,), salt=salt), own_data((50,), salt=salt + 100))
        sums = expected(rdmacoll.Sum, (50,), "float32", salt=salt)
        means = expected(rdmacoll.Average, (50,), "float32", salt=salt + 100)
        close(results[0], sums * 2 + means)
        close(results[1], sums / SIZE)
        close(results[2], means)
        close(results[3], sums * 2)


def check_loops_with_parallel_iterations() -> None:
    rows = 24

    def body(row: Any) -> Any:
        # Each rank's rows become ready in another order.
        work = tf.cast(tf.reduce_sum(row[1:]), tf.int32)
        slow = tf.reduce_sum(tf.random.stateless_uniform([1 + work * 2000], seed=(1, 2)))
        return allreduce(row[:1] + 0.0 * slow, op=rdmacoll.Sum)

    @tf.function
    def step(x: Any) -> Any:
        return tf.map_fn(body, x, parallel_iterations=8)

    order = np.random.default_rng(RANK).permutation(rows)
    for salt in range(5):
        x = np.concatenate([value(RANK, (rows, 1), salt=salt), order[:, None]], axis=1)
        close(step(tf.constant(x, tf.float32)), expected(rdmacoll.Sum, (rows, 1), "float32", salt=salt))


def check_named_ops_in_loops() -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tf.map_fn(lambda row: allreduce(row, name="row", op=rdmacoll.Max), x, parallel_iterations=4)

    for salt in range(3):
        close(step(own_data((9, 2), salt=salt)), expected(rdmacoll.Max, (9, 2), "float32", salt=salt))

    @tf.function
    def count(steps: Any) -> Any:
        total = tf.zeros([])
        for i in tf.range(steps):
            total = allreduce(total + tf.cast(i + RANK, tf.float32), op=rdmacoll.Sum, name="count")
        return total

    wanted = 0.0
    for i in range(4):
        wanted = SIZE * (wanted + i) + SIZE * (SIZE - 1) / 2
    close(count(tf.constant(4)), wanted)


def check_order_may_differ_by_rank() -> None:
    names = [f"ordered {i}" for i in range(12)]
    order = np.random.default_rng(100 + RANK).permutation(len(names))

    def delayed(x: Any, seconds: float) -> Any:
        return tf.numpy_function(lambda a: (time.sleep(seconds), a)[1], [x], tf.float32, stateful=False)

    @tf.function
    def step(x: Any) -> Any:
        results: dict[int, Any] = {}
        for place, i in enumerate(order):  # traced in another order, and ready in another order
            ready = tf.ensure_shape(delayed(x[i], 0.002 * ((place * 7) % 5)), [3])
            results[int(i)] = allreduce(ready, op=rdmacoll.Sum, name=names[i])
        return tf.stack([results[i] for i in range(len(names))])

    for salt in range(4):
        close(step(own_data((12, 3), salt=salt)), expected(rdmacoll.Sum, (12, 3), "float32", salt=salt))


def check_a_result_that_one_rank_ignores() -> None:
    @tf.function
    def step(x: Any) -> Any:
        total = allreduce(x, op=rdmacoll.Sum)
        return total if RANK == 0 else x

    result = step(own_data((4,)))
    close(result, expected(rdmacoll.Sum, (4,), "float32") if RANK == 0 else own_data((4,)))


def check_retraces_and_nested_functions() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return allreduce(x, op=rdmacoll.Sum)

    @tf.function
    def outer(x: Any) -> Any:
        return inner(x) + inner(x * 2.0) + allreduce(x, op=rdmacoll.Sum)

    for shape in ((3,), (5,), (2, 2), (3,)):
        close(inner(own_data(shape)), expected(rdmacoll.Sum, shape, "float32"))
        close(outer(own_data(shape)), expected(rdmacoll.Sum, shape, "float32") * 4)

    traced_alone = tf.function(lambda x, n: allreduce(x, op=rdmacoll.Sum) + n)
    if RANK == 0:
        traced_alone.get_concrete_function(tf.TensorSpec([7]), 5)
        tf.function(inner.python_function).get_concrete_function(tf.TensorSpec([None]))
    close(traced_alone(own_data((3,)), 0), expected(rdmacoll.Sum, (3,), "float32"))


def check_copies_of_a_function_in_another_order_on_each_rank() -> None:
    """Tests operations of one size, which differ in their kind alone."""
    calls = 6
    order = np.random.default_rng(200 + RANK).permutation(calls)

    def delayed(x: Any, turn: Any) -> Any:
        wait = lambda a, turns: (time.sleep(0.003 * turns), a)[1]  # noqa: E731
        return tf.ensure_shape(tf.numpy_function(wait, [x, turn], tf.float32, stateful=False), x.shape)

    @tf.function
    def plain(x: Any, turn: Any) -> Any:
        return allreduce(delayed(x, turn), op=rdmacoll.Sum)

    def row_by_row(x: Any, turns: Any, call: Any) -> Any:
        return tf.map_fn(
            lambda row: call(*row), (x, turns), fn_output_signature=x.dtype, parallel_iterations=8
        )

    looped = tf.function(lambda x, turns: row_by_row(x, turns, plain))

    @tf.function
    def copies(x: Any, turns: Any) -> Any:
        return tf.stack([plain(x[i], turns[i]) for i in range(calls)])

    @tf.function
    def copies_of_loops(x: Any, turns: Any) -> Any:
        return tf.stack([looped(x[i], (turns + i) % calls) for i in range(calls)])

    @tf.function
    def nested_loops(x: Any, turns: Any) -> Any:
        all_turns = (turns[:, None] + turns[None, :]) % calls
        return row_by_row(x, all_turns, lambda row, row_turns: row_by_row(row, row_turns, plain))

    for salt in range(3):
        turns = tf.constant((order + salt) % calls, tf.int64)
        close(
            copies(own_data((calls, 3), salt=salt), turns),
            expected(rdmacoll.Sum, (calls, 3), "float32", salt=salt),
        )
        for step in (copies_of_loops, nested_loops):
            shape = (calls, calls, 2)
            result = step(own_data(shape, salt=salt), turns)
            close(result, expected(rdmacoll.Sum, shape, "float32", salt=salt))


def check_gathers_ragged_pieces() -> None:
    for dtype in ("float32", "bool", "uint16", "uint32", "uint64", "int16", "complex64", "complex128"):
        pieces = [value(rank, (rank * 2 % 3, 2), dtype) for rank in range(SIZE)]
        for call in (allgather, tf.function(allgather)):
            result = call(tf.constant(pieces[RANK]))
            np.testing.assert_array_equal(result.numpy(), np.concatenate(pieces))
    np.testing.assert_array_equal(allgather(tf.constant(RANK)).numpy(), np.arange(SIZE))
    assert allgather(tf.zeros((0, 3))).shape == (0, 3)


def check_broadcasts_every_dtype() -> None:
    dtypes = (
        "uint8 int8 int32 int64 float16 bfloat16 float32 float64 bool uint16 uint32 uint64 int16 complex64 "
        "complex128"
    )
    for number, dtype in enumerate(dtypes.split()):
        root = number % SIZE
        for call in (broadcast, tf.function(functools.partial(broadcast))):
            for shape in ((), (0,), (3, 2)):
                result = call(own_data(shape, dtype), root)
                np.testing.assert_array_equal(result.numpy(), value(root, shape, dtype))


def check_variables_get_the_roots_values() -> None:
    dtypes = ("float32", "bool", "int64", "uint32", "float16", "float32", "bfloat16")
    variables = [tf.Variable(own_data((3,), dtype, salt=i)) for i, dtype in enumerate(dtypes)]
    broadcast_variables(variables, root_rank=SIZE - 1)
    for i, dtype in enumerate(dtypes):
        np.testing.assert_array_equal(variables[i].numpy(), value(SIZE - 1, (3,), dtype, salt=i))
    for call in (broadcast_, tf.function(lambda sources, root, name: broadcast_(sources, root, name))):
        for i, dtype in enumerate(dtypes):
            variables[i].assign(own_data((3,), dtype, salt=i + 10))
        results = call(variables, 0, "in place")
        for i, dtype in enumerate(dtypes):
            wanted = value(0, (3,), dtype, salt=i + 10)
            np.testing.assert_array_equal(variables[i].numpy(), wanted)
            np.testing.assert_array_equal(results[i].numpy(), wanted)
    tensors = [own_data((i, 2), dtype, salt=i) for i, dtype in enumerate(dtypes)]
    for i, copy in enumerate(grouped_broadcast(tensors, SIZE - 1)):
        np.testing.assert_array_equal(copy.numpy(), value(SIZE - 1, (i, 2), dtypes[i], salt=i))
    assert grouped_broadcast([], 0) == []


def check_gradients() -> None:
    weights = [value(rank, (4,), salt=50) for rank in range(SIZE)]

    def slope(function: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = tf.reduce_sum(y * weights[RANK])
        return tape.gradient(loss, x)

    total = np.sum(weights, axis=0)
    every = np.stack(all_values((4,)))
    hit_max = (every == every.max(axis=0))[RANK]
    hit_min = (every == every.min(axis=0))[RANK]
    cases = {
        "sum": (lambda x: allreduce(x, op=rdmacoll.Sum), total),
        "average": (lambda x: allreduce(x), total / SIZE),
        "scaled": (
            lambda x: allreduce(x, op=rdmacoll.Sum, prescale_factor=0.5, postscale_factor=3.0),
            total * 1.5,
        ),
        "max": (lambda x: allreduce(x, op=rdmacoll.Max), total * hit_max),
        "min": (lambda x: allreduce(x, op=rdmacoll.Min), total * hit_min),
        "group": (lambda x: grouped_allreduce([x, x * 2.0], op=rdmacoll.Sum)[1], total * 2),
        "broadcast": (lambda x: broadcast(x, SIZE - 1), total * (RANK == SIZE - 1)),
        "copies": (lambda x: grouped_broadcast([x, x * 2.0], SIZE - 1)[1], total * 2 * (RANK == SIZE - 1)),
    }
    for name, (function, wanted) in cases.items():
        for run in (slope, tf.function(slope)):
            print(f"rank {RANK}: gradient of {name}", flush=True)
            close(run(function, own_data((4,))), wanted)

    def gathered_loss(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = allgather(x)
            scale = tf.range(1.0, tf.cast(tf.shape(y)[0], tf.float32) + 1.0)
            loss = tf.reduce_sum(y * scale[:, None]) * (RANK + 1.0)
        return tape.gradient(loss, x)

    factor = SIZE * (SIZE + 1) / 2
    rows = [rank + 1 for rank in range(SIZE)]
    begin = sum(rows[:RANK])
    wanted = np.repeat(np.arange(begin + 1, begin + rows[RANK] + 1)[:, None], 2, axis=1) * factor
    for run in (gathered_loss, tf.function(gathered_loss)):
        close(run(own_data((rows[RANK], 2))), wanted)

    def scalar_loss(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(allgather(x) * tf.range(1.0, SIZE + 1.0))
        return tape.gradient(loss, x)

    close(scalar_loss(own_data(())), (RANK + 1.0) * SIZE)
    error = raised(
        rdmacoll.ConfigError, lambda: slope(lambda x: allreduce(x, op=rdmacoll.Product), own_data((4,)))
    )
    assert "no gradient" in str(error)


def check_gradients_in_loops() -> None:
    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.map_fn(lambda row: allreduce(row, op=rdmacoll.Sum) ** 2, x, parallel_iterations=4)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    total = expected(rdmacoll.Sum, (6, 2), "float32")
    close(step(own_data((6, 2))), 2 * total * SIZE)


def check_sparse_tensors() -> None:
    def slices(rank: int) -> tuple[np.ndarray, np.ndarray]:
        rows = rank + 1
        return value(rank, (rows, 2)), np.arange(rows) % 3

    dense = np.zeros((5, 2))
    for rank in range(SIZE):
        values, indices = slices(rank)
        np.add.at(dense, indices, values)

    def reduced(op: int) -> Any:
        values, indices = slices(RANK)
        sources = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([5, 2]))
        result = allreduce(sources, op=op)
        assert isinstance(result, tf.IndexedSlices)
        return tf.convert_to_tensor(result)

    for run in (reduced, tf.function(reduced)):
        close(run(rdmacoll.Sum), dense)
        close(run(rdmacoll.Average), dense / SIZE)
    assert "IndexedSlices" in str(raised(rdmacoll.ConfigError, lambda: reduced(rdmacoll.Max)))


def check_the_tape_averages() -> None:
    table = tf.Variable(value(0, (6, 3)))
    dense = tf.Variable(value(0, (3,), salt=1))
    unused = tf.Variable(1.0)
    rows = [np.array([rank, (rank + 1) % 6, 0]) for rank in range(SIZE)]

    def step() -> Any:
        with rdmacoll.DistributedGradientTape(tf.GradientTape()) as tape:
            picked = tf.gather(table, tf.constant(rows[RANK]))
            loss = tf.reduce_sum(picked * dense) * (RANK + 1.0)
        return tape.gradient(loss, {"table": table, "dense": dense, "unused": unused})

    wanted_dense = sum((r + 1.0) * table.numpy()[rows[r]].sum(axis=0) for r in range(SIZE)) / SIZE
    wanted_table = np.zeros((6, 3))
    for r in range(SIZE):
        np.add.at(wanted_table, rows[r], (r + 1.0) * np.tile(dense.numpy(), (3, 1)) / SIZE)
    for run in (step, tf.function(step)):
        for _ in range(3):
            gradients = run()
            assert gradients["unused"] is None
            assert isinstance(gradients["table"], tf.IndexedSlices)
            close(gradients["dense"], wanted_dense)
            close(tf.convert_to_tensor(gradients["table"]), wanted_table)
    tape = rdmacoll.DistributedGradientTape(tf.GradientTape())
    raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedGradientTape(tape))
    raised(rdmacoll.ConfigError, lambda: rdmacoll.DistributedGradientTape(object()))


def check_kept_outputs_may_fill_the_pool() -> None:
    elements = 32 << 18  # 32 MiB each; together more than half of the pool
    source = tf.fill((elements,), float(RANK + 1))
    step = tf.function(lambda x: allreduce(x, op=rdmacoll.Sum, name="kept"))
    KEPT.extend(step(source) for _ in range(20))


KEPT: list[Any] = []

if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
    for stored in KEPT:  # the memory of a tensor outlives the engine that lent it
        assert float(tf.reduce_min(stored)) == float(tf.reduce_max(stored)) == SIZE * (SIZE + 1) / 2
