"""Tests large sums of TensorFlow ops. The ranks of a node share their results. The argument says whether they
share here: yes or no."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tf_common import all_values, close, expected, own_data, run_all, value

import rdmacoll
from rdmacoll import engine
from rdmacoll.ops import allreduce, grouped_allreduce

IS_SHARED = sys.argv[1] == "yes"
os.environ.setdefault("RDMACOLL_BUF_SIZE", "256M")
rdmacoll.init(process_sets=[[1, 2], [0, 2]])
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
LARGE = (70_001,)  # float32: more than 256 KiB, and no whole number of cache lines
KEPT: list[tuple[Any, np.ndarray]] = []  # checked again after the engine has ended


def shared() -> int:
    return rdmacoll.metrics()["results_shared"]


def sums(count: int) -> Any:
    """Checks that all of the `count` sums since the last call have shared results, or none of them."""
    made = shared() - sums.before
    sums.before = shared()
    assert made == (count if IS_SHARED else 0), (made, count)


sums.before = 0


def check_they_are_the_same_bits() -> None:
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        shape = (200_003,)
        got = allreduce(own_data(shape, dtype), op=rdmacoll.Sum, name=f"bits.{dtype}")
        wanted = engine.allreduce(value(RANK, shape, dtype), op=rdmacoll.Sum)
        assert got.numpy().tobytes() == wanted.tobytes(), dtype
    sums(4)


def check_every_operator_and_scale() -> None:
    for op in (rdmacoll.Average, rdmacoll.Min, rdmacoll.Max, rdmacoll.Product):
        close(allreduce(own_data(LARGE), op=op, name=f"op.{op}"), expected(op, LARGE, "float32"))
    close(allreduce(own_data(LARGE, "int32"), op=rdmacoll.Sum), expected(rdmacoll.Sum, LARGE, "int32"))
    scaled = allreduce(own_data(LARGE), op=rdmacoll.Sum, postscale_factor=0.5)
    close(scaled, 0.5 * expected(rdmacoll.Sum, LARGE, "float32"))
    sums(6)
    # With a prescale factor, each rank scales into its own output, so that no result is shared.
    scaled = allreduce(own_data(LARGE), op=rdmacoll.Sum, prescale_factor=2.0)
    close(scaled, 2 * expected(rdmacoll.Sum, LARGE, "float32"))
    close(allreduce(own_data((100,)), op=rdmacoll.Sum), expected(rdmacoll.Sum, (100,), "float32"))
    sums(0)


def check_groups_of_all_sizes() -> None:
    shapes = [(3,), (0, 4), (300, 300), (), (1,), LARGE, (17, 5)]

    @tf.function
    def step(tensors: list[Any]) -> Any:
        return grouped_allreduce(tensors, op=rdmacoll.Sum, name="group")

    for _ in range(20):  # the ranks follow a plan after some steps
        got = step([own_data(shape, salt=i) for i, shape in enumerate(shapes)])
        for i, shape in enumerate(shapes):
            close(got[i], expected(rdmacoll.Sum, shape, "float32", salt=i))
    sums(20)


def check_many_at_once_in_any_order() -> None:
    @tf.function
    def step(tensors: list[Any]) -> list[Any]:
        order = range(6) if RANK % 2 == 0 else reversed(range(6))
        named = {i: allreduce(tensors[i] * 2, op=rdmacoll.Sum, name=f"many.{i}") for i in order}
        return [named[i] for i in range(6)]

    inputs = [own_data((70_000 + 1000 * i,), salt=i) for i in range(6)]
    wanted = [2 * expected(rdmacoll.Sum, (70_000 + 1000 * i,), "float32", salt=i) for i in range(6)]
    for _ in range(20):
        for got, want in zip(step(inputs), wanted):
            close(got, want)
    sums(120)


def check_kept_results_stay_as_they_were() -> None:
    for salt in range(30):
        got = allreduce(own_data(LARGE, salt=salt), op=rdmacoll.Sum, name="kept")
        if salt % 10 == 0:
            KEPT.append((got, expected(rdmacoll.Sum, LARGE, "float32", salt=salt)))
    for got, wanted in KEPT:
        close(got, wanted)
    sums(30)


def tripled(array: np.ndarray) -> np.ndarray:
    array *= 3  # in place, like a careless function
    return array


ROWS = (1000, 128)
# TensorFlow reuses the memory of a tensor that has no other owner. The same is true for a slice, if nothing
# else owns the whole tensor.
CONSUMERS = {
    "sum of a slice": lambda y: y[:500] + 5.0,
    "split": lambda y: tf.split(y, 2)[0] * 3.0,
    "unstack": lambda y: tf.unstack(y)[7] * 7.0,
    "relu": lambda y: tf.nn.relu(y * -1.0) + 1.0,
    "numpy": lambda y: tf.numpy_function(tripled, [y], tf.float32),
    "small sum of a slice": lambda y: allreduce(y[:100] * 2.0, op=rdmacoll.Sum, name="small"),
}


# A plan needs no control messages. Only the owner of a shared result sends its address to the others.
def check_what_is_said_of_them() -> None:
    if os.environ.get("RDMACOLL_MODE") == "ps":  # servers follow no plan: servers_test.cc counts
        return
    for shape in ((100,), LARGE):
        call = tf.function(lambda x, name=f"said.{shape}": allreduce(x, op=rdmacoll.Sum, name=name))
        counts = []
        for _ in range(6):
            before = rdmacoll.metrics()["control_messages"]
            for _ in range(20):
                call(own_data(shape))
            counts.append(rdmacoll.metrics()["control_messages"] - before)
        # A plan ends early if a rank does not run for a second.
        is_owner = IS_SHARED and shape == LARGE and RANK == 0
        assert min(counts) == (20 * (SIZE - 1) if is_owner else 0), (shape, counts)
    sums(120)


# If a rank changes its result, the other ranks' results and the next sums in that memory must not change.
def check_what_one_rank_writes_the_others_do_not_see() -> None:
    wanted = expected(rdmacoll.Sum, ROWS, "float32")
    for name, consumer in CONSUMERS.items():
        keep = tf.function(lambda x: (allreduce(x, op=rdmacoll.Sum, name="y"), x))
        change = tf.function(lambda x, c=consumer: c(allreduce(x, op=rdmacoll.Sum, name="y")))
        for step in range(6):
            is_keeper = step % SIZE == RANK and name != "small sum of a slice"
            stored = (keep if is_keeper else change)(own_data(ROWS))
            engine.barrier()  # all ranks have made their changes
            if is_keeper:
                np.testing.assert_allclose(stored[0].numpy(), wanted, 1e-5, 1e-5, err_msg=name)
            del stored
    sums(6 * len(CONSUMERS))


def check_a_variable_that_is_given_a_result_is_its_ranks_own() -> None:
    whole, part = tf.Variable(tf.zeros(ROWS)), tf.Variable(tf.zeros((500, 128)))

    @tf.function
    def give(x: Any) -> None:
        result = allreduce(x, op=rdmacoll.Sum, name="result")
        whole.assign(result)
        part.assign(result[:500])

    wanted = expected(rdmacoll.Sum, ROWS, "float32")
    for _ in range(6):
        give(own_data(ROWS))
        engine.barrier()
        for variable in (whole, part):
            variable.assign_add(tf.ones(variable.shape) * float(RANK + 1))
            variable.scatter_nd_add([[0, 0]], [float(RANK)])
        engine.barrier()
        close(whole[1:], wanted[1:] + RANK + 1)
        close(part[1:], wanted[1:500] + RANK + 1)
    whole.assign(tf.zeros(ROWS))
    part.assign(tf.zeros((500, 128)))
    sums(6)


def check_the_gradient_is_a_sum_too() -> None:
    x = tf.Variable(own_data(LARGE))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(allreduce(x, op=rdmacoll.Sum, name="loss") ** 2)
    # Every rank's loss depends on every rank's x.
    close(tape.gradient(loss, x), 2 * SIZE * expected(rdmacoll.Sum, LARGE, "float32"), "float16")
    sums(2)


def check_the_first_member_of_a_set_has_the_memory() -> None:
    made = 0
    for one in (rdmacoll.process_sets()[number] for number in (1, 2)):
        if RANK not in one.ranks:
            continue
        for _ in range(10):
            got = allreduce(own_data(LARGE), op=rdmacoll.Sum, name="of a set", process_set=one)
            close(got, sum(all_values(LARGE)[rank].astype(np.float64) for rank in one.ranks))
            made += 1
    sums(made)


def check_without_room_each_has_its_own() -> None:
    stored = []
    before = shared()
    for salt in range(40):  # 4 MiB each, of a pool of 256 MiB, half of which is lent
        stored.append(allreduce(own_data((1 << 20,), salt=salt), op=rdmacoll.Sum, name="room"))
    made = shared() - before
    for salt in (0, 20, 39):
        close(stored[salt], expected(rdmacoll.Sum, (1 << 20,), "float32", salt=salt), "float32")
    assert (20 < made < 40) if IS_SHARED else made == 0, made
    stored.clear()
    engine.barrier()  # all ranks have released the results
    sums.before = shared()
    close(allreduce(own_data(LARGE), op=rdmacoll.Sum), expected(rdmacoll.Sum, LARGE, "float32"))
    sums(1)


def check_ranks_that_have_joined_take_part() -> None:
    for round_ in range(2):
        for step in range(3 + 3 * RANK):
            got = allreduce(own_data(LARGE, salt=step), op=rdmacoll.Sum, name=f"uneven.{round_}")
            with_data = [v for r, v in enumerate(all_values(LARGE, salt=step)) if step < 3 + 3 * r]
            close(got, np.sum(np.stack(with_data).astype(np.float64), axis=0))
        assert rdmacoll.join() == SIZE - 1
    sums(2 * 3 * SIZE)  # ranks that have joined contribute zeros


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
    for stored, right in KEPT:
        close(stored, right)
