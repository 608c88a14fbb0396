"""The library of arrays in GPU memory for a program on ranks: cupy, or the imitated one on any CUDA driver.

The variable GPU_ARRAYS names it: "cupy" or "imitated", which is the default.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from cuda_calls import Cuda, Handle

import rdmacoll
from rdmacoll import ConfigError, engine


def driver() -> str:
    """The path of the CUDA driver, which is that of this machine unless a test names the fake one."""
    return os.environ.get("RDMACOLL_CUDA_LIBRARY", "libcuda.so.1")


@functools.lru_cache(maxsize=1)
def cupy() -> ModuleType:
    """The library, as the module cupy."""
    if os.environ.get("GPU_ARRAYS") == "cupy":
        import cupy as real

        return real
    import device_array

    return device_array.cupy_of(driver())


@functools.lru_cache(maxsize=1)
def calls() -> Cuda:
    """The driver itself, with the primary context of the first GPU current in this thread."""
    cupy().array(np.zeros(1))  # the library first, as in a program
    return Cuda(driver())


def address(array: Any) -> int:
    """The address of the first element in memory of the GPU."""
    return int(array.__cuda_array_interface__["data"][0])


def strided(values: Any) -> Any:
    """A new array with the values and the strides that they have on the host."""
    library = cupy()
    reach = sum((dim - 1) * step for dim, step in zip(values.shape, values.strides)) + values.itemsize
    memory = library.empty(reach, np.uint8)
    if os.environ.get("GPU_ARRAYS") == "cupy":
        array = library.ndarray(values.shape, values.dtype, memory.data, values.strides)
        array[...] = library.asarray(values)
        return array
    array = library.ndarray(
        memory, memory._address, values.shape, values.dtype, values.strides, memory.device.id
    )
    array[...] = values
    return array


def prepare_sums() -> None:
    """Waits until the GPUs of all ranks have the kernels of sums, which they load beside the calls, and until
    ranks of a node have each other's memory open where they can. Call it on all ranks."""
    array = cupy().array(np.zeros(20_000, np.float32))
    quiet = 0  # calls in a row: offers and answers go with calls
    while quiet < 6:
        engine.allreduce(array, rdmacoll.Sum, out=array)
        preparing = np.array([rdmacoll.metrics()["gpus_preparing"]], np.float64)
        quiet = quiet + 1 if engine.allreduce(preparing, rdmacoll.Sum)[0] == 0 else 0


@functools.cache
def takes(dtype: Any) -> bool:
    """Whether the library has arrays of this dtype and passes them on. Some releases have no bfloat16."""
    values = np.ones(3, dtype)
    try:
        array = cupy().array(values)
        array.__dlpack__()
        return bool(array.get().tobytes() == values.tobytes())
    except Exception:  # each release refuses in its own way
        if np.dtype(dtype).name not in ("bfloat16", "bool"):
            raise
        return False


class Busy:
    """Work that keeps a stream of the GPU busy: copies of large memory."""

    def __init__(self, size: int, copies: int) -> None:
        self._size, self._copies = size, copies
        self._memory = [calls().allocate(size) for _ in range(2)]

    def enqueue(self, stream: Handle) -> None:
        """Enqueues the copies, and returns before they are done."""
        for _ in range(self._copies):
            calls().copy(self._memory[1], self._memory[0], self._size, stream)


@contextmanager
def refused(words: str) -> Iterator[None]:
    """The block must raise a ConfigError with these words."""
    try:
        yield
    except ConfigError as error:
        if words not in str(error):
            raise
        return
    raise AssertionError(f"not refused: {words}")
