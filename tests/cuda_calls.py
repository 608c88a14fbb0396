"""Calls the CUDA driver API through ctypes, on a real driver or on the fake one of tests/cuda_sim."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Address = ctypes.c_uint64
Handle = ctypes.c_void_p
size_of = ctypes.c_size_t

TESTS = Path(__file__).resolve().parent
MI = 1 << 20

INVALID_VALUE, NOT_INITIALIZED, INVALID_CONTEXT = 1, 3, 201
UNSUPPORTED_PTX, INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS = 222, 400, 500, 600, 700
NOT_SUPPORTED = 801
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713

# Device attributes
VIRTUAL_MEMORY, MEMORY_POOLS, DMA_BUF = 102, 115, 124

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

    def version(self) -> str:
        """The newest CUDA that the driver has, as "12.4"."""
        number = ctypes.c_int()
        self("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def free_bytes(self) -> int:
        """The free memory of the GPU of the current context."""
        free, total = size_of(), size_of()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return int(free.value)

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
    def blocked(self, stream: Handle, limit_s: float | None = None) -> Iterator[None]:
        """Holds a stream up until the end of the block, by a host function that waits.

        limit_s: and no longer, so that a block that waits for the stream ends, too.
        """
        libc, semaphore = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.sem_init(semaphore, 0, 0)
        wait = ctypes.cast(libc.sem_wait, ctypes.c_void_p)
        self("cuLaunchHostFunc", stream, wait, semaphore)
        timer = threading.Timer(limit_s or 0, libc.sem_post, [semaphore])
        if limit_s is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            libc.sem_post(semaphore)
            self.synchronize(stream)


def name_of(cuda: Cuda, gpu: int = 0) -> str:
    """The name of a GPU."""
    text = ctypes.create_string_buffer(100)
    cuda("cuDeviceGetName", text, 100, gpu)
    return text.value.decode()


def counters(cuda: Cuda) -> dict[str, Any]:
    """Returns the fake driver's counters."""
    function = cuda.library.cuda_sim_counters
    function.restype = ctypes.c_char_p
    found: dict[str, Any] = json.loads(function())
    return found


PTX = b"""
.version 6.0
.target sm_35
.address_size 64
.visible .entry write_word(.param .align 8 .b8 write_word_param_0[16])
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [write_word_param_0];
  ld.param.u32 %r1, [write_word_param_0+8];
  cvta.to.global.u64 %rd2, %rd1;
  st.volatile.global.u32 [%rd2], %r1;
  ret;
}
\0"""


class WriteWord(ctypes.Structure):
    """The parameters of the kernel above."""

    _fields_ = (("address", ctypes.c_uint64), ("value", ctypes.c_uint32))


class ReduceParameters(ctypes.Structure):
    """The parameters of the kernels that reduce, as cpp/cuda/kernels/parameters.h has them."""

    _fields_ = (
        ("table", ctypes.c_uint64),
        ("tiles", ctypes.c_uint64),
        ("rows", ctypes.c_uint32),
        ("sources", ctypes.c_uint32),
        ("op", ctypes.c_uint32),
        ("finish", ctypes.c_uint32),
        ("once", ctypes.c_double),
        ("divisor", ctypes.c_double),
        ("factor", ctypes.c_double),
        ("prescale", ctypes.c_double),
        ("words", ctypes.c_uint64 * 112),
    )


class IpcHandle(ctypes.Structure):
    """A handle of an allocation for another process."""

    _fields_ = (("data", ctypes.c_ubyte * 64),)

    def __bytes__(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self), 64)


def launch(
    cuda: Cuda,
    ptx: bytes,
    name: bytes,
    job: ctypes.Structure,
    threads: int,
    stream: Handle,
    blocks: int = 1,
) -> None:
    """Launches a kernel that has one parameter."""
    module, function = Handle(), Handle()
    cuda("cuModuleLoadData", ctypes.byref(module), ptx)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, name)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(job))
    cuda("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None)


def launch_write_word(cuda: Cuda, address: int, value: int, stream: Handle) -> None:
    launch(cuda, PTX, b"write_word", WriteWord(address, value), 1, stream)


def run(library: object, program: str, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that has these names and `library`, in a process of its own."""
    head = f"import ctypes, json, os, sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom cuda_calls import *\n"
    return subprocess.run(
        [sys.executable, "-c", f"{head}library = {str(library)!r}\n{program}", *words],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
