"""Calls are ordered by the caller's stream: after long work before them, and before all work behind them."""

from __future__ import annotations

import pytest
from places import Place, places, run_body

# In each turn the stream is busy at first, and then writes the input. A copy behind it reads the result,
# and later work overwrites both arrays. The host waits for the stream at the end only. In the last turn a
# host function holds the stream up until the call has returned.
ORDER = """
import contextlib, os
import gpu_arrays
from cuda_calls import Handle
cupy, cuda = gpu_arrays.cupy(), gpu_arrays.calls()
is_real = "RDMACOLL_CUDA_LIBRARY" not in os.environ
busy = gpu_arrays.Busy(256 << 20, 60) if is_real else gpu_arrays.Busy(1 << 20, 3)
streams = {"not blocking": cuda.stream(1), "blocking": cuda.stream(0)}
streams.update({"legacy": Handle(1), "per thread": Handle(2)})
TURNS = 4 if is_real else 2
for kind, stream in streams.items():
    for size in (1, 5000, 1 << 20) if is_real else (1, 5000):
        inputs = [cupy.array(np.full(size, me + turn, np.float32)) for turn in range(TURNS)]
        array, out = (cupy.array(np.full(size, -1, np.float32)) for _ in range(2))
        copies = [cupy.array(np.full(size, -2, np.float32)) for _ in range(3 * TURNS)]
        cuda("cuCtxSynchronize")
        at, read, written = 4 * size, gpu_arrays.address(array), gpu_arrays.address(out)
        for turn in range(TURNS):
            keep = [gpu_arrays.address(one) for one in copies[3 * turn : 3 * turn + 3]]
            with cuda.blocked(stream, 20) if turn == TURNS - 1 else contextlib.nullcontext():
                busy.enqueue(stream)
                cuda.copy(read, gpu_arrays.address(inputs[turn]), at, stream)
                handle = engine.allreduce_async(array, rdmacoll.Sum, out=out, stream=stream.value)
                if turn == TURNS - 1:
                    assert cuda.code("cuStreamQuery", stream) != 0, f"the call has waited for {kind}"
                    time.sleep(0.05)
                    assert not handle.done()
            assert handle.wait() is out
            cuda.copy(keep[0], written, at, stream)
            cuda.fill(written, 0xEE, at, stream)
            new = engine.allreduce(array, rdmacoll.Max, stream=stream.value)
            cuda.copy(keep[1], gpu_arrays.address(new), at, stream)
            engine.allreduce(array, rdmacoll.Min, out=array, stream=stream.value)
            cuda.copy(keep[2], read, at, stream)
            cuda.fill(read, 0xFF, at, stream)
        cuda.synchronize(stream)
        for turn in range(TURNS):
            right = rdmacoll.size() * turn + rdmacoll.size() * (rdmacoll.size() - 1) / 2
            expected = (right, turn + rdmacoll.size() - 1, turn)
            for copy, value in zip(copies[3 * turn : 3 * turn + 3], expected):
                values = copy.get()
                assert (values == value).all(), (kind, size, turn, value, values[:4], values[-4:])
"""

CURRENT = """
import gpu_arrays
from cuda_calls import Handle
cupy, cuda = gpu_arrays.cupy(), gpu_arrays.calls()
count = rdmacoll.size()
run = None
for turn in range(5):
    stream = cupy.cuda.ExternalStream(cuda.stream().value)
    with stream:
        array = cupy.array(np.full(70_001, float(me + turn)))
        total = engine.allreduce(array, rdmacoll.Sum)
        rows = engine.allgather(array)
        shares = engine.reducescatter(array, rdmacoll.Sum)
        groups = engine.grouped_allreduce([array, total], rdmacoll.Max)
        right = count * turn + count * (count - 1) / 2
        assert (total.get() == right).all() and (shares.get() == right).all()
        assert rows.get().reshape(count, -1)[:, 7].tolist() == [rank + turn for rank in range(count)]
        assert (groups[0].get() == turn + count - 1).all() and (groups[1].get() == right).all()
prepared, out = cupy.array(np.zeros(1000, np.float32)), cupy.array(np.zeros(1000, np.float32))
run = engine.prepare_allreduce(prepared, out, rdmacoll.Sum)
source = [cupy.array(np.full(1000, me + turn, np.float32)) for turn in range(20)]
for turn in range(20):
    current = cupy.cuda.get_current_stream().ptr or 1
    cuda.copy(gpu_arrays.address(prepared), gpu_arrays.address(source[turn]), 4000, Handle(current))
    assert run() is out
    assert (out.get() == count * turn + count * (count - 1) / 2).all(), turn
"""


@pytest.mark.parametrize("place", places())
def test_a_call_waits_for_its_stream_and_the_stream_for_the_call(place: Place) -> None:
    run_body(place, ORDER)


@pytest.mark.parametrize("place", places())
def test_the_current_stream_of_the_library_orders_calls(place: Place) -> None:
    run_body(place, CURRENT)
