"""The memory in which a benchmark has its arrays: of the host, or of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Protocol

import numpy as np

from rdmacoll import engine
from rdmacoll.benchmarks.team_rank.values import Array
from rdmacoll.cli.device_memory import gpu_of_rank, run_until_gpus_are_ready

NAMES = ("numpy", "engine", "cuda")
_WARM_UP_ROUNDS = 3


class Memory(Protocol):
    """Makes, fills and reads the arrays of a benchmark."""

    label: str

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Any:
        """A new array of `count` elements."""

    def put(self, array: Any, values: Array | float) -> None:
        """Writes values to the array."""

    def get(self, array: Any) -> Array | None:
        """The values of a result. None: this rank has no result."""

    def finish(self) -> None:
        """Waits for work that calls have begun. Part of a measured time."""

    def warm_up(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Runs the calls until later ones go the same way. All ranks call it."""


class HostMemory:
    """Arrays of numpy, from `allocate`."""

    def __init__(self, label: str = "numpy", allocate: Callable[..., Array] = np.empty) -> None:
        self.label = label
        self.allocate = allocate

    def put(self, array: Array, values: Array | float) -> None:
        """Writes values to the array."""
        array[:] = values

    def get(self, array: Array | None) -> Array | None:
        """The array itself."""
        return array

    def finish(self) -> None:
        """Calls return when they are done."""

    def warm_up(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Runs the calls some times."""
        for call in list(calls) * _WARM_UP_ROUNDS:
            call()


class CudaMemory:
    """Arrays of the engine's on the GPU of this rank."""

    def __init__(self) -> None:
        self.gpu = gpu_of_rank()
        self.label = f"cuda ({self.gpu.name})"

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Any:
        """A new array of `count` elements."""
        return self.gpu.empty(count, dtype)

    def put(self, array: Any, values: Array | float) -> None:
        """Copies values to the array."""
        self.gpu.put(array, np.broadcast_to(values, array.shape))

    def get(self, array: Any) -> Array | None:
        """Copies a result to the host."""
        return None if array is None else self.gpu.get(array)

    def finish(self) -> None:
        """Waits for the GPU."""
        self.gpu.synchronize()

    def warm_up(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Runs the calls until GPUs are ready for them. Arrays are staged before."""
        run_until_gpus_are_ready(calls)


def memory_named(name: str) -> Memory:
    """The memory of one of NAMES. Raises ConfigError if there is no GPU."""
    if name == "cuda":
        return CudaMemory()
    return HostMemory("engine", engine.empty) if name == "engine" else HostMemory()
