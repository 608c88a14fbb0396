"""Calls the CUDA driver API through ctypes, on a real driver or on the fake one of tests/cuda_sim."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Address = ctypes.c_uint64
Handle = ctypes.c_void_p
size_of = ctypes.c_size_t

# Pointer attributes
MEMORY_TYPE, BUFFER_ID, IS_MANAGED, IPC_CAPABLE, RDMA_CAPABLE = 2, 7, 8, 10, 15


class CudaError(Exception):
    """A call that the driver refused. `code` is its result."""

    def __init__(self, name: str, code: int, text: str) -> None:
        super().__init__(f"{name}: {text} ({code})")
        self.code = code


class Cuda:
    """A driver. With a GPU's number, its primary context is retained and current in this thread."""

    def __init__(self, library: str | Path, gpu: int | None = 0) -> None:
        self.library = ctypes.CDLL(str(library))
        self("cuInit", 0)
        self.context = Handle()
        self.gpu = gpu
        if gpu is not None:
            self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), gpu)
            self("cuCtxPushCurrent_v2", self.context)

    def close(self) -> None:
        """Releases the primary context. The context must be current."""
        self("cuCtxPopCurrent_v2", None)
        self("cuDevicePrimaryCtxRelease_v2", self.gpu)

    def code(self, name: str, *arguments: Any) -> int:
        """Calls the driver and returns its result unchecked."""
        return int(getattr(self.library, name)(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"?").decode())

    def has(self, name: str) -> bool:
        return hasattr(self.library, name)

    def allocate(self, size: int) -> int:
        address = Address()
        self("cuMemAlloc_v2", ctypes.byref(address), size_of(size))
        return int(address.value)

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self("cuMemFree_v2", Address(address))

    def pinned(self, size: int) -> int:
        memory = Handle()
        self("cuMemHostAlloc", ctypes.byref(memory), size_of(size), 3)
        return int(memory.value or 0)

    def free_pinned(self, memory: int) -> None:
        self("cuMemFreeHost", Handle(memory))

    def stream(self, flags: int = 1) -> Handle:
        """Makes a stream, which by default does not wait for the legacy default stream."""
        stream = Handle()
        self("cuStreamCreate", ctypes.byref(stream), flags)
        return stream

    def event(self) -> Handle:
        event = Handle()
        self("cuEventCreate", ctypes.byref(event), 2)
        return event

    def synchronize(self, stream: Handle) -> None:
        self("cuStreamSynchronize", stream)

    def write(self, address: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", Address(address), data, size_of(len(data)))

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, Address(address), size_of(size))
        return data.raw

    def fill(self, address: int, value: int, size: int, stream: Handle) -> None:
        self("cuMemsetD8Async", Address(address), ctypes.c_ubyte(value), size_of(size), stream)

    def copy(self, to: int, source: int, size: int, stream: Handle) -> None:
        self("cuMemcpyDtoDAsync_v2", Address(to), Address(source), size_of(size), stream)

    def attribute(self, number: int) -> int | None:
        """Returns a device attribute, or None if the driver does not know it."""
        value = ctypes.c_int()
        refused = self.code("cuDeviceGetAttribute", ctypes.byref(value), number, self.gpu)
        return None if refused else value.value

    def pointer_attribute(self, number: int, address: int) -> int | None:
        """Returns a pointer attribute, or None if the driver refuses to answer for this address."""
        value = ctypes.c_uint64()
        refused = self.code("cuPointerGetAttribute", ctypes.byref(value), number, Address(address))
        return None if refused else int(value.value)

    @contextmanager
    def blocked(self, stream: Handle) -> Iterator[None]:
        """Holds a stream up until the end of the block, by a host function that waits."""
        libc, semaphore = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.sem_init(semaphore, 0, 0)
        wait = ctypes.cast(libc.sem_wait, ctypes.c_void_p)
        self("cuLaunchHostFunc", stream, wait, semaphore)
        try:
            yield
        finally:
            libc.sem_post(semaphore)
            self.synchronize(stream)


def counters(cuda: Cuda) -> dict[str, Any]:
    """Returns the fake driver's counters."""
    function = cuda.library.cuda_sim_counters
    function.restype = ctypes.c_char_p
    found: dict[str, Any] = json.loads(function())
    return found
