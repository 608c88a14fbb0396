"""Reads the facts of a GPU and its driver, and tests their behaviour."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from driver import (
    ATTRIBUTES,
    BUFFER_ID,
    IPC_CAPABLE,
    MEMORY_TYPE,
    MI,
    POINTER,
    RDMA_CAPABLE,
    Cuda,
    CudaError,
)


def describe(cuda: Cuda, _: Any) -> dict[str, Any]:
    """Returns the GPU's facts from the driver and from NVML, and its place in the PCIe tree."""
    name, total, version = ctypes.create_string_buffer(96), ctypes.c_size_t(), ctypes.c_int()
    address = ctypes.create_string_buffer(32)
    cuda("cuDeviceGetName", name, 96, cuda.gpu)
    cuda("cuDeviceTotalMem_v2", ctypes.byref(total), cuda.gpu)
    cuda("cuDriverGetVersion", ctypes.byref(version))
    cuda("cuDeviceGetPCIBusId", address, 32, cuda.gpu)
    place = Path("/sys/bus/pci/devices") / address.value.decode().lower()
    facts: dict[str, Any] = {"name": name.value.decode(), "bytes": total.value, "cuda": version.value}
    facts |= {key: cuda.attribute(number) for key, number in ATTRIBUTES.items()}
    facts["pci"] = address.value.decode()
    facts["sys_path"] = str(place.resolve()) if place.exists() else "no /sys entry"
    for file in ("numa_node", "max_link_speed", "max_link_width", "current_link_speed", "class"):
        if (place / file).exists():
            facts[f"sys_{file}"] = (place / file).read_text().strip()
    facts["peer_memory_module"] = Path("/sys/module/nvidia_peermem").exists()
    facts["bar1_bytes"], facts["driver"] = _nvml(cuda)
    return facts


def _nvml(cuda: Cuda) -> tuple[list[int] | str, str]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return str(error), "?"
    nvml.nvmlInit_v2()
    uuid, handle = ctypes.create_string_buffer(16), ctypes.c_void_p()
    cuda("cuDeviceGetUuid", uuid, cuda.gpu)
    digits = uuid.raw.hex()
    text = "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if nvml.nvmlDeviceGetHandleByUUID(text.encode(), ctypes.byref(handle)) != 0:
        return f"NVML knows no {text}", "?"
    bar1, version = (ctypes.c_ulonglong * 3)(), ctypes.create_string_buffer(96)
    refused = nvml.nvmlDeviceGetBAR1MemoryInfo(handle, bar1)
    nvml.nvmlSystemGetDriverVersion(version, 96)
    return ([*bar1] if not refused else f"refused ({refused})"), version.value.decode()


def behaviour(cuda: Cuda, options: Any) -> dict[str, Any]:
    """Tests the driver's behaviour that the engine relies on. Returns each observed value."""
    seen: dict[str, Any] = {}
    stream, event = cuda.stream(), cuda.event()
    seen["an event that was never recorded"] = cuda.code("cuEventQuery", event)
    cuda.launch("spin", stream, 1, 1, ctypes.c_longlong(20_000_000))
    cuda("cuEventRecord", event, stream)
    seen["an event behind a running kernel (600: not ready)"] = cuda.code("cuEventQuery", event)
    cuda("cuStreamSynchronize", stream)
    seen["the same event after the kernel"] = cuda.code("cuEventQuery", event)
    host = ctypes.create_string_buffer(4096)
    seen["memory type of plain host memory"] = cuda.pointer_attribute(MEMORY_TYPE, ctypes.addressof(host))
    seen["memory type of pinned host memory"] = cuda.pointer_attribute(MEMORY_TYPE, cuda.pinned(4096))
    first = cuda.allocate(64 * MI)
    number = cuda.pointer_attribute(BUFFER_ID, first)
    seen["memory type of device memory"] = cuda.pointer_attribute(MEMORY_TYPE, first + 4096)
    seen["buffer id is the allocation's, at any offset"] = number == cuda.pointer_attribute(
        BUFFER_ID, first + MI
    )
    for label, attribute in (("IPC", IPC_CAPABLE), ("GPUDirect RDMA", RDMA_CAPABLE)):
        seen[f"device memory is {label} capable"] = cuda.pointer_attribute(attribute, first)
    seen["a dma-buf descriptor of it"] = _dma_buf(cuda, first, 64 * MI)
    seen["a dma-buf descriptor of 4 KiB at an offset of 4 KiB"] = _dma_buf(cuda, first + 4096, 4096)
    cuda.free(first)
    second = cuda.allocate(64 * MI)
    seen["freed memory comes again at the same address"] = first == second
    seen["and has another buffer id"] = number != cuda.pointer_attribute(BUFFER_ID, second)
    cuda.free(second)
    pooled = POINTER()
    if cuda.code("cuMemAllocAsync", ctypes.byref(pooled), ctypes.c_size_t(MI), stream) == 0:
        cuda("cuStreamSynchronize", stream)
        for label, attribute in (("IPC", IPC_CAPABLE), ("GPUDirect RDMA", RDMA_CAPABLE)):
            seen[f"pooled memory is {label} capable"] = cuda.pointer_attribute(attribute, pooled.value)
        seen["a dma-buf descriptor of pooled memory"] = _dma_buf(cuda, pooled.value, MI)
        cuda("cuMemFreeAsync", pooled, stream)
    cuda("cuStreamBeginCapture_v2", stream, 0)
    state = ctypes.c_int()
    cuda("cuStreamIsCapturing", stream, ctypes.byref(state))
    seen["a stream that is captured says so (1)"] = state.value
    graph = ctypes.c_void_p()
    cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
    seen |= _in_a_process_of_its_own(options)
    return seen


def _in_a_process_of_its_own(options: Any) -> dict[str, Any]:
    """Tests behaviour that destroys the process's context or kills the process."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    for label, target in (
        ("the CPU reads device memory: exit code (-11: SIGSEGV)", _read_device_memory),
        ("after a kernel's illegal access", _break_context),
    ):
        mine, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, options), daemon=True)
        process.start()
        theirs.close()
        try:
            found[label] = mine.recv() if mine.poll(30) else "silent"
        except EOFError:
            process.join()
            found[label] = process.exitcode
        process.kill()
        process.join()
    return found


def _read_device_memory(end: Connection, options: Any) -> None:
    cuda = Cuda(options.library, options.gpu, options.ptx)
    end.send(ctypes.c_char.from_address(cuda.allocate(4096)).value)


def _break_context(end: Connection, options: Any) -> None:
    """Writes a word to an address without memory, then makes the calls that an engine would make."""
    cuda = Cuda(options.library, options.gpu, options.ptx)
    stream, event = cuda.stream(), cuda.event()
    cuda.launch("write_word", stream, 1, 1, POINTER(8), ctypes.c_uint(1))
    read, write = os.pipe()
    close = ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p)
    told = {"host function launched": cuda.code("cuLaunchHostFunc", stream, close, ctypes.c_void_p(write))}
    told["event recorded"] = cuda.code("cuEventRecord", event, stream)
    told["host function called within 1 s"] = bool(select.select([read], [], [], 1.0)[0])
    told["event queried"] = cuda.code("cuEventQuery", event)
    told["stream synchronised"] = cuda.code("cuStreamSynchronize", stream)
    told["memory allocated"] = cuda.code("cuMemAlloc_v2", ctypes.byref(POINTER()), ctypes.c_size_t(8))
    end.send(str(told))


def _dma_buf(cuda: Cuda, address: int, size: int) -> str:
    descriptor = ctypes.c_int(-1)
    try:
        cuda(
            "cuMemGetHandleForAddressRange",
            ctypes.byref(descriptor),
            POINTER(address),
            ctypes.c_size_t(size),
            1,
            ctypes.c_ulonglong(0),
        )
    except (CudaError, AttributeError) as error:
        return str(error)
    os.close(descriptor.value)
    return "yes"
