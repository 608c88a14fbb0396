"""Tensors of PyTorch in collectives: dtypes, strides, streams, and refusals by name."""

from __future__ import annotations

import gpu_arrays
import numpy as np
import torch

import rdmacoll
from rdmacoll import engine

rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
right = count * (count - 1) / 2
gpu = torch.device("cuda:0")
dtypes = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int64"]
for dtype in (getattr(torch, name) for name in dtypes):
    tensor = torch.full((7, 1001), me + 1, dtype=dtype, device=gpu)
    total = engine.allreduce(tensor, rdmacoll.Sum)
    assert (type(total), total.dtype, total.device) == (torch.Tensor, dtype, gpu)
    assert (total == count + right).all(), dtype
    assert (tensor == me + 1).all(), dtype
    assert engine.allreduce(tensor, rdmacoll.Max, out=tensor) is tensor
    assert (tensor == count).all(), dtype
flags = torch.tensor([me == 0, True, False], device=gpu)
assert engine.allreduce(flags, rdmacoll.Min).tolist() == [count == 1, True, False]
waves = torch.full((5,), 1j * me, dtype=torch.complex64, device=gpu)
assert engine.allreduce(waves, rdmacoll.Sum).tolist() == [1j * right] * 5
columns = torch.arange(6.0, device=gpu).reshape(2, 3).T + me  # not contiguous
expected = [[count * (x + 3 * y) + right for y in (0, 1)] for x in range(3)]
assert engine.allreduce(columns, rdmacoll.Sum).tolist() == expected
out = torch.zeros((2, 3), device=gpu).T
assert engine.allreduce(columns, rdmacoll.Sum, out=out) is out
assert out.tolist() == expected
rows = engine.allgather(torch.full((me + 1, 2), float(me), device=gpu))
assert rows[:, 1].tolist() == [rank for rank in range(count) for _ in range(rank + 1)]
assert (engine.broadcast(torch.full((9,), me, device=gpu), count - 1) == count - 1).all()
group = [torch.full((n,), float(me), device=gpu) for n in (1, 50, 70_000)]
parts = engine.grouped_allreduce(group, rdmacoll.Sum)
assert all((part == right).all() for part in parts)
received, splits = engine.alltoall(torch.arange(count, dtype=torch.int32, device=gpu), [1] * count)
assert received.tolist() == [me] * count
assert np.asarray(splits).tolist() == [1] * count

stream, kept = torch.cuda.Stream(), []
for turn in range(10):
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # some milliseconds of work before the call
        tensor = torch.full((300_000,), float(me + turn), device=gpu)
        handle = engine.allreduce_async(tensor, rdmacoll.Sum)
        total = handle.wait()
        kept.append(total * 2)  # a reader on the same stream
        total.fill_(-1)
        tensor.fill_(-1)
torch.cuda.synchronize()
for turn, value in enumerate(kept):
    assert (value == 2 * (count * turn + right)).all(), turn

weights = torch.ones(3, device=gpu, requires_grad=True)
with gpu_arrays.refused("tensor.detach()"):
    engine.allreduce(weights)
assert engine.allreduce(weights.detach()).tolist() == [1, 1, 1]
graph = torch.cuda.CUDAGraph()
static = torch.ones(1000, device=gpu)
torch.cuda.synchronize()
with torch.cuda.graph(graph, capture_error_mode="relaxed"):
    static.add_(1)
    with gpu_arrays.refused("captured into a CUDA graph"):
        engine.allreduce(static, out=static)
assert (engine.allreduce(static) == 1).all()
rdmacoll.shutdown()
