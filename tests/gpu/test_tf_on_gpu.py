"""TensorFlow's kernels for GPUs, on the fake CUDA driver and on a real one. TensorFlow is not needed.

tests/tf_sim stands for it. On the fake driver a host access to memory of the GPU would crash.
"""

from __future__ import annotations

import pytest
from places import Place, places, run_body
from rank_program import program
from ranks import run
from tf_sim_ops import framework


def begin() -> str:
    """The begin of each program. It needs a library that g++ compiles."""
    return f"""
import gpu_arrays, tf_sim_ops
cupy = gpu_arrays.cupy()
def start(**options):
    return tf_sim_ops.Ops({str(framework())!r}, cupy, **options)
def error_of(run):
    try:
        run.outputs()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")
"""


@pytest.fixture(params=places())
def place(request: pytest.FixtureRequest) -> Place:
    return request.param  # type: ignore[no-any-return]


def test_sums_and_broadcasts_are_right_in_the_order_of_the_stream(place):
    run_body(
        place,
        begin()
        + """
ops = start()
for dtype in (np.float16, np.float32, np.float64, np.complex64):
    for turn, count in enumerate((1, 5000, 1000000)):            # the last one would be shared on the host
        values = [np.full((count,), me + turn, dtype), np.empty((0, 3), dtype), np.ones((2, 3), dtype)]
        for in_place in (False, True):
            arrays = [cupy.array(one) for one in values]          # arrive late, on the current stream
            found = ops.run("RdmacollAllreduce", arrays, in_place).outputs()
            assert (found[0] == size * turn + size * (size - 1) / 2).all(), (dtype, count, in_place)
            assert (found[2] == size).all()
            assert in_place or (arrays[0].get() == values[0]).all()
            assert [one.shape for one in found] == [one.shape for one in values]
            found = ops.run("RdmacollBroadcast", [cupy.array(values[0])], in_place, root_rank=1).outputs()
            assert (found[0] == 1 + turn).all()
""",
    )


def test_a_kernel_runs_many_times_and_never_takes_memory_of_the_host(place):
    run_body(
        place,
        begin()
        + """
node = start().node("RdmacollAllreduce", np.float32, tensor_name="gradient")
for turn in range(6):                 # a kernel on the host would lend memory from the second run on
    array = cupy.array(np.full(50000, me + turn, np.float32))
    assert (node.run([array], in_place=turn == 4).outputs()[0] == size * turn + 1).all()
""",
    )


def test_several_streams_and_named_ops_run_at_once(place):
    run_body(
        place,
        begin()
        + """
ops, cuda = start(), gpu_arrays.calls()
runs = []
for number in range(6):
    with cupy.cuda.ExternalStream(cuda.stream(1).value):
        array = cupy.array(np.full(3000, float(number + me), np.float32))
        runs.append(ops.run("RdmacollAllreduce", [array], number % 2 == 0, tensor_name=f"gradient {number}"))
for number, one in reversed(list(enumerate(runs))):
    assert (one.outputs()[0] == size * number + 1).all()
""",
    )


def test_a_rank_on_the_host_and_one_on_a_gpu_agree_on_large_sums(place):
    run_body(
        place,
        begin()
        + """
ops = start()
for turn in range(3):
    values = np.full(200000, float(me + turn), np.float32)
    array = values if me == turn % 2 else cupy.array(values)
    assert (ops.run("RdmacollAllreduce", [array]).outputs()[0] == 2 * turn + 1).all()
values = np.full(200000, float(me + 2), np.float32)
if me == 0:                                                      # without TensorFlow
    assert (engine.allreduce(values, rdmacoll.Sum, name="g") == 5).all()
else:
    assert (ops.run("RdmacollAllreduce", [cupy.array(values)], tensor_name="g").outputs()[0] == 5).all()
""",
    )


def test_a_rank_without_kernels_for_gpus_that_shares_results_is_named(place):
    run_body(
        place,
        begin()
        + """
ops = start(has_gpu_kernels=me == 1)
values = np.full(200000, float(me), np.float32)
text = error_of(ops.run("RdmacollAllreduce", [cupy.array(values) if me else values]))
assert text.startswith("MismatchError") and "results shared in host memory" in text, text
engine.barrier()
""",
    )


def test_errors_end_the_op_with_their_text(place):
    run_body(
        place,
        begin()
        + """
ops = start()
array = cupy.array(np.ones(10 + me, np.float32))
assert error_of(ops.run("RdmacollAllreduce", [array])).startswith("MismatchError")
assert "no CUDA stream" in error_of(ops.run("RdmacollAllreduce", [array], stream=0))
host = np.ones(10, np.float32)
total = ops.run("RdmacollAllreduce", [cupy.array(host)]).outputs()[0]   # later ops still match
assert (total == size).all()
""",
    )


def test_an_op_after_the_end_fails_and_does_not_wait(place):
    after = """
rdmacoll.shutdown()
assert error_of(ops.run("RdmacollAllreduce", [array])).startswith("NotInitializedError")
"""
    body = begin() + "ops = start()\narray = cupy.array(np.ones(10, np.float32))"
    run(program(body, after=after), 2, env=place.environment(), deadline_s=200).succeeded()


MOVED = """
ops = start()
for dtype in (np.float16, np.float32, np.float64, np.complex64):
    for rows in (0, 1, 3000, 300000):
        mine = np.arange(2 * (rows + me), dtype=np.float64).reshape(rows + me, 2).astype(dtype) + me
        theirs = [np.arange(2 * (rows + r), dtype=np.float64).reshape(rows + r, 2).astype(dtype) + r
                  for r in range(size)]
        tail = np.full((me, 3), me, dtype)                       # a rank without rows
        found = ops.run("RdmacollAllgather", [cupy.array(mine), cupy.array(tail)]).results(2)
        assert (found[0] == np.concatenate(theirs)).all(), (dtype, rows)
        assert (found[1] == np.concatenate([np.full((r, 3), r, dtype) for r in range(size)])).all()

        values = np.full((rows, 2), me + 1, dtype)
        [part] = ops.run("RdmacollReducescatter", [cupy.array(values)]).results()
        assert part.shape == (rows // size + (me < rows % size), 2)
        assert (part == size * (size + 1) // 2).all()

        splits = np.array([rows, me], np.int64)                  # rank 0 gets `rows`, rank 1 few or none
        values = np.repeat(np.array([[10 * me], [10 * me + 1]], dtype), splits, axis=0)
        run = ops.run("RdmacollAlltoall", [cupy.array(values), splits])
        counts = run.counts()
        assert counts == ([rows] * size if me == 0 else list(range(size))), counts
        [part] = run.results()
        wanted = np.repeat(np.array([[10 * r + me] for r in range(size)], dtype), counts, axis=0)
        assert (part == wanted).all(), (dtype, rows)

        [whole] = ops.run("RdmacollGather", [cupy.array(mine)], root_rank=1).results()
        assert (whole == (np.concatenate(theirs) if me == 1 else np.empty((0, 2), dtype))).all()
        given = cupy.array(theirs[1]) if me == 1 else cupy.array(np.empty((0, 2), dtype))
        splits = np.array([rows, 1] if me == 1 else [], np.int64)
        [part] = ops.run("RdmacollScatter", [given, splits], root_rank=1).results()
        assert (part == (theirs[1][:rows] if me == 0 else theirs[1][rows:])).all()
"""


def test_ops_whose_results_have_sizes_of_their_own_are_right(place):
    run_body(place, begin() + MOVED)


def test_row_counts_lie_on_the_host(place):
    run_body(
        place,
        begin()
        + """
ops = start()
assert ops.lies_on_host("RdmacollAlltoall", "splits") and ops.lies_on_host("RdmacollScatter", "splits")
assert ops.lies_on_host("RdmacollAlltoall", "received_splits")
assert not ops.lies_on_host("RdmacollAlltoall", "tensor")
""",
        1,
    )


# Work of the stream may still read a result when TensorFlow drops it.
def test_memory_of_a_dropped_result_is_used_again_after_the_work_of_its_stream(place):
    run_body(
        place,
        begin()
        + """
import gc
gc.disable()  # an array that it ends waits for its stream, also for a blocked one
ops, cuda = start(), gpu_arrays.calls()
stream, second = cuda.stream(1), cuda.stream(1)
kept = cupy.array(np.zeros(100_000, np.float32))
for turn in range(3):
    with cupy.cuda.ExternalStream(stream.value):
        run = ops.run("RdmacollAllgather", [cupy.array(np.full(50_000, 2.0 * turn + me, np.float32))])
        address = run.address()
    with cuda.blocked(stream), cupy.cuda.ExternalStream(second.value):
        cuda.copy(gpu_arrays.address(kept), address, 400_000, stream)
        run.drop()
        for _ in range(2):
            ops.run("RdmacollAllgather", [cupy.array(np.full(50_000, -1.0, np.float32))]).drop()
    cuda.synchronize(stream)
    assert (kept.get().reshape(2, 50_000) == [[2.0 * turn], [2.0 * turn + 1]]).all(), turn
""",
    )


def test_results_outlive_the_engine(place):
    after = """
rdmacoll.shutdown()
assert (run.results()[0] == [[0, 0, 0], [1, 1, 1]]).all()
"""
    body = (
        begin()
        + """
ops = start()
run = ops.run("RdmacollAllgather", [cupy.array(np.full((1, 3), me, np.float32))])
run.address()
"""
    )
    run(program(body, after=after), 2, env=place.environment(), deadline_s=200).succeeded()


def test_other_ops_have_no_kernel_for_gpus(place):
    run_body(
        place,
        begin()
        + """
ops = start()
for op in ("RdmacollReduce", "RdmacollPsPush"):
    try:
        ops.run(op, [cupy.array(np.ones(3, np.float32))])
    except AssertionError as error:
        assert "no kernel" in str(error)
    else:
        raise AssertionError(f"found a kernel for {op}")
""",
        1,
    )


def test_every_registration_says_that_the_first_one_was_refused(place):
    run_body(
        place,
        begin()
        + """
ops = start(has_gpu_kernels=False)
ops.refuse_gpu_kernel(3)
for _ in range(3):
    assert ops.register_gpu_kernels() == "the test refuses this kernel"
""",
        size=1,
    )
