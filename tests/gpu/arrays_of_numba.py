"""Arrays of numba, which have the CUDA array interface alone, in collectives."""

from __future__ import annotations

import numpy as np
from numba import cuda

import rdmacoll
from rdmacoll import engine

rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
right = count * (count - 1) / 2
for dtype in ("float32", "float64", "int32", "uint8", "complex128"):
    array = cuda.to_device(np.full((7, 1001), me + 1, dtype))
    assert engine.allreduce(array, rdmacoll.Sum, out=array) is array
    assert (array.copy_to_host() == count + right).all(), dtype
    total = engine.allreduce(array, rdmacoll.Sum)
    assert (cuda.as_cuda_array(total).copy_to_host() == count * (count + right)).all(), dtype
stream = cuda.stream()
array = cuda.to_device(np.full(1000, float(me)), stream=stream)
total = engine.allreduce(array, rdmacoll.Sum, stream=int(getattr(stream.handle, "value", stream.handle)))
assert (cuda.as_cuda_array(total).copy_to_host() == right).all()
rdmacoll.shutdown()
