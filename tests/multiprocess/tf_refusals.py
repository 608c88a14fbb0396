"""Tests refusals and failures of the TensorFlow ops. The argument is the number of inter-op threads."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, Callable

import tensorflow as tf
from tf_common import close, expected, own_data, raised, run_all

import rdmacoll
from rdmacoll.ops import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_broadcast,
    grouped_reducescatter,
)

tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
SALT: Iterator[int] = count()


def check_wrong_arguments_are_refused_here() -> None:
    text = str(raised(rdmacoll.ConfigError, lambda: allreduce(tf.constant([1, 2]))))
    assert "Sum" in text
    assert "int32" in text
    raised(rdmacoll.ConfigError, lambda: allreduce(tf.constant([True]), op=rdmacoll.Sum))
    raised(rdmacoll.ConfigError, lambda: allreduce(tf.ones(1), op=7))
    raised(rdmacoll.ConfigError, lambda: allreduce(tf.ones(1), compression="fp16"))
    raised(rdmacoll.ConfigError, lambda: broadcast(tf.ones(1), SIZE))
    raised(rdmacoll.ConfigError, lambda: broadcast(tf.ones(1), -1))
    raised(rdmacoll.ConfigError, lambda: allgather(tf.constant(["text"])))
    variables = [tf.Variable(tf.ones(1), name="weights"), tf.Variable(["a"], name="words")]
    text = str(raised(rdmacoll.ConfigError, lambda: rdmacoll.broadcast_variables(variables)))
    assert "variable 'words:0' (number 1 of the list) is of dtype string" in text

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return allreduce(x)

    assert "jit_compile" in str(raised(rdmacoll.ConfigError, lambda: compiled(tf.ones(3))))


def check_mismatches_are_errors_on_every_rank() -> None:
    if SIZE == 1:
        return
    calls = [
        lambda: allreduce(tf.ones(3 if RANK == 0 else 4), name="shape"),
        lambda: allreduce(tf.ones(3, tf.float32 if RANK == 0 else tf.float64), name="dtype"),
        lambda: allreduce(tf.ones(3), op=rdmacoll.Sum if RANK == 0 else rdmacoll.Max, name="op"),
        lambda: broadcast(tf.ones(3), min(RANK, 1), name="root"),
        lambda: allgather(tf.ones((2, 2 + min(RANK, 1))), name="columns"),
        lambda: allreduce(tf.ones(3)) if RANK == 0 else broadcast(tf.ones(3), 0),
    ]
    for call in calls:
        eager = raised(rdmacoll.MismatchError, call)
        assert isinstance(eager, tf.errors.FailedPreconditionError)
        copy = pickle.loads(pickle.dumps(eager))
        assert (type(copy), str(copy)) == (rdmacoll.MismatchError, str(eager))
        assert eager.__cause__ is None
        graph = raised(tf.errors.FailedPreconditionError, tf.function(call))
        assert type(rdmacoll.error_from(graph)) is rdmacoll.MismatchError
        assert "MismatchError: " in str(graph)
    close(allreduce(own_data((3,))), expected(rdmacoll.Average, (3,), "float32"))


def check_the_lists_of_gradients_must_agree() -> None:
    if SIZE == 1:
        return
    uses = {"d": tf.reduce_sum, "s": lambda v: tf.reduce_sum(tf.gather(v, [0]))}
    variables = [tf.Variable(tf.ones(8)) for _ in range(3)]

    def step(kinds: str) -> Any:
        # Each dense gradient has its own bucket.
        with rdmacoll.DistributedGradientTape(tf.GradientTape(), bucket_bytes=32) as tape:
            loss = tf.add_n([tf.constant(0.0), *(uses[k](v) for k, v in zip(kinds, variables) if k != "-")])
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables) if g is not None]

    # For rank 0 and for the others: dense, sparse or no gradient, by position.
    for first, others in ("ddd", "-dd"), ("s--", "-s-"), ("d--", "---"), ("s--", "---"), ("s--", "d--"):
        for here, there in (first, others), (others, first):
            kinds = here if RANK == 0 else there
            begin = time.monotonic()
            errors = [
                raised(rdmacoll.MismatchError, lambda kinds=kinds: step(kinds)),
                raised(tf.errors.FailedPreconditionError, lambda kinds=kinds: tf.function(step)(kinds)),
            ]
            assert time.monotonic() - begin < 5.0
            for error in errors:
                typed = rdmacoll.error_from(error)
                assert type(typed) is rdmacoll.MismatchError
                for rank_has, of in ("rank 0 has 3 gradients (", here), (" 3 gradients (", there):
                    counts = f"{of.count('d')} dense of {32 * of.count('d')} bytes in "
                    assert rank_has + counts in str(typed), str(typed)
                assert "the list of gradients of 'DistributedGradientTape/step_0" in str(typed)
                assert "same model" in str(typed)
    for kinds in "dsd", "---", "-s-":
        step(kinds)
        tf.function(step)(kinds)


def check_groups_of_different_dtypes_are_an_error_and_shift_nothing() -> None:
    if SIZE == 1:
        return
    plain, wide, whole = tf.ones(3), tf.ones(3, tf.float64), tf.ones(3, tf.int32)
    calls: list[Callable[..., Any]] = [
        lambda tensors, name: grouped_allreduce(tensors, rdmacoll.Sum, name),
        grouped_allgather,
        lambda tensors, name: grouped_reducescatter(tensors, rdmacoll.Sum, name),
        lambda tensors, name: grouped_broadcast(tensors, 0, name),
        lambda tensors, name: broadcast_([tf.Variable(one) for one in tensors], 0, name),
    ]
    # Tensors of most ranks, and those of rank 1. Later operations have a partner of the same dtype and shape.
    lists = [
        ([plain, wide], [plain]),
        ([plain], [wide, plain, whole]),
        ([plain, whole], [plain, wide]),
        ([plain, wide], []),
    ]
    for number, call in enumerate(calls):
        for most, odd in lists:
            tensors = odd if RANK == 1 else most
            for name in (None, "group") if number == 0 else (None,):
                if not tensors:
                    assert call(tensors, name) == []
                else:
                    text = str(raised(rdmacoll.MismatchError, lambda: call(tensors, name)))  # noqa: B023
                    if odd:
                        several = odd if len(odd) > 1 else most
                        dtypes = ", ".join(sorted(one.dtype.name for one in several))
                        assert f"the first of a group of {dtypes}" in text, text
                    else:
                        assert "rank 1 refused its " in text, text
                        assert "the group has no tensors" in text, text
                salt = next(SALT)
                for dtype in "float64", "float32", "int32":
                    total = allreduce(own_data((3,), dtype, salt=salt), op=rdmacoll.Sum)
                    close(total, expected(rdmacoll.Sum, (3,), dtype, salt=salt))


def check_what_is_behind_a_group_of_a_function_has_its_partner() -> None:
    if SIZE == 1:
        return

    def step(tensors: list[Any], x: Any, is_behind: bool) -> Any:
        if not is_behind:
            return grouped_allreduce(tensors, rdmacoll.Sum)[0]
        with tf.control_dependencies(grouped_allreduce(tensors, rdmacoll.Sum)):
            return allreduce(x, op=rdmacoll.Sum)

    plain, wide = own_data((3,)), own_data((3,), "float64")
    for first, others in ([plain], [wide, plain]), ([wide, plain], [plain]):
        tensors = first if RANK == 0 else others
        for is_behind in False, True:
            graph = tf.function(lambda x: step(tensors, x, is_behind))  # noqa: B023
            error = raised(tf.errors.FailedPreconditionError, lambda: graph(plain))  # noqa: B023
            assert "the first of a group of float32, float64" in str(error), error
        close(allreduce(plain, op=rdmacoll.Sum), expected(rdmacoll.Sum, (3,), "float32"))
    # The other ranks list the dtypes in another order than rank 0.
    tensors = [plain, wide][:: 1 if RANK == 0 else -1]
    for call in step, tf.function(step):
        close(call(tensors, plain, True), expected(rdmacoll.Sum, (3,), "float32"))
    totals = grouped_allreduce(tensors, rdmacoll.Sum, "ordered")
    for total, one in zip(totals, tensors):
        close(total, expected(rdmacoll.Sum, (3,), one.dtype.name))


def check_a_name_twice_in_flight_is_an_error() -> None:
    @tf.function
    def step(x: Any) -> Any:
        return allreduce(x, name="twice") + allreduce(x + 1.0, name="twice")

    if SIZE == 1:
        return  # the first may be done before the second comes
    if RANK == 0:
        # One of the two is refused. The other waits for the later ranks.
        error = raised(tf.errors.InvalidArgumentError, lambda: step(tf.ones(3)))
        assert type(rdmacoll.error_from(error)) is rdmacoll.DuplicateNameError
    else:
        time.sleep(1.0)
        allreduce(tf.ones(3), name="twice")


def check_a_look_at_the_metrics_harms_nothing() -> None:
    step = tf.function(lambda x: allreduce(x, op=rdmacoll.Sum))
    for salt in range(40):
        rdmacoll.metrics()
        time.sleep(0.002)  # the engine thread sleeps by now, and the next operation must wake it
        close(step(own_data((3,), salt=salt)), expected(rdmacoll.Sum, (3,), "float32", salt=salt))


def check_a_handler_that_only_notes_a_signal_lets_the_step_end() -> None:
    noted: list[int] = []
    plain = signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
    step = tf.function(lambda x: allreduce(x, op=rdmacoll.Sum))
    step(tf.ones(3))
    if RANK == 0:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        time.sleep(0.3)
    close(step(own_data((3,))), expected(rdmacoll.Sum, (3,), "float32"))
    time.sleep(1.0 if RANK == 0 else 0.0)  # by now the engine has decided whether this rank is stuck
    close(step(own_data((3,))), expected(rdmacoll.Sum, (3,), "float32"))
    assert noted == ([signal.SIGTERM] if RANK == 0 else [])
    signal.signal(signal.SIGTERM, plain)


def check_barriers() -> None:
    barrier()

    @tf.function
    def step() -> Any:
        barrier()
        return tf.constant(1)

    for _ in range(3):
        step()


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
    assert signal.set_wakeup_fd(-1) == -1  # the value from before the program
    raised(rdmacoll.NotInitializedError, lambda: allreduce(tf.ones(1)))
