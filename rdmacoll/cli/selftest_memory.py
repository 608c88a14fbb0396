"""`rdmacoll selftest --memory cuda`: collectives on copies of their arrays in memory of a GPU."""

from __future__ import annotations

import functools
from typing import Any, Callable

import numpy as np

from rdmacoll import engine
from rdmacoll.cli.device_memory import Gpu

NAMES = ("host", "cuda")
_ON_GPU = {
    f"{group}{name}{end}"
    for group in ("", "grouped_")
    for name in ("allreduce", "broadcast", "allgather", "reducescatter", "reduce", "gather", "scatter")
    for end in ("", "_async")
} | {"alltoall", "alltoall_async"}


class EngineOnGpu:
    """Has the names of `rdmacoll.engine`. Its collectives take and return numpy arrays.

    The arrays of the collectives themselves are in memory of the GPU.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def __getattr__(self, name: str) -> Any:
        found = getattr(engine, name)
        return functools.partial(self._call, found) if name in _ON_GPU else found

    def _call(self, function: Callable[..., Any], array: Any, *arguments: Any, **options: Any) -> Any:
        result = function(self._to_gpu(array), *arguments, **options)
        return _Handle(self, result) if isinstance(result, engine.Handle) else self.to_host(result)

    def _to_gpu(self, array: Any) -> Any:
        if isinstance(array, list):
            return [self._to_gpu(one) for one in array]
        copied = self._gpu.empty(array.shape, array.dtype)
        self._gpu.put(copied, array)
        return copied

    def to_host(self, result: Any) -> Any:
        """The result with numpy arrays."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.to_host(one) for one in result)
        return result if result is None or isinstance(result, np.ndarray) else self._gpu.get(result)


class _Handle:
    """A call under way, with a result on the host."""

    def __init__(self, owner: EngineOnGpu, handle: Any) -> None:
        self._owner, self._handle = owner, handle

    def wait(self) -> Any:
        """Waits, and copies the result."""
        return self._owner.to_host(self._handle.wait())
