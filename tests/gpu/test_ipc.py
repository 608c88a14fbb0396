"""Ranks of a node that read each other's GPU memory (CUDA IPC) keep the promises of ranks that stage it."""

from __future__ import annotations

import pytest
from places import REAL, Place, installed, places, run_body, skip_without_ipc
from ranks import run
from test_collectives import run_numpy_program
from test_libraries import PROGRAMS
from test_stream_order import CURRENT, ORDER

ALWAYS = {"RDMACOLL_CUDA_IPC": "always"}

# Parts of one allocation, as the allocators of libraries give them, begin at any offset in it.
OFFSETS = """
import gpu_arrays
cupy, count = gpu_arrays.cupy(), rdmacoll.size()
whole = cupy.array(np.zeros(3_000_000, np.float32))
def metrics():
    found = rdmacoll.metrics()
    return found["bytes_staged"], found["bytes_between_gpus"]
gpu_arrays.prepare_sums()
staged, between = metrics()
for turn, begin in enumerate((0, 4, 33, 1_000_003)):
    values = np.arange(1_000_001, dtype=np.float32) % 977 + me + turn
    part = whole[begin : begin + 1_000_001]
    part[...] = cupy.array(values)
    right = values * count + count * (count - 1) / 2 - me * count
    total = engine.allreduce(part, rdmacoll.Sum)
    assert (total.get() == right).all() and (part.get() == values).all(), begin
    assert engine.allreduce(part, rdmacoll.Sum, out=part) is part and (part.get() == right).all(), begin
assert metrics()[0] == staged and metrics()[1] > between, (metrics(), staged, between)
"""


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest) -> Place:
    """The driver of the test, which the machine's sandbox must let processes share."""
    found: Place = request.param
    skip_without_ipc(REAL if found.is_real else "")
    return found


@pytest.mark.parametrize("place", places(is_fake_slow=True), indirect=True)
@pytest.mark.parametrize("size", [2, 4, 5], ids=["two", "four", "five"])
def test_collectives_equal_numpy(place: Place, size: int) -> None:
    run_numpy_program(place, size, **ALWAYS)


@pytest.mark.parametrize("place", places(is_fake_slow=True), indirect=True)
def test_ranks_with_host_memory_take_part(place: Place) -> None:
    run_numpy_program(place, 3, DEVICE_RANKS="0,2", RDMACOLL_ORDER="canonical", **ALWAYS)


@pytest.mark.parametrize("place", places(), indirect=True)
def test_arrays_at_any_offset_of_an_allocation_are_summed_on_the_gpu(place: Place) -> None:
    run_body(place, OFFSETS, **ALWAYS)


@pytest.mark.parametrize("place", places(), indirect=True)
@pytest.mark.parametrize("body", [ORDER, CURRENT], ids=["given", "current"])
def test_streams_order_calls(place: Place, body: str) -> None:
    begin = "import gpu_arrays\ngpu_arrays.prepare_sums()\n"
    end = 'assert rdmacoll.metrics()["bytes_between_gpus"] > 0, rdmacoll.metrics()\n'
    run_body(place, begin + body + "\n" + end, **ALWAYS)


if installed():

    @pytest.mark.gpu
    @pytest.mark.parametrize(
        "place", [Place(name, True) for name in installed()], indirect=True, ids=installed()
    )
    def test_a_library_takes_part(place: Place) -> None:
        run(PROGRAMS[place.arrays], 2, env=place.environment(**ALWAYS), deadline_s=200).succeeded()
