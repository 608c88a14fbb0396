"""Arrays of cupy in collectives: slow kernels on each kind of stream, and a captured stream."""

from __future__ import annotations

import cupy
import gpu_arrays
import numpy as np

import rdmacoll
from rdmacoll import engine

rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
right = count * (count - 1) / 2
slow = cupy.RawKernel(
    """
extern "C" __global__ void slow(float* x, long long n, float value, long long clocks) {
  long long begin = clock64(), step = gridDim.x * blockDim.x;
  while (clock64() - begin < clocks);
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) x[i] = value;
}
""",
    "slow",
)
Stream = cupy.cuda.Stream
for stream in (Stream(non_blocking=True), Stream(), Stream.null, Stream.ptds):
    kept = []
    with stream:
        array = cupy.zeros(300_000, np.float32)
        for turn in range(5):
            slow((32,), (256,), (array, np.int64(array.size), np.float32(me + turn), np.int64(20_000_000)))
            total = engine.allreduce(array, rdmacoll.Sum)
            kept.append(total * 2)
            total.fill(-1)
            array.fill(-1)
    stream.synchronize()
    for turn, value in enumerate(kept):
        assert (value.get() == 2 * (count * turn + right)).all(), (stream, turn)
memory = cupy.cuda.alloc(4000)
stream = Stream(non_blocking=True)
with stream:
    static = cupy.ndarray(1000, np.float32, memory)
    static.fill(1)
    stream.synchronize()
    stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeRelaxed)
    with gpu_arrays.refused("captured into a CUDA graph"):
        engine.allreduce(static, out=static)
    stream.end_capture()
assert (engine.allreduce(static).get() == 1).all()
whole = engine.empty((3, 50), "bfloat16", device="cuda:0")
assert engine.allreduce(whole, out=whole) is whole
rdmacoll.shutdown()
