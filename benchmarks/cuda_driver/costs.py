"""Measures the calls that an operation on GPU memory makes, and staging through pinned memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import time
from typing import Any

from driver import BUFFER_ID, MEMORY_TYPE, MI, POINTER, Cuda, host_us


def calls(cuda: Cuda, _: Any) -> dict[str, float]:
    """Measures single calls, in microseconds of the calling thread. Each time includes that of ctypes."""
    stream, event = cuda.stream(), cuda.event()
    device, pinned = cuda.allocate(MI), cuda.pinned(MI)
    flag = ctypes.c_uint32.from_address(pinned)
    cuda("cuEventRecord", event, stream)
    cuda("cuStreamSynchronize", stream)
    size, value = ctypes.c_size_t(8), ctypes.c_uint64()
    data, numbers = (ctypes.c_void_p * 2)(), (ctypes.c_int * 2)(MEMORY_TYPE, BUFFER_ID)
    holder, identity = ctypes.c_uint(), ctypes.c_ulonglong()
    data[0], data[1] = ctypes.addressof(holder), ctypes.addressof(identity)
    times = {
        "cuDriverGetVersion (ctypes' own share)": host_us(
            lambda: cuda("cuDriverGetVersion", ctypes.byref(holder))
        ),
        "cuPointerGetAttribute": host_us(
            lambda: cuda("cuPointerGetAttribute", ctypes.byref(value), MEMORY_TYPE, POINTER(device))
        ),
        "cuPointerGetAttributes of two": host_us(
            lambda: cuda("cuPointerGetAttributes", 2, numbers, data, POINTER(device))
        ),
        "cuEventRecord": host_us(lambda: cuda("cuEventRecord", event, stream)),
        "cuEventQuery": host_us(lambda: cuda.code("cuEventQuery", event)),
        "cuStreamWaitEvent": host_us(lambda: cuda("cuStreamWaitEvent", stream, event, 0)),
        "context pushed and popped": host_us(lambda: _push_and_pop(cuda)),
        "empty kernel, launched": host_us(lambda: cuda.launch("empty", stream, 1, 32), 500),
        "empty kernel, launched and waited for": host_us(lambda: _launch_and_wait(cuda, stream), 500),
    }

    def copy(name: str, to: Any, source: Any) -> None:
        cuda(name, to, source, size, stream)
        cuda("cuStreamSynchronize", stream)

    def write_word() -> None:
        flag.value = 0
        cuda.launch("write_word", stream, 1, 1, POINTER(pinned), ctypes.c_uint(1))
        while flag.value == 0:
            pass

    def stream_writes_word() -> None:
        flag.value = 0
        cuda("cuStreamWriteValue32_v2", stream, POINTER(pinned), ctypes.c_uint32(1), 0)
        while flag.value == 0:
            pass

    host, on_device = ctypes.c_void_p(pinned), POINTER(device)
    times["8 B to the device, waited for"] = host_us(
        lambda: copy("cuMemcpyHtoDAsync_v2", on_device, host), 500
    )
    times["8 B to the host, waited for"] = host_us(lambda: copy("cuMemcpyDtoHAsync_v2", host, on_device), 500)
    times["a word that a kernel writes to pinned memory, polled for"] = host_us(write_word, 500)
    if cuda.code("cuStreamWriteValue32_v2", stream, POINTER(pinned), ctypes.c_uint32(0), 0) == 0:
        times["a word that the stream writes there, polled for"] = host_us(stream_writes_word, 500)
    times["a host function that wakes a sleeping thread"] = _host_function_us(cuda, stream)
    return times


def _push_and_pop(cuda: Cuda) -> None:
    cuda("cuCtxPushCurrent_v2", cuda.context)
    cuda("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _launch_and_wait(cuda: Cuda, stream: Any) -> None:
    cuda.launch("empty", stream, 1, 32)
    cuda("cuStreamSynchronize", stream)


def _host_function_us(cuda: Cuda, stream: Any) -> float:
    """Measures a host function that wakes a sleeping thread, in microseconds.

    The host function is the C library's close(), so the driver's thread runs no Python. It closes one end of
    a pipe. The thread that sleeps on the other end wakes up.
    """
    close = ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p)

    def once() -> None:
        read, write = os.pipe()
        cuda("cuLaunchHostFunc", stream, close, ctypes.c_void_p(write))
        woken = select.select([read], [], [], 1.0)[0]
        os.close(read)
        if not woken:
            raise RuntimeError("the host function was not seen within 1 s")

    return host_us(once, 200)


def pinning(cuda: Cuda, _: Any) -> dict[str, float]:
    """Measures page-locking 64 MiB and allocating device memory, in milliseconds."""
    times: dict[str, float] = {}
    area = mmap.mmap(-1, 64 * MI)
    area.write(b"\1" * len(area))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    begin = time.perf_counter()
    cuda("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(64 * MI), 2)
    times["cuMemHostRegister of 64 MiB"] = 1e3 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    cuda("cuMemHostUnregister", ctypes.c_void_p(address))
    times["cuMemHostUnregister"] = 1e3 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    cuda("cuMemFreeHost", ctypes.c_void_p(cuda.pinned(64 * MI)))
    times["cuMemHostAlloc and free of 64 MiB"] = 1e3 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    cuda.free(cuda.allocate(64 * MI))
    times["cuMemAlloc and free of 64 MiB"] = 1e3 * (time.perf_counter() - begin)
    return times


def staging(cuda: Cuda, _: Any) -> dict[str, dict[str, float]]:
    """Measures copies of 256 MiB between the device and pinned memory, in GB/s.

    Each size of chunk is measured to the host, to the device, and both ways at once.
    """
    total = 256 * MI
    device, pinned = cuda.allocate(2 * total), cuda.pinned(2 * total)
    down, up, both = cuda.stream(), cuda.stream(), cuda.stream()
    found: dict[str, dict[str, float]] = {}

    def to_host(chunk: int, stream: Any) -> None:
        for at in range(0, total, chunk):
            where = ctypes.c_void_p(pinned + at)
            cuda("cuMemcpyDtoHAsync_v2", where, POINTER(device + at), ctypes.c_size_t(chunk), stream)

    def to_device(chunk: int, stream: Any) -> None:
        for at in range(total, 2 * total, chunk):
            where = ctypes.c_void_p(pinned + at)
            cuda("cuMemcpyHtoDAsync_v2", POINTER(device + at), where, ctypes.c_size_t(chunk), stream)

    def both_ways(chunk: int) -> None:
        begun, ended = cuda.event(), cuda.event()
        cuda("cuEventRecord", begun, both)
        for stream, copy in ((down, to_host), (up, to_device)):
            cuda("cuStreamWaitEvent", stream, begun, 0)
            copy(chunk, stream)
            cuda("cuEventRecord", ended, stream)
            cuda("cuStreamWaitEvent", both, ended, 0)

    for chunk in (64 << 10, 256 << 10, MI, 4 * MI, 16 * MI, 64 * MI):
        ways = {
            "to host": (down, lambda c=chunk: to_host(c, down), total),
            "to device": (up, lambda c=chunk: to_device(c, up), total),
            "both": (both, lambda c=chunk: both_ways(c), 2 * total),
        }
        found[f"{chunk >> 10} KiB"] = {
            label: size / cuda.gpu_us(stream, work, 5) / 1e3 for label, (stream, work, size) in ways.items()
        }
    cuda.free(device)
    return found
