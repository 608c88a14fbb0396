"""Memory of a GPU for measurements and tests: values in and out, and the speed of plain copies."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rdmacoll import engine
from rdmacoll._world import world
from rdmacoll.cli.references import dtype_of
from rdmacoll.errors import ConfigError, RdmacollError
from rdmacoll.operators import Max

_REPEATS = 5
_QUIET_ROUNDS = 4  # at least the steps in which a GPU becomes ready
_EMPTY_KERNEL = b""".version 6.0
.target sm_35
.address_size 64
.visible .entry empty()
{
  ret;
}
\0"""


class OnDevice(Protocol):
    """A C-contiguous array in memory of the GPU."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    address: int


class Gpu:
    """A GPU, through CUDA's driver. Its primary context is current in this thread.

    Raises ConfigError if there is no driver, and RdmacollError for a call that the driver refuses.
    """

    def __init__(self, library: str, place: int = 0) -> None:
        """library: the value of RDMACOLL_CUDA_LIBRARY. place: GPUs are dealt to places in turn."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise ConfigError(
                f"memory of a GPU needs NVIDIA's driver: {error}. Start it on a machine with a GPU, or name "
                "the library by RDMACOLL_CUDA_LIBRARY."
            ) from None
        self("cuInit", 0)
        count, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise ConfigError("NVIDIA's driver shows no GPU: look at CUDA_VISIBLE_DEVICES.")
        self.number = place % count.value
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.number)
        self("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()  # waits for no other stream
        self("cuStreamCreate", ctypes.byref(self.stream), 1)
        self._kernel = ctypes.c_void_p()

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise RdmacollError(f"{name}: {(text.value or b'?').decode()} ({code}).")

    @property
    def name(self) -> str:
        """The GPU's name."""
        text = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", text, 100, self.number)
        return text.value.decode()

    def allocate(self, size: int) -> int:
        """The address of new memory of the GPU, of `size` bytes."""
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        """Frees memory of the GPU."""
        self("cuMemFree_v2", ctypes.c_uint64(address))

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """A new array of the engine's in memory of this GPU."""
        kind = "bfloat16" if np.dtype(dtype).name == "bfloat16" else dtype
        return engine.empty(shape, kind, device=f"cuda:{self.number}")

    def put(self, array: OnDevice, values: np.ndarray[Any, Any]) -> None:
        """Copies values to the array, behind all work on it. They have its dtype and as many elements."""
        self.synchronize()
        values = np.ascontiguousarray(values, dtype_of(array.dtype.name))
        if values.nbytes:
            source = ctypes.c_void_p(values.ctypes.data)
            self("cuMemcpyHtoD_v2", ctypes.c_uint64(array.address), source, ctypes.c_size_t(values.nbytes))
        self.synchronize()

    def get(self, array: OnDevice) -> np.ndarray[Any, Any]:
        """The values of the array, behind all work on it."""
        self.synchronize()
        values = np.empty(array.shape, dtype_of(array.dtype.name))
        if values.nbytes:
            target = ctypes.c_void_p(values.ctypes.data)
            self("cuMemcpyDtoH_v2", target, ctypes.c_uint64(array.address), ctypes.c_size_t(values.nbytes))
        return values

    def synchronize(self) -> None:
        """Waits for all work of this process on the GPU."""
        self("cuCtxSynchronize")

    def run_empty_kernel(self) -> None:
        """Launches a kernel that does nothing, and waits for it."""
        if not self._kernel:
            module = ctypes.c_void_p()
            self("cuModuleLoadData", ctypes.byref(module), _EMPTY_KERNEL)
            self("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"empty")
        self("cuLaunchKernel", self._kernel, 1, 1, 1, 32, 1, 1, 0, self.stream, None, None)
        self("cuStreamSynchronize", self.stream)

    def device_copy_s(self, size: int, copies: int = 1) -> float:
        """The seconds of copies of `size` bytes, one after another, within memory of the GPU: the best of
        some repetitions."""
        source, target = self.allocate(size), self.allocate(size)
        end, begin, count = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size)

        def copy() -> None:
            for _ in range(copies):
                self("cuMemcpyDtoDAsync_v2", end, begin, count, self.stream)

        seconds = self._best_s(copy)
        self.free(source)
        self.free(target)
        return seconds

    def copy_rates(self, size: int) -> dict[str, float]:
        """Bytes per second of copies of `size` bytes between pinned memory and the GPU: "to host", "to
        device"."""
        memory, pinned = self.allocate(size), ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(size), 3)
        address, count = ctypes.c_uint64(memory), ctypes.c_size_t(size)
        found = {
            "to host": size
            / self._best_s(lambda: self("cuMemcpyDtoHAsync_v2", pinned, address, count, self.stream)),
            "to device": size
            / self._best_s(lambda: self("cuMemcpyHtoDAsync_v2", address, pinned, count, self.stream)),
        }
        self.free(memory)
        self("cuMemFreeHost", pinned)
        return found

    def _best_s(self, enqueue: Callable[[], None]) -> float:
        times = []
        for _ in range(_REPEATS + 1):
            begin = time.perf_counter()
            enqueue()
            self("cuStreamSynchronize", self.stream)
            times.append(time.perf_counter() - begin)
        return min(times[1:])


def run_until_gpus_are_ready(calls: Sequence[Callable[[], Any]]) -> None:
    """Runs the calls until no GPU of any rank is made ready for them. Arrays are staged meanwhile.

    All ranks of the world call it. A GPU becomes ready in several steps, each of which begins with a call.
    """
    quiet = 0
    while quiet < _QUIET_ROUNDS:
        for call in calls:
            call()
        preparing = np.array([float(world.metrics()["gpus_preparing"])])
        quiet = 0 if engine.allreduce(preparing, Max)[0] > 0 else quiet + 1


def gpu_of_rank() -> Gpu:
    """The GPU of this rank of the world: the ranks of a node have them in turn."""
    return Gpu(world.current().values.text("RDMACOLL_CUDA_LIBRARY"), world.local_rank())
