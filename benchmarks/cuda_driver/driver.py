"""Kernels and times of one GPU, over the calls of the driver that tests/cuda_calls.py makes."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The tests of the driver make the same calls.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import cuda_calls

POINTER = cuda_calls.Address
MI = cuda_calls.MI
NOT_READY = cuda_calls.NOT_READY
MEMORY_TYPE, BUFFER_ID = cuda_calls.MEMORY_TYPE, cuda_calls.BUFFER_ID
IPC_CAPABLE, RDMA_CAPABLE = cuda_calls.IPC_CAPABLE, cuda_calls.RDMA_CAPABLE
CudaError = cuda_calls.CudaError
ReduceParameters = cuda_calls.ReduceParameters
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


class Cuda(cuda_calls.Cuda):
    """libcuda with the primary context of one GPU, and the benchmark's kernels."""

    def __init__(self, library: str, index: int, ptx: str) -> None:
        super().__init__(library, None)
        self.gpu = index
        begin = time.perf_counter()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), index)
        self("cuCtxSetCurrent", self.context)
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

    def timed_event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 0)
        return event

    def fill(self, address: int, word: int, size: int) -> None:
        self("cuMemsetD32_v2", POINTER(address), word, ctypes.c_size_t(size // 4))

    def words(self, address: int, count: int) -> list[int]:
        found = (ctypes.c_uint32 * count)()
        self("cuMemcpyDtoH_v2", found, POINTER(address), ctypes.c_size_t(4 * count))
        return list(found)

    def gpu_us(self, stream: Any, work: Callable[[], None], repeats: int) -> float:
        """Returns the median time of `work` on the GPU in microseconds, measured by events."""
        times = []
        begin, end = self.timed_event(), self.timed_event()
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
