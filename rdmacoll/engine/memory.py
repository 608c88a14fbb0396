"""Memory of the engine as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from rdmacoll.engine import arguments
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.log import Log
from rdmacoll.engine.world import Engine, current

_BYTES_MAX = (1 << 63) - 1


class EngineMemory:
    """A block of the engine's memory; an array over it holds this object as its base.

    Made by one who holds the engine. From then on the block is this object's, and nobody else frees it.
    """

    def __init__(self, engine: Engine, address: int, size: int, release: Callable[[], Any]) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        self._engine = engine
        self._release = release
        engine.share(id(self))

    def __del__(self) -> None:
        engine = self._engine
        if not engine.is_forked:
            self._release()
            engine.let_go(id(self))


def array_over(memory: EngineMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array whose bytes are the block's."""
    return np.asarray(memory).view(dtype).reshape(shape)


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """An array, not filled, in memory that the engine needs not copy: shared within the node.

    shape: a whole number or a sequence of them; dtype: of fixed size. When the engine's pool is exhausted,
    an ordinary array and a warning. The memory is freed with the last array that refers to it. Raises
    ConfigError for a shape or dtype that cannot be, and NotInitializedError.
    """
    engine = current()
    dims, kind = arguments.shape(shape), arguments.dtype(dtype)
    size = math.prod(dims) * kind.itemsize
    if size > _BYTES_MAX:
        raise ConfigError(f"shape={shape!r} of {kind} are {size} bytes, more than an address can tell.")
    if size == 0:
        return np.empty(dims, kind)
    with engine.held() as owner:
        address = engine.library.memory_allocate(owner, size)
        if address:
            return _block(engine, address, size, dims, kind)
    log = Log(engine.values.text("RDMACOLL_LOG"), engine.topology[0])
    log.warning(
        f"empty(): no {size} bytes are left in the engine's pool (RDMACOLL_BUF_SIZE): an ordinary array is "
        "given, which costs a copy."
    )
    return np.empty(dims, kind)


def _block(
    engine: Engine, address: int, size: int, dims: tuple[int, ...], kind: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    library, owner = engine.library, engine.address
    memory = EngineMemory(engine, address, size, lambda: library.memory_free(owner, address))
    return array_over(memory, dims, kind)
