"""Collectives on arrays in GPU memory, on the fake CUDA driver: cupy is imitated by tests/device_array.py."""

from __future__ import annotations

import os

import pytest
from cuda_sim_build import fake_driver
from marks import slow
from rank_program import program
from ranks import ROOT, Outcome, run

PROGRAM = ROOT / "tests" / "multiprocess" / "device_collectives.py"


def environment(**extra: str) -> dict[str, str]:
    seed = str(int.from_bytes(os.urandom(3), "big"))
    print("CUDA_SIM_SEED", seed)
    return {
        "RDMACOLL_CUDA_LIBRARY": str(fake_driver()),
        "CUDA_SIM_SEED": seed,
        "CUDA_SIM_DELAY_US": "50",
        "CUDA_SIM_MACHINE": "h100x2",
        **extra,
    }


def run_body(body: str, size: int = 2, **extra: str) -> Outcome:
    """Runs the body on ranks that have the imitated cupy as `cupy`."""
    begin = 'import device_array\ncupy = device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])\n'
    outcome = run(program(begin + body), size, env=environment(**extra), deadline_s=300)
    found = outcome.succeeded()
    assert [entry["error"] for entry in found] == [None] * size, found
    return outcome


def run_numpy_program(size: int, **extra: str) -> None:
    seed = str(int.from_bytes(os.urandom(3), "big"))
    environ = environment(**extra)
    found = run(
        PROGRAM, size, arguments=["numpy_collectives.py", seed], env=environ, deadline_s=600
    ).succeeded()
    assert [entry["rank"] for entry in found] == list(range(size))
    assert all(entry["cases"] > 250 for entry in found)


@pytest.mark.parametrize(
    ("size", "transport"), [(1, "shm"), slow(2, "shm"), slow(3, "tcp"), slow(3, "shm"), slow(5, "shm")]
)
def test_collectives_on_gpu_memory_equal_numpy(size, transport):
    run_numpy_program(size, RDMACOLL_TRANSPORT=transport)


@pytest.mark.slow
def test_a_world_of_host_memory_and_gpu_memory_equals_numpy():
    run_numpy_program(3, DEVICE_RANKS="1")


@pytest.mark.slow
def test_canonical_order_on_gpu_memory_has_the_bits_of_host_memory():
    run_numpy_program(3, DEVICE_RANKS="0,2", RDMACOLL_ORDER="canonical")


def test_a_call_begins_after_the_present_work_of_its_stream():
    run_body("""
right = lambda turn: size * turn + size * (size - 1) / 2
for turn in range(30):
    values = np.full(5000, float(me + turn))
    array = cupy.array(values)                  # arrives late, on the current stream
    assert (engine.allreduce(array, rdmacoll.Sum, out=array).get() == right(turn)).all()
    other = device_array.new_stream()
    with other:
        array.set(values)
    handle = engine.allreduce_async(array, rdmacoll.Sum, stream=other)
    total = handle.wait()
    assert type(total) is cupy.ndarray and total is not array
    with other:  # finds the result, as later work of this stream
        assert (total.get() == right(turn)).all() and (array.get() == values).all()
""")


def test_the_engine_waits_for_no_work_on_other_streams_of_the_caller():
    run_body("""
engine.allreduce(cupy.array(np.ones(4)))    # the first use of the GPU
busy, other = device_array.new_stream(), device_array.new_stream()
with device_array._gpu(0).current() as cuda, cuda.blocked(device_array.Handle(busy.ptr)), other:
    values = [cupy.array(np.full(3, float(me + part))) for part in range(40)]
    totals = engine.grouped_allreduce(values, op=rdmacoll.Sum)
    assert [total.get()[2] for total in totals] == [size * part + size * (size - 1) / 2 for part in range(40)]
    rows = engine.allgather(values[1])
    assert rows.get().tolist() == [rank + 1.0 for rank in range(size) for _ in range(3)]
""")


def test_a_prepared_call_is_ordered_by_its_stream_in_each_run():
    run_body("""
array, out = cupy.empty(5000, np.float64), cupy.empty(5000, np.float64)
run = engine.prepare_allreduce(array, out, rdmacoll.Sum)
rows = engine.prepare_allgather(array)
for turn in range(20):
    array.set(np.full(5000, float(me + turn)))
    assert run() is out
    assert (out.get() == size * turn + size * (size - 1) / 2).all()
    assert rows().get().reshape(size, -1)[:, 7].tolist() == [rank + turn for rank in range(size)]
""")


def test_many_small_arrays_are_packed_across_the_parts_in_which_the_pool_is_pinned():
    run_body("""
arrays = [cupy.array(np.full(size, float(me), np.float32)) for size in (64, 3000, 250_000) * 25]
for turn in range(3):
    engine.grouped_allreduce(arrays, rdmacoll.Sum, out=arrays)
assert all((array.get() == 2 ** turn).all() for array in arrays)
""")


def test_a_library_that_writes_no_arrays_gets_memory_of_the_engine():
    run_body("""
class Lent:
    # An array with DLPack alone, of a library that is not known.
    def __init__(self, array):
        self.array = array
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
    def __dlpack__(self, stream=None):
        assert stream == 1       # the legacy default stream waits for the array
        device_array.get_current_stream().synchronize()
        return self.array.__dlpack__(stream)
kept = []
for turn in range(10):
    total = engine.allreduce(Lent(cupy.array(np.arange(7.0) + me)), rdmacoll.Sum)
    rows = engine.allgather(Lent(cupy.array(np.full((me + 1, 2), turn))))
    assert "GpuArray(shape=(7,), dtype=float64, device='cuda:0')" == repr(total)
    assert cupy.from_dlpack(total).get().tolist() == [size * n + size * (size - 1) / 2 for n in range(7)]
    assert cupy.from_dlpack(rows).get().shape == (size * (size + 1) // 2, 2)
    kept.append((total, rows, turn))
for total, rows, turn in kept:
    assert (cupy.from_dlpack(rows).get() == turn).all()
""")


def test_arrays_without_elements_and_without_an_address_are_taken():
    run_body("""
class Bare:                       # as numba's: one protocol, and no address for no elements
    def __init__(self, *shape):
        memory = {"data": (0, False), "strides": None, "stream": None}
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "version": 3, **memory}
for shape in (0,), (0, 3):
    for call in engine.allreduce, engine.allgather, engine.reducescatter, engine.alltoall:
        assert call(Bare(*shape)).shape == shape
    assert engine.broadcast(Bare(*shape), 1).shape == shape
    array = Bare(*shape)
    assert engine.allreduce(array, out=array) is array
    assert [one.shape for one in engine.grouped_allreduce([Bare(2, 0), array])] == [(2, 0), shape]
full = cupy.array(np.ones(3, np.float32))
device_array.get_current_stream().synchronize()
found = engine.grouped_allreduce([full, Bare(0)], rdmacoll.Sum, stream=1)
with cupy.cuda.Stream.null:
    assert found[0].get().tolist() == [size] * 3 and found[1].shape == (0,)
""")


def test_memory_of_the_engine_on_a_gpu_is_adopted_and_reduced_in_place():
    run_body("""
for dtype in "float32", "bfloat16", "int8":
    memory = engine.empty((3, 50), dtype, device="cuda:1")
    assert memory.__dlpack_device__() == (2, 1) and memory.shape == (3, 50)
    view = cupy.from_dlpack(memory)
    with device_array.Device(1):
        stream = device_array.get_current_stream()
        view.set(np.full((3, 50), me + 1))
        assert engine.allreduce(memory, rdmacoll.Sum, out=memory, stream=stream) is memory
        del memory
        assert (view.get().astype(float) == size * (size + 1) / 2).all()
assert engine.empty((0, 2), device="cuda").shape == (0, 2)
try:
    engine.empty(3, device="cuda:7")
    raise AssertionError("a GPU that is not there")
except rdmacoll.RdmacollError as error:
    assert "cuda:7" in str(error), error
try:
    engine.allreduce(cupy.array(np.ones(3)), out=engine.empty(3, np.float64, device="cuda:1"))
    raise AssertionError("two GPUs")
except rdmacoll.ConfigError as error:
    assert "cuda:0" in str(error) and "cuda:1" in str(error), error
engine.barrier()
""")


def test_a_refused_array_on_a_gpu_is_announced_to_the_other_ranks():
    run_body("""
array = cupy.array(np.arange(4.0))
try:
    engine.allreduce(array, stream=0 if me == 0 else None)
    raise AssertionError("refused")
except rdmacoll.ConfigError as error:
    assert me == 0 and "stream=0 is ambiguous" in str(error), error
except rdmacoll.MismatchError as error:
    assert me == 1 and "stream=0 is ambiguous" in str(error), error
assert (engine.allreduce(array).get() == np.arange(4.0)).all()
""")


def test_a_captured_stream_is_refused_by_name():
    run_body(
        """
array, stream = cupy.array(np.arange(4.0)), device_array.new_stream()
with device_array._gpu(0).current() as cuda:
    cuda("cuStreamBeginCapture_v2", device_array.Handle(stream.ptr), 2)
try:
    engine.allreduce(array, stream=stream)
    raise AssertionError("captured")
except rdmacoll.ConfigError as error:
    assert "captured into a CUDA graph" in str(error), error
engine.barrier()
""",
        size=1,
    )


def test_without_a_driver_arrays_on_a_gpu_are_refused_with_the_cure():
    body = """
try:
    engine.empty(3, device="cuda:0")
    raise AssertionError("no driver")
except rdmacoll.ConfigError as error:
    assert "RDMACOLL_CUDA_LIBRARY" in str(error) and "libmissing.so" in str(error), error
assert engine.allreduce(np.ones(2)).tolist() == [1, 1]
"""
    found = run(program(body), 1, env={"RDMACOLL_CUDA_LIBRARY": "libmissing.so"}, deadline_s=120).succeeded()
    assert [entry["error"] for entry in found] == [None], found
