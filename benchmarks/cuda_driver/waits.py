"""Finds the calls that wait for a kernel which runs on another stream, and measures small copies."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from driver import MI, NOT_READY, POINTER, Cuda, host_us
from reduce import Reduction, ptx_of

SPIN_CYCLES = 200_000_000  # about 0.1 s
SETTLES_S = 0.003  # until the kernel runs
SLAB = 16 * MI
SMALL = (8, 256, 4096)


class MemoryHandle(ctypes.Structure):
    """CUipcMemHandle, which calls take by value."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


def _export(end: Connection, options: Any) -> None:
    cuda = Cuda(options.library, options.gpu, options.ptx)
    handle = MemoryHandle()
    cuda("cuIpcGetMemHandle", ctypes.byref(handle), POINTER(cuda.allocate(64 * MI)))
    end.send(bytes(handle))
    with contextlib.suppress(EOFError):
        end.recv()


@contextlib.contextmanager
def _memory_of_another_process(options: Any) -> Iterator[MemoryHandle]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_export, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()
    try:
        yield MemoryHandle.from_buffer_copy(mine.recv())
    finally:
        mine.close()
        process.join(20)


def waits(cuda: Cuda, options: Any) -> dict[str, dict[str, Any]]:
    """Measures calls in milliseconds, first alone and then while a kernel runs on a stream of the caller.

    "waits" says whether the kernel had ended when the call returned.
    """
    with _memory_of_another_process(options) as handle:
        return _waits(cuda, handle)


def _waits(cuda: Cuda, handle: MemoryHandle) -> dict[str, dict[str, Any]]:
    busy, other, event = cuda.stream(), cuda.stream(), cuda.event()
    area = mmap.mmap(-1, SLAB)
    area.write(b"\1" * len(area))
    memory = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    small, device, pinned = cuda.allocate(MI), cuda.allocate(SLAB), cuda.pinned(MI)
    pageable = ctypes.create_string_buffer(MI)
    kept: dict[str, Any] = {}

    def make(name: str, kind: str, *arguments: Any) -> Callable[[], None]:
        def call() -> None:
            kept[kind] = ctypes.c_void_p()
            cuda(name, ctypes.byref(kept[kind]), *arguments)

        return call

    def allocate(kind: str, size: int) -> Callable[[], None]:
        return lambda: kept.__setitem__(kind, cuda.allocate(size))

    def function() -> None:
        kept["function"] = ctypes.c_void_p()
        cuda("cuModuleGetFunction", ctypes.byref(kept["function"]), kept["module"], b"copy_bytes")

    def open_memory() -> None:
        kept["opened"] = POINTER()
        cuda("cuIpcOpenMemHandle_v2", ctypes.byref(kept["opened"]), handle, 1)

    size, whole = ctypes.c_size_t(MI), ctypes.c_size_t(SLAB)
    calls: dict[str, Callable[[], None]] = {
        "cuModuleLoadData": make("cuModuleLoadData", "module", ptx_of("copy_bytes") + b"\0"),
        "cuModuleGetFunction": function,
        "cuModuleUnload": lambda: cuda("cuModuleUnload", kept["module"]),
        "cuMemAlloc of 1 KiB": allocate("little", 1024),
        "cuMemAlloc of 64 MiB": allocate("much", 64 * MI),
        "cuMemFree of 1 KiB": lambda: cuda.free(kept["little"]),
        "cuMemFree of 64 MiB": lambda: cuda.free(kept["much"]),
        "cuMemHostRegister of 16 MiB": lambda: cuda("cuMemHostRegister_v2", memory, whole, 3),
        "cuMemHostGetDevicePointer": lambda: cuda(
            "cuMemHostGetDevicePointer_v2", ctypes.byref(POINTER()), memory, 0
        ),
        "cuMemHostUnregister": lambda: cuda("cuMemHostUnregister", memory),
        "cuMemHostAlloc of 16 MiB": lambda: kept.__setitem__("host", cuda.pinned(SLAB)),
        "cuMemFreeHost": lambda: cuda("cuMemFreeHost", ctypes.c_void_p(kept["host"])),
        "cuIpcGetMemHandle": lambda: cuda("cuIpcGetMemHandle", ctypes.byref(MemoryHandle()), POINTER(device)),
        "cuIpcOpenMemHandle of 64 MiB": open_memory,
        "cuIpcCloseMemHandle": lambda: cuda("cuIpcCloseMemHandle", kept["opened"]),
        "cuStreamCreate": make("cuStreamCreate", "stream", 1),
        "cuStreamDestroy": lambda: cuda("cuStreamDestroy_v2", kept["stream"]),
        "cuEventCreate": make("cuEventCreate", "event", 2),
        "cuEventDestroy": lambda: cuda("cuEventDestroy_v2", kept["event"]),
        "cuEventRecord": lambda: cuda("cuEventRecord", event, other),
        "cuStreamWaitEvent": lambda: cuda("cuStreamWaitEvent", other, event, 0),
        "cuPointerGetAttribute": lambda: kept.update(type=cuda.pointer_attribute(2, small)),
        "a copy to pinned memory": lambda: cuda(
            "cuMemcpyDtoHAsync_v2", ctypes.c_void_p(pinned), POINTER(small), size, other
        ),
        "a copy to pageable memory": lambda: cuda(
            "cuMemcpyDtoHAsync_v2", pageable, POINTER(small), size, other
        ),
        "a copy from pageable memory": lambda: cuda(
            "cuMemcpyHtoDAsync_v2", POINTER(small), pageable, size, other
        ),
        "a kernel's launch": lambda: cuda.launch("empty", other, 1, 32),
        "a host function's launch": lambda: cuda(
            "cuLaunchHostFunc", other, ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p), None
        ),
        "the primary context, retained": lambda: cuda(
            "cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), cuda.gpu
        ),
        "the primary context, released": lambda: cuda("cuDevicePrimaryCtxRelease_v2", cuda.gpu),
    }
    alone = {name: _ms(call) for name, call in calls.items()}
    cuda("cuStreamSynchronize", other)
    found: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        cuda.launch("spin", busy, 1, 1, ctypes.c_longlong(SPIN_CYCLES))
        cuda("cuEventRecord", event, busy)
        time.sleep(SETTLES_S)
        time_beside = _ms(call)
        # The event may have been recorded anew by the call.
        is_running = cuda.code("cuStreamQuery", busy) == NOT_READY
        cuda("cuStreamSynchronize", busy)
        cuda("cuStreamSynchronize", other)
        found[name] = {"alone": alone[name], "beside a kernel": time_beside, "waits": not is_running}
    cuda.free(small, device)
    return found


def _ms(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def small_copies(cuda: Cuda, _: Any) -> dict[str, dict[str, float]]:
    """Measures copies of few bytes between the device and pinned memory, in microseconds until an event that
    is polled has passed: by the copy engines, and by a kernel that reaches pinned memory itself.
    """
    stream, event = cuda.stream(), cuda.event()
    device, pinned = cuda.allocate(MI), cuda.pinned(MI)
    mapped = POINTER()
    cuda("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), ctypes.c_void_p(pinned), 0)
    name = cuda.load("copy_bytes", ptx_of("copy_bytes"))

    def passed() -> None:
        cuda("cuEventRecord", event, stream)
        while cuda.code("cuEventQuery", event) == NOT_READY:
            pass

    def by_engine(call: str, to: Any, source: Any, size: int) -> Callable[[], None]:
        def copy() -> None:
            cuda(call, to, source, ctypes.c_size_t(size), stream)
            passed()

        return copy

    def by_kernel(to: int, source: int, size: int) -> Callable[[], None]:
        reduction = Reduction(cuda, name, to, [source], size)

        def copy() -> None:
            reduction.launch(stream)
            passed()

        return copy

    host, at = ctypes.c_void_p(pinned), POINTER(device)
    found = {}
    for size in SMALL:
        found[f"{size} B"] = {
            "to host, copy engine": host_us(by_engine("cuMemcpyDtoHAsync_v2", host, at, size), 500),
            "to device, copy engine": host_us(by_engine("cuMemcpyHtoDAsync_v2", at, host, size), 500),
            "to host, kernel": host_us(by_kernel(int(mapped.value), device, size), 500),
            "to device, kernel": host_us(by_kernel(device, int(mapped.value), size), 500),
        }
    cuda.free(device)
    return found
