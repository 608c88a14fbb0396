"""Memory of the engine as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rdmacoll._abi import arguments
from rdmacoll._abi.arrays import Block, array_over
from rdmacoll._base.log import Log
from rdmacoll._calls.device_arrays import BFLOAT16
from rdmacoll._calls.gpu_array import GpuArray, gpu_of
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.errors import ConfigError
from rdmacoll.operators import DTYPES

_BYTES_MAX = (1 << 63) - 1


class _PoolMemory:
    """Memory of the engine's pool, freed when this object goes. Make one only while holding the engine."""

    def __init__(self, engine: Engine, address: int) -> None:
        self._engine = engine
        self._address = address
        engine.share(id(self))

    def __del__(self) -> None:
        engine = self._engine
        if not engine.is_forked:
            engine.library.memory_free(engine.address, self._address)
            engine.release(id(self))


def pool_array(engine: Engine, dims: tuple[int, ...], kind: Any) -> Any:
    """An uninitialised array in the engine's pool. None: no room is left. Raises NotInitializedError."""
    size = math.prod(dims) * kind.itemsize
    if size == 0:
        return np.empty(dims, kind)
    with engine.held() as owner:
        address = engine.library.memory_allocate(owner, size)
        return array_over(Block(_PoolMemory(engine, address), address, size), dims, kind) if address else None


def empty(shape: int | Sequence[int], dtype: Any = np.float32, device: Any = None) -> Any:
    """An uninitialised array in memory that the engine need not copy, since the node shares it.

    shape: a whole number or a sequence of them. dtype: of fixed size. When the engine's pool is exhausted,
    the function logs a warning and returns an ordinary array. The memory is freed with the last array that
    refers to it. Raises ConfigError for an impossible shape or dtype, and NotInitializedError.

    device: "cuda:0" or another GPU makes a `GpuArray` there. Its dtype may be "bfloat16", too. Raises
    RdmacollError if there is no such GPU, or if its memory is exhausted.
    """
    engine = current()
    dims = arguments.shape(shape)
    kind: Any = BFLOAT16 if device is not None and dtype == "bfloat16" else arguments.dtype(dtype)
    size = math.prod(dims) * kind.itemsize
    if size > _BYTES_MAX:
        raise ConfigError(f"shape={shape!r} of {kind} are {size} bytes, more than an address can express.")
    if device is not None:
        DTYPES.moved(kind)
        return GpuArray.allocate(engine, dims, kind, gpu_of(device))
    array = pool_array(engine, dims, kind)
    if array is not None:
        return array
    log = Log(engine.values.text("RDMACOLL_LOG"), engine.topology[0])
    log.warning(
        f"empty(): no {size} bytes are left in the engine's pool (RDMACOLL_BUF_SIZE), so the array is an "
        "ordinary one, which costs a copy."
    )
    return np.empty(dims, kind)
