"""Arrays of JAX in collectives: new arrays as results, and refusals to write."""

from __future__ import annotations

import gpu_arrays
import jax
import jax.numpy as jnp
import numpy as np

import rdmacoll
from rdmacoll import engine

rdmacoll.init()
me, count = rdmacoll.rank(), rdmacoll.size()
right = count * (count - 1) / 2
for dtype in ("float32", "bfloat16", "float16", "int32", "uint8"):
    array = jnp.full((7, 1001), me + 1, dtype)
    total = engine.allreduce(array, rdmacoll.Sum)
    assert isinstance(total, jax.Array), total
    assert total.dtype == array.dtype
    assert bool((total == count + right).all()), dtype
    assert bool((array == me + 1).all()), dtype
    del array
rows = engine.allgather(jnp.full((me + 1, 2), float(me)))
assert rows[:, 1].tolist() == [rank for rank in range(count) for _ in range(rank + 1)]
results = []
step = jax.jit(lambda x: jnp.tanh(x @ x) + me)
for turn in range(10):
    array = step(jnp.full((512, 512), float(turn)) / 512)  # is computed while the call begins
    results.append((engine.allreduce(array, rdmacoll.Sum), array))
for total, array in results:
    assert abs(np.asarray(total) - (count * (np.asarray(array) - me) + right)).max() < 1e-4
for out in ("itself", "another"):
    array = jnp.ones(3)
    with gpu_arrays.refused("JAX arrays are immutable"):
        engine.allreduce(array, out=array if out == "itself" else jnp.ones(3))
rdmacoll.shutdown()
