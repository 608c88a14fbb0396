"""Tests Min and Max as TensorFlow ops on real ranks: of booleans, and their gradients. It also tests sums for
the root alone, sent as 16 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import all_values, close, equal_on_all_ranks, expected, own_data, raised, run_all, value

import rdmacoll
from rdmacoll import Compression, Max, Min
from rdmacoll.cli.references import rows_of
from rdmacoll.ops import allreduce, grouped_allreduce, grouped_reducescatter, reduce, reducescatter

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
ROOT = SIZE // 2
LOGICAL = {Min: np.logical_and, Max: np.logical_or}
WHOLE = {Min: tf.reduce_min, Max: tf.reduce_max}
ROWS = SIZE + 2
MINE = rows_of(ROWS, RANK, SIZE)


def both_ways(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [function, tf.function(function)]


def check_booleans_are_anded_and_ored() -> None:
    for shape in ((), (0,), (5,), (3, 4, 2), (70_000,)):
        values = all_values(shape, "bool")
        for op, logical in LOGICAL.items():
            wanted = logical.reduce(values)
            for call in both_ways(functools.partial(allreduce, op=op)):
                result = call(own_data(shape, "bool"))
                assert result.dtype == tf.bool
                np.testing.assert_array_equal(result.numpy(), wanted)
                assert equal_on_all_ranks([result.numpy()])
            for call in both_ways(functools.partial(reduce, root_rank=ROOT, op=op)):
                result = call(own_data(shape, "bool"))
                np.testing.assert_array_equal(result.numpy(), wanted & (RANK == ROOT))
    values = all_values((ROWS, 3), "bool")
    for op, logical in LOGICAL.items():
        for call in both_ways(functools.partial(reducescatter, op=op)):
            np.testing.assert_array_equal(
                call(own_data((ROWS, 3), "bool")).numpy(), logical.reduce(values)[MINE]
            )


def check_booleans_are_in_groups() -> None:
    sources = [own_data((4,), "bool"), own_data((4,)), own_data((ROWS,), "bool", salt=1)]
    for call in both_ways(functools.partial(grouped_allreduce, op=Max, compression=Compression.bf16)):
        first, floats, last = call(sources)
        np.testing.assert_array_equal(first.numpy(), np.any(all_values((4,), "bool"), axis=0))
        np.testing.assert_array_equal(last.numpy(), np.any(all_values((ROWS,), "bool", salt=1), axis=0))
        close(floats, expected(Max, (4,), "float32"), "bfloat16")
    parts = grouped_reducescatter([sources[2], own_data((ROWS,))], op=Min)
    np.testing.assert_array_equal(parts[0].numpy(), np.all(all_values((ROWS,), "bool", salt=1), axis=0)[MINE])


def check_there_is_no_sum_of_booleans() -> None:
    flags = own_data((ROWS,), "bool")
    for op in (rdmacoll.Sum, rdmacoll.Average, rdmacoll.Product):
        for call in (allreduce, reducescatter, functools.partial(reduce, root_rank=0)):
            error = raised(rdmacoll.ConfigError, lambda c=call, o=op: c(flags, op=o))
            assert str(error) == (
                f"{op} of bool is not defined: use op=rdmacoll.Max for 'any', op=rdmacoll.Min for 'all', or "
                "cast to int32."
            )


def tied(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns values. Some of them are equal on several ranks, and some on all."""
    values = value(rank, shape, dtype)
    values.reshape(-1)[::3] = 7.0
    values.reshape(-1)[1::3] = -(rank // 2)
    return values


def weight_of(rank: int, shape: Any, dtype: str) -> Any:
    """Returns the weights of the sum that is the loss of rank `rank`."""
    count = tf.cast(tf.reduce_prod(shape), tf.float32)
    return tf.cast(tf.reshape(tf.range(1.0, count + 1.0), shape) * (rank + 1.0), dtype)


def slope(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
        loss = tf.reduce_sum(y * weight_of(RANK, tf.shape(y), x.dtype.name))
    return tape.gradient(loss, x)


def slope_in_one_process(op: int, part_of: Callable[[int], Any], dtype: str) -> Any:
    """Returns the gradient of the sum of all ranks' losses with respect to this rank's values.

    The loss of rank r covers the rows `part_of(r)` of the extremum, if it has any."""
    values = [tf.constant(tied(rank, (ROWS, 2), dtype)) for rank in range(SIZE)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        best = WHOLE[op](tf.stack(values), axis=0)
        loss = tf.zeros((), dtype)
        for rank in range(SIZE):
            part = best[part_of(rank)]
            loss += tf.reduce_sum(part * weight_of(rank, tf.shape(part), dtype))
    return tape.gradient(loss, values)[RANK]


def everything(_: int) -> slice:
    return slice(0, ROWS)


def at_the_root(rank: int) -> slice:
    return slice(0, ROWS if rank == ROOT else 0)


def rows(rank: int) -> slice:
    return rows_of(ROWS, rank, SIZE)


def check_gradients_go_to_the_extrema() -> None:
    calls: list[tuple[str, Callable[..., Any], Callable[[int], slice]]] = [
        ("allreduce", allreduce, everything),
        ("grouped_allreduce", lambda x, op: grouped_allreduce([x * 2.0, x], op)[1], everything),
        ("reduce", lambda x, op: reduce(x, ROOT, op), at_the_root),
        ("reducescatter", reducescatter, rows),
        ("grouped_reducescatter", lambda x, op: grouped_reducescatter([x + 1.0, x], op)[1], rows),
    ]
    for dtype in ("float32", "float64"):
        x = tf.constant(tied(RANK, (ROWS, 2), dtype))
        for name, call, part_of in calls:
            for op in (Min, Max):
                wanted = slope_in_one_process(op, part_of, dtype)
                for run in both_ways(functools.partial(slope, lambda x, c=call, o=op: c(x, op=o))):
                    print(f"rank {RANK}: gradient of {op} by {name}", flush=True)
                    found = run(x)
                    assert found.dtype == x.dtype
                    close(found, wanted, dtype)


def check_gradients_in_loops_and_of_groups() -> None:
    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            parts = tf.map_fn(lambda row: reducescatter(row, Max) * 2.0, x, parallel_iterations=4)
            loss = tf.reduce_sum(parts) + tf.reduce_sum(reduce(x, 0, Min))
        return tape.gradient(loss, x)

    shape = (5, SIZE * 2)
    every = np.stack(all_values(shape))
    close(step(own_data(shape)), 2.0 * (every[RANK] == every.max(0)) + (every[RANK] == every.min(0)))


def check_scaled_extrema_have_no_gradient() -> None:
    for call in (allreduce, reducescatter, functools.partial(reduce, root_rank=0)):
        for options in ({"op": Max, "prescale_factor": 2.0}, {"op": rdmacoll.Product}):
            function = functools.partial(call, **options)
            error = raised(rdmacoll.ConfigError, lambda f=function: slope(f, own_data((ROWS,))))
            assert "has no gradient" in str(error)


def check_a_reduce_travels_as_16_bits() -> None:
    for compression, dtype in ((Compression.fp16, "float16"), (Compression.bf16, "bfloat16")):
        for op in (rdmacoll.Sum, rdmacoll.Average, Max):
            call = functools.partial(reduce, root_rank=ROOT, op=op, compression=compression)
            for run in both_ways(call):
                result = run(own_data((40,)))
                assert result.dtype == tf.float32
                close(result, expected(op, (40,), "float32") * (RANK == ROOT), dtype)
        call = functools.partial(reduce, root_rank=ROOT, op=rdmacoll.Sum, compression=compression)
        weights = weight_of(ROOT, (ROWS, 2), "float32")
        close(slope(lambda x, c=call: c(x), own_data((ROWS, 2))), weights, dtype)
        whole = reduce(tf.constant([60000.0]), ROOT, compression=Compression.fp16)  # no overflow on the way
        close(whole, [60000.0 * (RANK == ROOT)], "float16")
    before = rdmacoll.metrics()["bytes_sent"]
    reduce(own_data((1 << 18,)), ROOT, compression=Compression.fp16)
    sent = rdmacoll.metrics()["bytes_sent"] - before
    assert sent <= (0 if RANK == ROOT and SIZE == 1 else 0.6 * 4 * (1 << 18) * max(1, SIZE - 1)), sent
    error = raised(rdmacoll.ConfigError, lambda: reduce(tf.ones(1), 0, compression="fp16"))
    assert "Compression.bf16" in str(error)


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
