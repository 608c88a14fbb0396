"""Calls the CUDA driver API through ctypes, for one GPU, and checks each call."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MI = 1 << 20
POINTER = ctypes.c_uint64

# CUdevice_attribute
ATTRIBUTES = {
    "multiprocessors": 16,
    "can_map_host_memory": 19,
    "ecc": 32,
    "compute_mode": 20,
    "async_engines": 40,
    "unified_addressing": 41,
    "capability_major": 75,
    "capability_minor": 76,
    "managed_memory": 83,
    "host_register": 99,
    "l2_bytes": 38,
    "gpudirect_rdma": 116,
    "gpudirect_flush_options": 117,
    "gpudirect_writes_ordering": 118,
    "memory_pools": 115,
    "dma_buf": 124,
    "virtual_memory": 102,
    "ipc_events": 125,
}
# CUpointer_attribute
MEMORY_TYPE, BUFFER_ID, IPC_CAPABLE, RDMA_CAPABLE, MEMPOOL = 2, 7, 10, 15, 17


class DriverError(Exception):
    """A call that the driver refused."""


class Cuda:
    """libcuda with the primary context of one GPU. A call raises DriverError if the driver refuses it."""

    def __init__(self, library: str, index: int, ptx: str) -> None:
        self._library = ctypes.CDLL(library)
        self("cuInit", 0)
        device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(device), index)
        self.device = device.value
        context = ctypes.c_void_p()
        begin = time.perf_counter()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self("cuCtxSetCurrent", context)
        self.context = context
        self.context_ms = 1e3 * (time.perf_counter() - begin)
        self.module_load_ms: dict[str, float] = {}
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.module = self._load("kernels", Path(ptx).read_bytes())

    def _load(self, name: str, ptx: bytes) -> ctypes.c_void_p:
        begin = time.perf_counter()
        module = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), ptx + b"\0")
        self.module_load_ms[name] = 1e3 * (time.perf_counter() - begin)
        return module

    def load(self, name: str, ptx: bytes) -> str:
        """Loads the module of a kernel of its name, which `launch` then finds."""
        if name not in self._functions:
            function = ctypes.c_void_p()
            self("cuModuleGetFunction", ctypes.byref(function), self._load(name, ptx), name.encode())
            self._functions[name] = function
        return name

    def code(self, name: str, *arguments: Any) -> int:
        """Calls the driver and returns its result code unchecked."""
        return int(getattr(self._library, name)(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'?').decode()} ({code})")

    def attribute(self, number: int) -> int | None:
        """Returns a device attribute, or None if this driver does not know the attribute."""
        value = ctypes.c_int()
        refused = self.code("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return None if refused else value.value

    def pointer_attribute(self, number: int, address: int) -> int | None:
        """Returns a pointer attribute, or None if the driver refuses to answer for this address."""
        value = ctypes.c_uint64()
        refused = self.code("cuPointerGetAttribute", ctypes.byref(value), number, POINTER(address))
        return None if refused else value.value

    def allocate(self, size: int) -> int:
        address = POINTER()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self("cuMemFree_v2", POINTER(address))

    def pinned(self, size: int, flags: int = 2) -> int:
        """Allocates page-locked host memory. Flag 2 maps it for the GPU."""
        address = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), flags)
        return int(address.value or 0)

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)  # non-blocking
        return stream

    def event(self, flags: int = 2) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), flags)  # 2: without timing
        return event

    def launch(self, name: str, stream: Any, blocks: int, threads: int, *arguments: Any) -> None:
        if name not in self._functions:
            function = ctypes.c_void_p()
            self("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
            self._functions[name] = function
        addresses = (ctypes.c_void_p * max(1, len(arguments)))(
            *[ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in arguments]
        )
        function = self._functions[name]
        self("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)

    def fill(self, address: int, word: int, size: int) -> None:
        self("cuMemsetD32_v2", POINTER(address), word, ctypes.c_size_t(size // 4))

    def words(self, address: int, count: int) -> list[int]:
        found = (ctypes.c_uint32 * count)()
        self("cuMemcpyDtoH_v2", found, POINTER(address), ctypes.c_size_t(4 * count))
        return list(found)

    def gpu_us(self, stream: Any, work: Callable[[], None], repeats: int) -> float:
        """Returns the median time of `work` on the GPU in microseconds, measured by events."""
        times = []
        begin, end = self.event(0), self.event(0)
        work()
        for _ in range(repeats):
            self("cuEventRecord", begin, stream)
            work()
            self("cuEventRecord", end, stream)
            self("cuEventSynchronize", end)
            value = ctypes.c_float()
            self("cuEventElapsedTime", ctypes.byref(value), begin, end)
            times.append(1e3 * value.value)
        return statistics.median(times)


def host_us(call: Callable[[], Any], repeats: int = 2000) -> float:
    """Returns the time of a call on its own thread, in microseconds: the least of five averages."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append(1e6 * (time.perf_counter() - begin) / repeats)
    return min(times)
