"""Worlds of ranks that share a GPU: large arrays, refusals by name, and many starts and stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import Place, places, run_body
from rank_program import program
from ranks import run

# Each array is larger than the memory through which it is staged.
LARGE = """
import os
import gpu_arrays
cupy, count = gpu_arrays.cupy(), rdmacoll.size()
size = 75_000_001 if "RDMACOLL_CUDA_LIBRARY" not in os.environ else 1_000_001
ramp = np.arange(size, dtype=np.int32) % 1_000_003
right = ramp * count + count * (count - 1) // 2
for dtype in (np.float32, np.int32):
    array = cupy.array((ramp + me).astype(dtype))
    total = engine.allreduce(array, rdmacoll.Sum)
    assert (array.get() == ramp + me).all() and (total.get() == right).all(), dtype
    assert engine.allreduce(total, rdmacoll.Max, out=total) is total and (total.get() == right).all(), dtype
    whole = engine.allgather(array).get().reshape(count, size)
    assert all((whole[rank] == ramp + rank).all() for rank in range(count)), dtype
    assert (engine.broadcast(array, count - 1).get() == ramp + count - 1).all(), dtype
    del total, whole
parts = [cupy.array((ramp[: size // 161 + n] + me).astype(np.float32)) for n in range(161)]
for n, total in enumerate(engine.grouped_allreduce(parts, rdmacoll.Sum)):
    assert (total.get() == right[: size // 161 + n]).all(), n
"""

REFUSED = """
import gpu_arrays
from cuda_calls import Handle
import ctypes
cupy, cuda = gpu_arrays.cupy(), gpu_arrays.calls()
array, stream, graph = cupy.array(np.arange(1000.0) + me), cuda.stream(), Handle()
cuda("cuStreamBeginCapture_v2", stream, 2)
with gpu_arrays.refused("captured into a CUDA graph"):
    engine.allreduce(array, stream=stream.value)
cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
with gpu_arrays.refused("stream=0 is ambiguous"):
    engine.allreduce(array, stream=0)
with gpu_arrays.refused("in host memory"):
    engine.allreduce(array, out=np.zeros(1000))
with gpu_arrays.refused("array 1 of the group is in host memory"):
    engine.grouped_allreduce([array, np.zeros(3)])
total = engine.allreduce(array, rdmacoll.Sum, stream=stream.value)
cuda.synchronize(stream)
assert (total.get() == size * np.arange(1000.0) + size * (size - 1) / 2).all()
"""


KILLED = """
import gpu_arrays
array = gpu_arrays.cupy().array(np.full(300_000, me, np.float32))
for turn in range(2000):
    if me == 1 and turn == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.allreduce(array, rdmacoll.Max, out=array)
"""

ILLEGAL = """
import gpu_arrays
from cuda_calls import launch_write_word
cupy, cuda = gpu_arrays.cupy(), gpu_arrays.calls()
array, stream = cupy.array(np.arange(1000.0)), cuda.stream()
engine.allreduce(array, stream=stream.value)
if me == 1:
    launch_write_word(cuda, 8, 1, stream)
engine.allreduce(array, out=array, stream=stream.value)
"""


@pytest.mark.parametrize("place", places())
def test_large_arrays_are_staged_in_parts(place: Place) -> None:
    run_body(place, LARGE)


@pytest.mark.parametrize("place", places())
def test_what_cannot_be_done_is_refused_by_name(place: Place) -> None:
    run_body(place, REFUSED)


@pytest.mark.parametrize("place", places())
def test_a_rank_that_is_killed_is_named_to_those_that_wait_for_a_gpu(place: Place) -> None:
    found = run(program(KILLED), 2, env=place.environment(), deadline_s=100).reports[0]
    assert (found["error"], found["attributes"]["rank"]) == ("RankFailedError", 1), found


@pytest.mark.parametrize("place", places())
def test_a_kernel_of_the_program_that_fails_is_named_to_all_ranks(place: Place) -> None:
    # The process ends at once, since nothing more can be done on its GPU.
    body = program(ILLEGAL, after="os._exit(0)")
    other, own = run(body, 2, env=place.environment(), deadline_s=100).succeeded()
    assert (other["error"], other["attributes"]["rank"]) == ("RankFailedError", 1), other
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in other["text"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in own["text"]


@pytest.mark.parametrize("place", places())
def test_starts_and_stops_leave_no_descriptor_thread_or_memory_of_the_gpu(place: Place) -> None:
    path = Path(__file__).with_name("starts_and_stops.py")
    turns = 50 if place.is_real else 4
    found = run(path, 2, arguments=[str(turns)], env=place.environment(), deadline_s=200).succeeded()
    for counts in found:
        assert len(counts) == turns
        assert counts == [counts[0]] * turns
