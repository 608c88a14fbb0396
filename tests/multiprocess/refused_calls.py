"""Tests calls that one rank refuses, in numpy and TensorFlow. The other ranks get the error, and the
following operations still match. It also tests calls that are not refused: sums of every dtype."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from tf_common import close, expected, own_data, raised, run_all, value

import rdmacoll
from rdmacoll import engine
from rdmacoll.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_variables,
    gather,
    grouped_allreduce,
    grouped_broadcast,
    reduce,
    reducescatter,
    scatter,
)

rdmacoll.init()
RANK, SIZE = rdmacoll.rank(), rdmacoll.size()
ODD = 1  # the rank that refuses
SALT = iter(range(10_000))


def follows_right() -> None:
    """Checks that the next unnamed operations of all ranks match, in numpy and in TensorFlow."""
    for call in engine.allreduce, allreduce:
        salt = next(SALT)
        sources = value(RANK, (3,), salt=salt)
        close(call(sources, op=rdmacoll.Sum), expected(rdmacoll.Sum, (3,), "float32", salt=salt))


def waited(call: Callable[..., Any], *sources: Any) -> Any:
    """Makes an asynchronous call and returns its result."""
    return call(*sources).wait()


def refused_by_one(
    good: Callable[[], Any], bad: Callable[[], Any], *words: str, kind: Any = rdmacoll.ConfigError
) -> None:
    """Checks the errors: the odd rank's own refusal, and the reason on the others. Nothing is shifted."""
    if RANK == ODD:
        own = raised(kind, bad)
        assert not isinstance(own, rdmacoll.MismatchError), own
    else:
        typed = rdmacoll.error_from(raised((rdmacoll.MismatchError, tf.errors.OpError), good))
        assert isinstance(typed, rdmacoll.MismatchError), typed
        for word in (f"rank {ODD} refused its ", *words):
            assert word in str(typed), (word, str(typed))
    follows_right()


def check_numpy_calls() -> None:
    ones = np.ones((3, 2), np.float32)
    whole = np.ones(3, np.int32)
    deep = np.ones((1,) * 9, np.float32)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], Any, str]] = [
        (engine.allreduce, (), whole, "Average of int32"),
        (engine.allreduce, (), np.array(["a"]), "cannot be reduced"),
        (engine.allreduce, (), deep, "9 dimensions"),
        (engine.broadcast, (0,), np.array([object()]), "cannot be sent"),
        (engine.allgather, (), np.array(["a"]), "cannot be sent"),
        (engine.gather, (0,), np.array(["a"]), "cannot be sent"),
        (engine.reducescatter, (), np.float32(1), "a scalar has none"),
        (engine.reduce, (0,), whole, "Average of int32"),
        (engine.alltoall, (), np.ones((SIZE + 1, 2), np.float32), "equal parts"),
        (engine.scatter, (0,), np.float32(1), "a scalar has none"),
    ]
    for call, rest, odd, word in calls:
        kind = call.__name__
        refused_by_one(partial(call, ones, *rest), partial(call, odd, *rest), kind, word)
        later = getattr(engine, f"{kind}_async")
        refused_by_one(partial(waited, later, ones, *rest), partial(later, odd, *rest), kind, word)
    refused_by_one(lambda: engine.broadcast(ones, 0), lambda: engine.broadcast(ones, SIZE), "no rank of this")
    splits = [SIZE] + [0] * (SIZE - 1)
    rows = np.ones((SIZE, 1), np.float32)
    refused_by_one(lambda: engine.alltoall(rows, splits), lambda: engine.alltoall(rows, [1]), "1 numbers")


def check_out_arrays_that_do_not_fit() -> None:
    sources = np.ones(3, np.float32)
    small = np.ones(2, np.float32)
    refused_by_one(
        lambda: engine.allreduce(sources, out=np.empty(3, np.float32)),
        lambda: engine.allreduce(sources, out=small),
        "out has shape (2,)",
    )


def check_named_operations() -> None:
    refused_by_one(
        lambda: engine.allreduce(np.ones(3), name="named"),
        lambda: engine.allreduce(np.ones(3, int), name="named"),
        "'named'",
        "Average of int64",
    )
    # The name is free at once for the next operation.
    if RANK == ODD:
        raised(rdmacoll.ConfigError, lambda: engine.allreduce(np.ones(3, int), name="named"))
    else:
        raised(rdmacoll.MismatchError, lambda: engine.allreduce(np.ones(3), name="named"))
    assert engine.allreduce(np.ones(3), rdmacoll.Sum, name="named").tolist() == [SIZE] * 3


def check_groups() -> None:
    mixed = [np.ones(3, np.float32), np.ones(2, np.float64)]
    odd = [np.ones(3, np.float32), np.ones(2, np.int64)]
    for call in engine.grouped_allreduce, partial(waited, engine.grouped_allreduce_async):
        refused_by_one(partial(call, mixed), partial(call, odd), "Average of int64")
    refused_by_one(
        lambda: engine.grouped_allgather(mixed),
        lambda: engine.grouped_allgather([np.ones(3, np.float32), np.array([object()])]),
        "cannot be sent",
    )
    deep = [np.ones(3, np.float32), np.ones((1,) * 9)]
    refused_by_one(lambda: engine.grouped_broadcast(mixed, 0), lambda: engine.grouped_broadcast(deep, 0), "9")


def check_prepared_calls() -> None:
    sources = np.ones(4, np.float32)
    refused_by_one(
        lambda: engine.prepare_allreduce(sources)(),
        lambda: engine.prepare_allreduce(np.ones(4, int)),
        "Average of int64",
    )
    refused_by_one(
        lambda: engine.prepare_allreduce(sources)(),
        lambda: engine.prepare_allreduce(np.ones((4, 4), np.float32)[:, 0]),
        "keeps the memory of array",
    )
    run = engine.prepare_allreduce(sources, op=rdmacoll.Sum)
    for _ in range(50):  # the ranks follow a plan, and a refusal must leave it
        run()
    refused_by_one(lambda: run(), lambda: engine.allreduce(np.ones(3, int)), "Average of int64")


def check_a_refusal_of_all_ranks_leaves_nothing() -> None:
    for _ in range(20):
        raised(rdmacoll.ConfigError, lambda: engine.allreduce(np.ones(3, int)))
        raised(rdmacoll.ConfigError, lambda: allreduce(tf.ones(3, tf.int32)))
        raised(rdmacoll.ConfigError, lambda: engine.allreduce(np.ones(3, int), name="all"))
    engine.barrier()
    follows_right()


def check_ranks_outside_a_set_take_no_number() -> None:
    some = rdmacoll.add_process_set(range(SIZE - 1))
    if RANK == SIZE - 1:
        raised(rdmacoll.ConfigError, lambda: engine.allreduce(np.ones(3), process_set=some))
        raised(rdmacoll.ConfigError, lambda: engine.allreduce(np.ones(3, int), process_set=some))
        raised(rdmacoll.ConfigError, lambda: allreduce(tf.ones(3), process_set=some))
        raised(rdmacoll.ConfigError, lambda: allreduce(tf.ones(3, tf.int32), process_set=some))
    else:
        total = engine.allreduce(np.ones(3), rdmacoll.Sum, process_set=some)
        assert total.tolist() == [SIZE - 1] * 3
        if RANK == ODD:
            raised(rdmacoll.ConfigError, lambda: engine.allreduce(np.ones(3, int), process_set=some))
        else:
            raised(rdmacoll.MismatchError, lambda: engine.allreduce(np.ones(3), process_set=some))
        total = engine.allreduce(np.ones(3), rdmacoll.Sum, process_set=some)
        assert total.tolist() == [SIZE - 1] * 3
    follows_right()
    rdmacoll.remove_process_set(some)


def check_eager_ops() -> None:
    ones, whole = tf.ones((3, 2)), tf.ones((3, 2), tf.int32)
    text = tf.constant(["a"])
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], Any, str]] = [
        (allreduce, (), whole, "Average of int32"),
        (allreduce, (), tf.ragged.constant([[1.0], [1.0, 2.0]]), "RaggedTensor"),
        (allreduce, (), tf.ones((1,) * 9), "9 dimensions"),
        (broadcast, (0,), text, "cannot be sent"),
        (allgather, (), text, "cannot be sent"),
        (gather, (0,), text, "cannot be sent"),
        (reducescatter, (), tf.ones(()), "a scalar has none"),
        (reduce, (0,), whole, "Average of int32"),
        (alltoall, (), tf.ones((SIZE + 1, 2)), "equal parts"),
        (scatter, (0,), tf.ones(()), "a scalar has none"),
    ]
    for call, rest, odd, word in calls:
        refused_by_one(partial(call, ones, *rest), partial(call, odd, *rest), call.__name__, word)
    refused_by_one(lambda: broadcast(ones, 0), lambda: broadcast(ones, -1), "root_rank=-1")
    refused_by_one(lambda: allreduce(ones), lambda: allreduce(ones, op=7), "op=7")
    refused_by_one(
        lambda: allreduce(ones), lambda: allreduce(object()), "object", kind=(TypeError, ValueError)
    )
    mixed = [tf.ones(3), tf.ones(2, tf.float64)]
    refused_by_one(lambda: grouped_allreduce(mixed), lambda: grouped_allreduce([tf.ones(3), whole]), "int32")
    refused_by_one(lambda: grouped_allreduce(mixed), lambda: grouped_allreduce([whole, tf.ones(3)]), "int32")
    refused_by_one(
        lambda: grouped_broadcast(mixed, 0), lambda: grouped_broadcast([tf.ones(3), text], 0), "cannot"
    )
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([4, 2]))
    refused_by_one(lambda: allreduce(slices), lambda: allreduce(slices, op=rdmacoll.Max), "Max")


def check_ops_in_a_graph() -> None:
    @tf.function
    def traced(x: Any) -> Any:
        return allreduce(x)

    # The call is refused while the function is traced.
    refused_by_one(lambda: traced(tf.ones(3)), lambda: traced(tf.ones(3, tf.int32)), "Average of int32")

    @tf.function
    def goes_on(x: Any) -> Any:
        try:
            allreduce(x)
        except rdmacoll.ConfigError:
            pass
        return allreduce(tf.ones(3), op=rdmacoll.Sum)

    # The next call of the trace has the same name as on the other ranks.
    if RANK == ODD:
        close(goes_on(tf.ones(3, tf.int32)), [SIZE] * 3)
    else:
        typed = rdmacoll.error_from(raised(tf.errors.OpError, lambda: goes_on(tf.ones(3))))
        assert isinstance(typed, rdmacoll.MismatchError), typed
        assert f"rank {ODD} refused its allreduce: Average of int32" in str(typed), typed
    follows_right()

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def exchanged(x: Any) -> Any:
        return alltoall(x)

    # The engine refuses the call while the function runs.
    refused_by_one(
        lambda: exchanged(own_data((SIZE, 2))),
        lambda: exchanged(own_data((SIZE + 1, 2))),
        "equal parts",
        kind=tf.errors.OpError,
    )
    # The kernel refuses the call.
    summed = tf.function(lambda x: allreduce(x), input_signature=[tf.TensorSpec(None, tf.float32)])
    refused_by_one(
        lambda: summed(tf.ones(3)),
        lambda: summed(tf.ones((1,) * 9)),
        "9 dimensions",
        kind=tf.errors.OpError,
    )


def check_a_variable_that_cannot_be_sent_is_named() -> None:
    variables = [tf.Variable([1.0], name="kernel"), tf.Variable(["word"], name="vocabulary")]
    text = str(raised(rdmacoll.ConfigError, lambda: broadcast_variables(variables)))
    for word in ("vocabulary", "number 1 of the list", "string", "leave it out"):
        assert word in text, text


def check_sums_of_further_integers_and_of_complex_numbers() -> None:
    for dtype in ("uint16", "uint32", "uint64", "int16", "complex64", "complex128"):
        sources = [value(rank, (5, 3), dtype) for rank in range(SIZE)]
        for call in (allreduce, tf.function(allreduce)):
            result = call(tf.constant(sources[RANK]), op=rdmacoll.Sum)
            assert result.dtype.name == dtype
            np.testing.assert_allclose(result.numpy(), sum(sources[1:], sources[0]), rtol=1e-6)
    assert "Sum and Average" in str(
        raised(rdmacoll.ConfigError, lambda: allreduce(tf.ones(2, tf.complex64), op=rdmacoll.Max))
    )


if __name__ == "__main__":
    run_all(globals())
    rdmacoll.shutdown()
