"""The op library against a table of functions written here, which notes what the kernels submit.

Other tests cover the engine's work on a request. These tests check that each request says what it should,
and that results, errors and late outputs come back right.
"""

from __future__ import annotations

import ctypes
import gc
import json
import struct
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from kernel_spy import ONE, PIECES, Spy, allreduce, library, ops, spy  # noqa: F401 (fixtures)

from rdmacoll._abi.mirror import ABI_VERSION, HEADER_HASH, Api
from rdmacoll.errors import ConfigError, RankFailedError, StalledError, error_from
from rdmacoll.ops._arguments import bits


def test_it_loads_without_complaint(library: Any) -> None:
    assert library[1].rc_tf_problem() is None


def test_a_table_of_another_abi_is_refused(library: Any) -> None:
    table = Api()
    table.abi_version, table.header_hash = ABI_VERSION + 1, HEADER_HASH
    assert library[1].rc_tf_attach(ctypes.addressof(table), 1) != 0


def test_a_table_of_another_header_is_refused(library: Any, spy: Spy) -> None:
    spy.table.header_hash = HEADER_HASH ^ 1
    assert library[1].rc_tf_attach(ctypes.addressof(spy.table), 1) != 0


def test_without_an_engine_ops_fail_and_do_not_wait(ops: Any) -> None:
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="NotInitializedError: rdmacoll is not running"
    ) as caught:
        allreduce(ops, [tf.ones(3)])
    assert type(error_from(caught.value)).__name__ == "NotInitializedError"


def test_a_request_says_what_the_op_says(ops: Any, spy: Spy) -> None:
    tensors = [tf.reshape(tf.range(6.0), (2, 3)), tf.zeros((0, 4)), tf.constant(7.0)]
    out = allreduce(
        ops,
        tensors,
        op=3,
        prescale_bits=bits(0.1),
        postscale_bits=bits(-2.5),
        tensor_name="grads",
        labels=["a", "b", "c"],
        manifest="3 gradients",
        group="float32, int32",
    )
    for mine, result in zip(tensors, out):
        np.testing.assert_array_equal(mine.numpy(), result.numpy())
    (request,) = spy.requests
    assert (request["kind"], request["dtype"], request["op"], request["n"]) == (0, 6, 3, 3)
    assert (request["prescale"], request["postscale"]) == (0.1, -2.5)
    assert (request["name"], request["iteration"]) == ("grads", 0)
    assert (request["manifest"], request["group"]) == ("3 gradients", "float32, int32")
    assert [t["shape"] for t in request["tensors"]] == [(2, 3), (0, 4), ()]
    assert [t["label"] for t in request["tensors"]] == ["a", "b", "c"]
    assert all(t["input"] and t["output"] for t in request["tensors"])


def test_outputs_without_an_input_to_reuse_lie_in_engine_memory(ops: Any, spy: Spy) -> None:
    big, small = tf.random.uniform((300, 100)), tf.random.uniform((10,))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> list[Any]:
        return allreduce(ops, [x, y], tensor_name="held")

    kept = [step(big, small) for _ in range(3)]  # the inputs live on, so they cannot be overwritten
    assert len(spy.lent) == 2  # the first call has noticed that
    for request in spy.requests[1:]:
        assert request["tensors"][0]["output"] in spy.lent
        assert request["tensors"][1]["output"] not in spy.lent  # too small to be worth it
    for outputs in kept:
        np.testing.assert_array_equal(outputs[0].numpy(), big.numpy())
        np.testing.assert_array_equal(outputs[1].numpy(), small.numpy())
    del kept, outputs
    gc.collect()
    assert spy.lent == {}

    spy.lends = False  # the pool is exhausted, so the op uses TensorFlow's memory
    np.testing.assert_array_equal(step(big, small)[0].numpy(), big.numpy())


def test_one_step_that_held_its_inputs_is_no_rule_for_those_that_follow(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: tf.Tensor, fresh: tf.Tensor) -> list[Any]:
        return allreduce(ops, [tf.cond(fresh, lambda: x * 2.0, lambda: x)], tensor_name="sometimes")

    x = tf.random.uniform((300, 100))
    step(x, tf.constant(False))
    for _ in range(40):
        step(x, tf.constant(True))
    in_place = [r["tensors"][0]["output"] == r["tensors"][0]["input"] for r in spy.requests]
    assert not any(in_place[:2])
    assert all(in_place[-20:])
    gc.collect()
    assert spy.lent == {}


def test_small_outputs_of_a_kernel_that_had_large_ones_are_not_in_engine_memory(ops: Any, spy: Spy) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x: tf.Tensor) -> list[Any]:
        return allreduce(ops, [x], tensor_name="of any length")

    kept = [step(tf.random.uniform((length,))) for length in (30_000, 30_000, 10, 0, 30_000)]
    outputs = [request["tensors"][0]["output"] for request in spy.requests]
    assert [output in spy.lent for output in outputs] == [False, True, False, False, True]
    assert [len(values[0]) for values in kept] == [30_000, 30_000, 10, 0, 30_000]


def test_gradients_that_the_step_has_made_are_reduced_in_place(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: tf.Tensor, factor: tf.Tensor) -> list[Any]:
        return allreduce(ops, [x * factor], tensor_name="made")

    for _ in range(3):
        step(tf.random.uniform((300, 100)), tf.constant(2.0))
    assert all(r["tensors"][0]["output"] == r["tensors"][0]["input"] for r in spy.requests)
    assert spy.lent == {}


def test_an_unnamed_op_has_no_name(ops: Any, spy: Spy) -> None:
    allreduce(ops, [tf.ones(1)])
    ops.rdmacoll_barrier()
    ops.rdmacoll_barrier(tensor_name="end of epoch")
    assert [r["name"] for r in spy.requests] == [None, None, "end of epoch"]
    assert [r["kind"] for r in spy.requests] == [0, 3, 3]


ALL = "uint8 int8 int32 int64 float16 bfloat16 float32 float64 bool uint16 uint32 uint64 int16 "
ALL += "complex64 complex128"


@pytest.mark.parametrize(("number", "name"), list(enumerate(ALL.split())))
def test_dtypes_have_the_numbers_of_the_c_interface(ops: Any, spy: Spy, number: int, name: str) -> None:
    value = tf.cast(tf.constant([0, 1, 1]), name)
    (copy,) = ops.rdmacoll_broadcast(tensors=[value], root_rank=3)
    gathered = ops.rdmacoll_allgather(tensors=[value])[0]
    assert copy.dtype.name == gathered.dtype.name == name
    np.testing.assert_array_equal(copy.numpy(), value.numpy())
    np.testing.assert_array_equal(gathered.numpy(), np.concatenate([value.numpy()] * PIECES))
    assert [(r["dtype"], r["kind"]) for r in spy.requests] == [(number, 1), (number, 2)]
    assert spy.requests[0]["root"] == 3
    allreduce(ops, [value])  # which operators a dtype takes is asked before
    assert spy.requests[2]["dtype"] == number


def test_splits_and_roots_reach_the_engine(ops: Any, spy: Spy) -> None:
    value = tf.reshape(tf.range(6.0), (3, 2))
    exchanged, received = ops.rdmacoll_alltoall(tensor=value, splits=tf.constant([1, 2], tf.int64))
    assert received.numpy().tolist() == [7, 8]
    results = [
        exchanged,
        ops.rdmacoll_scatter(tensor=value, splits=tf.zeros((0,), tf.int64), root_rank=1),
        ops.rdmacoll_gather(tensor=value, root_rank=1),
    ]
    for result in results:
        np.testing.assert_array_equal(result.numpy(), value.numpy())
    found = [(request["kind"], request["root"], request["splits"]) for request in spy.requests]
    assert found == [(5, 0, [1, 2]), (8, 1, None), (7, 1, None)]


def test_a_reduction_leaves_zeros_but_at_the_root(ops: Any, spy: Spy) -> None:
    scales = {"op": 0, "prescale_bits": bits(0.5), "postscale_bits": bits(3.0)}
    for root in (0, 1):
        for size in (0, 3, 40_000):
            step = tf.function(
                lambda x, root=root: ops.rdmacoll_reduce(tensors=[x + 1.0], root_rank=root, **scales)[0]
            )
            result = step(tf.ones((size, 2)))
            assert (result.numpy() == (2.0 if root == 0 else 0.0)).all()
            assert [tensor["output"] == 0 for tensor in spy.requests[-1]["tensors"]] == [root != 0]
            assert (spy.requests[-1]["prescale"], spy.requests[-1]["postscale"]) == (0.5, 3.0)


def test_strings_are_refused(ops: Any, spy: Spy) -> None:
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        ops.rdmacoll_allgather(tensors=[tf.constant(["a"])])
    assert spy.requests == []


def test_more_than_8_dimensions_are_refused(ops: Any, spy: Spy) -> None:
    assert allreduce(ops, [tf.ones([1] * 8)])[0].shape == [1] * 8
    with pytest.raises(tf.errors.InvalidArgumentError, match="9 dimensions; at most 8") as refused:
        allreduce(ops, [tf.ones([1] * 9)])
    assert isinstance(error_from(refused.value), ConfigError)
    assert spy.refused == ["a tensor has 9 dimensions; at most 8 are supported: reshape it."]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 5), (2, 0)])
def test_an_allgather_gets_its_memory_late(ops: Any, spy: Spy, shape: tuple[int, ...]) -> None:
    value = tf.random.stateless_uniform(shape, seed=(1, 2))
    gathered = tf.function(lambda x: ops.rdmacoll_allgather(tensors=[x], tensor_name="g")[0])(value)
    pieces = [value.numpy().reshape(shape or (1,))] * PIECES
    np.testing.assert_array_equal(gathered.numpy(), np.concatenate(pieces))


def test_shapes_are_known_while_tracing(ops: Any, spy: Spy) -> None:
    def shapes(x: Any) -> tuple[Any, Any]:
        gathered = ops.rdmacoll_allgather(tensors=[x], tensor_name="g")[0]
        return gathered, ops.rdmacoll_broadcast(tensors=[x, x], root_rank=0, tensor_name="b")[1]

    for spec, gathered in (([4, 3], [None, 3]), ([], [None]), ([None, 2], [None, 2])):
        out = tf.function(shapes).get_concrete_function(tf.TensorSpec(spec)).structured_outputs
        assert out[0].shape.as_list() == gathered
        assert out[1].shape.as_list() == spec
    out = tf.function(shapes).get_concrete_function(tf.TensorSpec(None)).structured_outputs
    assert out[0].shape.rank is None
    assert spy.requests == []


def test_a_temporary_is_reduced_in_place(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return allreduce(ops, [x + 1.0, x * 3.0, x], tensor_name="in place")

    x = tf.random.stateless_uniform([4096], seed=(1, 2))
    step(x)
    first, second, held = spy.requests[0]["tensors"]
    assert first["input"] == first["output"]
    assert second["input"] == second["output"]
    assert held["input"] != held["output"]  # the caller's tensor has to stay as it is


def test_a_constant_input_is_not_folded_away(ops: Any, spy: Spy) -> None:
    @tf.function
    def step() -> Any:
        return allreduce(ops, [tf.constant([1.0, 2.0])], tensor_name="constant")[0] + 1.0

    step.get_concrete_function()
    assert spy.requests == []
    for _ in range(3):
        np.testing.assert_array_equal(step().numpy(), [2.0, 3.0])
    assert len(spy.requests) == 3


def test_two_ops_of_one_function_are_not_merged(ops: Any, spy: Spy) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return [allreduce(ops, [x], tensor_name=name)[0] for name in ("a", "b")]

    step(tf.ones(2))
    assert sorted(r["name"] for r in spy.requests) == ["a", "b"]


def test_both_wait_at_once_although_neither_is_done(ops: Any, spy: Spy) -> None:
    # Were the ops stateful, the second would only be submitted after the first was done.
    spy.hold.clear()

    @tf.function
    def step(x: Any) -> Any:
        return [allreduce(ops, [x + i], tensor_name=f"op {i}")[0] for i in range(6)]

    thread = threading.Thread(target=step, args=(tf.ones(2),), daemon=True)
    thread.start()
    deadline = threading.Event()
    for _ in range(3000):
        if len(spy.requests) == 6:
            break
        deadline.wait(0.01)
    assert len(spy.requests) == 6
    spy.hold.set()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("RankFailedError", tf.errors.UnknownError),
        ("ShutdownError", tf.errors.UnknownError),
        ("MismatchError", tf.errors.FailedPreconditionError),
        ("ConfigError", tf.errors.InvalidArgumentError),
        ("DuplicateNameError", tf.errors.InvalidArgumentError),
        ("StalledError", tf.errors.DeadlineExceededError),
        ("NotInitializedError", tf.errors.FailedPreconditionError),
        ("RdmacollError", tf.errors.InternalError),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_errors_have_tensorflows_class_and_our_text(
    ops: Any, spy: Spy, kind: str, cls: type[Exception], late: bool
) -> None:
    text = 'rank 3 (node7, pid 9) said "no": tab\there, umlaut \u00fc, {braces} [and brackets]'
    error = {
        "ranks": [1, 2],
        "kind": kind,
        "rank": 3,
        "host": "node7",
        "cause": "kind",
        "tensor": "message",
        "message": text,
    }
    spy.answer, spy.refusal = (json.dumps(error), None) if late else (None, json.dumps(error))
    step = tf.function(lambda x: allreduce(ops, [x], tensor_name="t")[0])
    for call in (step, lambda x: allreduce(ops, [x])[0]):
        with pytest.raises(cls) as caught:
            call(tf.ones(3))
        assert f"{kind}: {text} [rdmacoll {{" in str(caught.value)
        assert str(caught.value).count("said") == 1
        typed = error_from(caught.value)
        assert type(typed).__name__ == kind
        assert str(typed) == text
        if isinstance(typed, RankFailedError):
            assert (typed.rank, typed.host, typed.cause) == (3, "node7", "kind")
        if isinstance(typed, StalledError):
            assert (typed.tensor, typed.missing_ranks) == ("message", (1, 2))


def test_an_error_shows_no_empty_fields(ops: Any, spy: Spy) -> None:
    fields = {"message": "m", "rank": -1, "host": "", "cause": "x, {y}", "tensor": "", "ranks": [1, 2]}
    spy.answer = json.dumps({"kind": "StalledError", **fields})
    with pytest.raises(tf.errors.DeadlineExceededError) as caught:
        allreduce(ops, [tf.ones(3)])
    expected = 'StalledError: m [rdmacoll {"kind": "StalledError", "cause": "x, {y}", "ranks": [1, 2]}]'
    assert expected in str(caught.value)


def test_after_an_error_the_next_step_works(ops: Any, spy: Spy) -> None:
    step = tf.function(lambda x: allreduce(ops, [x + 1.0], tensor_name="t")[0])
    spy.answer = json.dumps({"kind": "StalledError", "message": "m"})
    with pytest.raises(tf.errors.DeadlineExceededError):
        step(tf.ones(3))
    spy.answer = None
    np.testing.assert_array_equal(step(tf.ones(3)).numpy(), [2.0] * 3)


def test_what_is_small_and_alone_is_driven_by_the_thread_that_submits_it(ops: Any, spy: Spy) -> None:
    sizes = (1, 16 << 10, (16 << 10) + 1, 0)
    for size in sizes:
        allreduce(ops, [tf.ones(size)])
        ops.rdmacoll_allgather(tensors=[tf.ones(size)])
    allreduce(ops, [tf.ones(10_000), tf.ones(10_000)])  # 80 KB together
    ops.rdmacoll_barrier()
    drives = [request["drives"] for request in spy.requests]
    assert drives == [True, True, True, True, False, False, True, True, False, True]

    spy.hold.clear()
    step = tf.function(lambda x: [allreduce(ops, [x + i], tensor_name=f"op {i}")[0] for i in range(6)])
    thread = threading.Thread(target=step, args=(tf.ones(2),), daemon=True)
    thread.start()
    for _ in range(3000):
        if len(spy.requests) == len(drives) + 6:
            break
        spy.hold.wait(0.01)
    at_once = [request["drives"] for request in spy.requests[len(drives) :]]
    spy.hold.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(at_once) == 6
    assert sum(at_once) <= 1  # a thread that drives would keep the others from being submitted


def test_what_is_answered_while_it_is_submitted_ends_once(ops: Any, spy: Spy) -> None:
    spy.answers_at_once = True
    step = tf.function(lambda x: allreduce(ops, [x + 1.0], tensor_name="t")[0] * 2.0)
    for _ in range(100):
        np.testing.assert_array_equal(step(tf.ones(3)).numpy(), [4.0] * 3)
        np.testing.assert_array_equal(allreduce(ops, [tf.ones(3)])[0].numpy(), [1.0] * 3)
    assert all(request["drives"] for request in spy.requests)
    spy.answer = json.dumps({"kind": "StalledError", "message": "m"})
    for call in (step, lambda x: allreduce(ops, [x])[0]):
        with pytest.raises(tf.errors.DeadlineExceededError):
            call(tf.ones(3))
    spy.answer = None
    np.testing.assert_array_equal(step(tf.ones(3)).numpy(), [4.0] * 3)


def test_doubles_keep_their_bits() -> None:
    for value in (0.1, -0.0, 1e-310, float("inf")):
        assert struct.unpack("<d", struct.pack("<q", bits(value)))[0] == value
