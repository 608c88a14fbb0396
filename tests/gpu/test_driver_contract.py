"""Facts of the CUDA driver on which rdmacoll relies, on the fake driver and on a real one alike.

A real driver is tested if this machine has one: `pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import re
import threading
import time

import pytest
from cuda_calls import (
    ALREADY_REGISTERED,
    BUFFER_ID,
    DMA_BUF,
    INVALID_CONTEXT,
    INVALID_VALUE,
    IPC_CAPABLE,
    IS_MANAGED,
    MEMORY_POOLS,
    MEMORY_TYPE,
    MI,
    NOT_FOUND,
    NOT_READY,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    PTX,
    RDMA_CAPABLE,
    TESTS,
    UNSUPPORTED_PTX,
    VIRTUAL_MEMORY,
    Address,
    Cuda,
    CudaError,
    Handle,
    IpcHandle,
    ReduceParameters,
    launch,
    launch_write_word,
    size_of,
)

# The time after which a stream that has not finished is known to wait.
HESITATION_S = 0.05
FLAGS = ctypes.c_uint64(0)


class MemoryProperties(ctypes.Structure):
    """The properties of memory that is mapped later (CUmemAllocationProp)."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("windows", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("is_gpudirect_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


# Events and streams


def test_an_event_without_a_record_counts_as_passed(cuda: Cuda) -> None:
    assert cuda.code("cuEventQuery", cuda.event()) == 0


def test_an_event_passes_with_the_work_before_it(cuda: Cuda) -> None:
    stream, event = cuda.stream(), cuda.event()
    with cuda.blocked(stream):
        cuda("cuEventRecord", event, stream)
        time.sleep(HESITATION_S)
        assert cuda.code("cuEventQuery", event) == NOT_READY
        assert cuda.code("cuStreamQuery", stream) == NOT_READY
    assert cuda.code("cuEventQuery", event) == 0
    assert cuda.code("cuStreamQuery", stream) == 0


def test_a_stream_waits_for_the_last_record_before_the_call(cuda: Cuda) -> None:
    first, second, event = cuda.stream(), cuda.stream(), cuda.event()
    cuda("cuEventRecord", event, first)
    cuda.synchronize(first)
    cuda("cuStreamWaitEvent", second, event, 0)
    with cuda.blocked(first):
        cuda("cuEventRecord", event, first)
        cuda.synchronize(second)  # waits for the first record only
        cuda("cuStreamWaitEvent", second, event, 0)
        time.sleep(HESITATION_S)
        assert cuda.code("cuStreamQuery", second) == NOT_READY
    cuda.synchronize(second)


def test_a_wait_for_an_event_without_a_record_does_not_wait(cuda: Cuda) -> None:
    first, second, event = cuda.stream(), cuda.stream(), cuda.event()
    with cuda.blocked(first):
        cuda("cuStreamWaitEvent", second, event, 0)
        cuda("cuEventRecord", event, first)
        cuda.synchronize(second)


def test_blocking_streams_wait_for_the_legacy_stream_and_others_do_not(cuda: Cuda) -> None:
    blocking, free, memory = cuda.stream(0), cuda.stream(1), cuda.allocate(64)
    legacy = Handle(1)
    with cuda.blocked(legacy):
        cuda.fill(memory, 1, 8, blocking)
        cuda.fill(memory + 8, 1, 8, free)
        cuda.synchronize(free)
        time.sleep(HESITATION_S)
        assert cuda.code("cuStreamQuery", blocking) == NOT_READY
    cuda.synchronize(blocking)
    with cuda.blocked(blocking):
        cuda.fill(memory, 1, 8, legacy)
        time.sleep(HESITATION_S)
        assert cuda.code("cuStreamQuery", legacy) == NOT_READY
    cuda.synchronize(legacy)
    cuda.free(memory)


def test_a_host_function_runs_in_another_thread_behind_the_work_before_it(cuda: Cuda) -> None:
    stream, memory, pinned = cuda.stream(), cuda.allocate(MI), cuda.pinned(MI)
    seen: list[tuple[int, bytes]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    function = kind(lambda _: seen.append((threading.get_native_id(), ctypes.string_at(pinned + MI - 4, 4))))
    cuda.fill(memory, 7, MI, stream)
    cuda("cuMemcpyDtoHAsync_v2", Handle(pinned), Address(memory), size_of(MI), stream)
    cuda("cuLaunchHostFunc", stream, function, None)
    cuda.synchronize(stream)
    assert [data for _, data in seen] == [b"\7" * 4]
    assert seen[0][0] != threading.get_native_id()
    cuda.free(memory)
    cuda.free_pinned(pinned)


def test_a_captured_stream_says_so(cuda: Cuda) -> None:
    stream, status, graph = cuda.stream(), ctypes.c_int(), Handle()
    cuda("cuStreamBeginCapture_v2", stream, 0)
    cuda("cuStreamIsCapturing", stream, ctypes.byref(status))
    cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert status.value == 1
    cuda("cuStreamIsCapturing", stream, ctypes.byref(status))
    assert status.value == 0


# Memory and pointers


def test_pointer_attributes_tell_the_kinds_of_memory_apart(cuda: Cuda) -> None:
    host = ctypes.create_string_buffer(4096)
    device, pinned = cuda.allocate(4 * MI), cuda.pinned(4096)
    assert cuda.pointer_attribute(MEMORY_TYPE, ctypes.addressof(host)) is None
    assert cuda.pointer_attribute(MEMORY_TYPE, pinned) == 1
    assert cuda.pointer_attribute(MEMORY_TYPE, device + MI) == 2
    assert cuda.pointer_attribute(IS_MANAGED, device) == 0
    assert cuda.pointer_attribute(IPC_CAPABLE, device) == 1
    managed = Address()
    cuda("cuMemAllocManaged", ctypes.byref(managed), size_of(4096), 1)
    assert cuda.pointer_attribute(IS_MANAGED, managed.value) == 1
    cuda.free(device, managed.value)
    cuda.free_pinned(pinned)


def test_several_attributes_of_plain_host_memory_are_zeros(cuda: Cuda) -> None:
    host = ctypes.create_string_buffer(64)
    kind, number = ctypes.c_uint64(99), ctypes.c_uint64(99)
    numbers = (ctypes.c_int * 2)(MEMORY_TYPE, BUFFER_ID)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(number))
    cuda("cuPointerGetAttributes", 2, numbers, values, Address(ctypes.addressof(host)))
    assert kind.value & 0xFFFFFFFF == 0
    assert number.value == 0


def test_an_allocation_has_one_buffer_id_and_the_next_one_another(cuda: Cuda) -> None:
    first = cuda.allocate(64 * MI)
    number = cuda.pointer_attribute(BUFFER_ID, first)
    assert number == cuda.pointer_attribute(BUFFER_ID, first + MI)
    cuda.free(first)
    assert cuda.pointer_attribute(MEMORY_TYPE, first) is None
    second = cuda.allocate(64 * MI)
    assert first == second
    assert number != cuda.pointer_attribute(BUFFER_ID, second)
    cuda.free(second)


def test_an_address_can_get_other_memory(cuda: Cuda) -> None:
    """The buffer id tells the two apart. PyTorch's expandable segments remap addresses so."""
    if not cuda.attribute(VIRTUAL_MEMORY):
        code = cuda.code(
            "cuMemAddressReserve", ctypes.byref(Address()), size_of(2 * MI), size_of(0), Address(0), FLAGS
        )
        assert code == NOT_SUPPORTED
        return
    address, wanted = Address(), MemoryProperties(type=1, location_type=1, is_gpudirect_capable=1)
    cuda("cuMemAddressReserve", ctypes.byref(address), size_of(2 * MI), size_of(0), Address(0), FLAGS)
    access, ids = (ctypes.c_int * 3)(1, 0, 3), []
    for _ in range(2):
        memory = ctypes.c_uint64()
        cuda("cuMemCreate", ctypes.byref(memory), size_of(2 * MI), ctypes.byref(wanted), FLAGS)
        cuda("cuMemMap", address, size_of(2 * MI), size_of(0), memory, FLAGS)
        cuda("cuMemSetAccess", address, size_of(2 * MI), access, size_of(1))
        cuda.write(address.value, bytes([len(ids)]) * 8)
        assert cuda.read(address.value, 8) == bytes([len(ids)]) * 8
        assert cuda.pointer_attribute(IPC_CAPABLE, address.value) == 0
        assert cuda.pointer_attribute(RDMA_CAPABLE, address.value) == cuda.attribute(116)
        ids.append(cuda.pointer_attribute(BUFFER_ID, address.value))
        cuda("cuMemUnmap", address, size_of(2 * MI))
        cuda("cuMemRelease", memory)
        assert cuda.pointer_attribute(MEMORY_TYPE, address.value) is None
    cuda("cuMemAddressFree", address, size_of(2 * MI))
    assert ids[0] != ids[1]


def test_the_range_of_an_address_is_its_allocation(cuda: Cuda) -> None:
    memory, base, size = cuda.allocate(1000), Address(), ctypes.c_size_t()
    assert memory % 256 == 0
    cuda("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), Address(memory + 999))
    assert base.value == memory
    assert size.value >= 1000
    cuda.free(memory)


def test_host_memory_is_registered_once(cuda: Cuda) -> None:
    area = mmap.mmap(-1, MI)
    holder = ctypes.c_char.from_buffer(area)
    memory = ctypes.addressof(holder)
    assert cuda.code("cuMemHostUnregister", Handle(memory)) == NOT_REGISTERED
    cuda("cuMemHostRegister_v2", Handle(memory), size_of(MI), 3)
    again = cuda.code("cuMemHostRegister_v2", Handle(memory + 4096), size_of(4096), 3)
    assert again == ALREADY_REGISTERED
    assert cuda.pointer_attribute(MEMORY_TYPE, memory + 4096) == 1
    address = Address()
    cuda("cuMemHostGetDevicePointer_v2", ctypes.byref(address), Handle(memory), 0)
    assert address.value == memory
    cuda("cuMemHostUnregister", Handle(memory))
    assert cuda.pointer_attribute(MEMORY_TYPE, memory) is None
    del holder
    area.close()


def test_bytes_go_to_the_device_and_come_back(cuda: Cuda) -> None:
    memory = cuda.allocate(3000)
    data = bytes(range(256)) * 11
    cuda.write(memory + 100, data)
    assert cuda.read(memory + 100, len(data)) == data
    stream = cuda.stream()
    cuda.copy(memory, memory + 1000, 1000, stream)
    cuda.synchronize(stream)
    assert cuda.read(memory, 1000) == data[900:1900]
    cuda.free(memory)


def test_a_copy_outside_memory_is_refused(cuda: Cuda) -> None:
    memory, stream = cuda.allocate(4 * MI), cuda.stream()
    host = ctypes.create_string_buffer(8 * MI)
    with pytest.raises(CudaError) as refused:
        cuda("cuMemcpyHtoDAsync_v2", Address(memory), host, size_of(8 * MI), stream)
    assert refused.value.code == INVALID_VALUE
    cuda.free(memory)
    assert cuda.code("cuMemFree_v2", Address(memory)) == INVALID_VALUE


def test_memory_for_gpudirect_says_so(cuda: Cuda) -> None:
    memory = cuda.allocate(2 * MI)
    assert cuda.pointer_attribute(RDMA_CAPABLE, memory) == cuda.attribute(116)
    wanted = ctypes.c_uint(1)
    cuda("cuPointerSetAttribute", ctypes.byref(wanted), 6, Address(memory))
    cuda.free(memory)


def test_a_dma_buf_descriptor_is_for_whole_pages_of_one_allocation(cuda: Cuda) -> None:
    memory, fd = cuda.allocate(4 * MI), ctypes.c_int(-1)

    def code(address: int, size: int) -> int:
        name = "cuMemGetHandleForAddressRange"
        result = cuda.code(name, ctypes.byref(fd), Address(address), size_of(size), 1, FLAGS)
        if result == 0:
            os.close(fd.value)
        return result

    if cuda.attribute(DMA_BUF):
        assert code(memory, 4 * MI) == code(memory + 4096, 4096) == 0
        assert INVALID_VALUE == code(memory + 100, 4096) == code(memory, 100)
        assert code(memory, 64 * MI) != 0
    elif cuda.has("cuMemGetHandleForAddressRange"):
        assert code(memory, 4 * MI) == NOT_SUPPORTED
    cuda.free(memory)


def test_pooled_memory_is_for_no_other_process_and_no_nic(cuda: Cuda) -> None:
    stream, memory = cuda.stream(), Address()
    code = cuda.code("cuMemAllocAsync", ctypes.byref(memory), size_of(MI), stream)
    if not cuda.attribute(MEMORY_POOLS):
        assert code == NOT_SUPPORTED
        return
    cuda.synchronize(stream)
    assert cuda.pointer_attribute(MEMORY_TYPE, memory.value) == 2
    assert cuda.pointer_attribute(IPC_CAPABLE, memory.value) == 0
    assert cuda.pointer_attribute(RDMA_CAPABLE, memory.value) == 0
    assert cuda.code("cuIpcGetMemHandle", ctypes.byref(IpcHandle()), memory) != 0
    cuda("cuMemFreeAsync", memory, stream)
    cuda.synchronize(stream)


# Contexts


def test_calls_without_a_context_are_refused(library: str) -> None:
    cuda = Cuda(library, None)
    assert cuda.code("cuMemAlloc_v2", ctypes.byref(Address()), size_of(8)) == INVALID_CONTEXT
    assert cuda.code("cuStreamCreate", ctypes.byref(Handle()), 1) == INVALID_CONTEXT
    current = Handle(1)
    cuda("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value


def test_contexts_are_a_stack_of_the_thread(cuda: Cuda) -> None:
    popped, current = Handle(), Handle()
    cuda("cuCtxPushCurrent_v2", cuda.context)
    cuda("cuCtxPopCurrent_v2", ctypes.byref(popped))
    cuda("cuCtxGetCurrent", ctypes.byref(current))
    assert popped.value == current.value == cuda.context.value
    other = Handle(1)
    thread = threading.Thread(target=lambda: cuda("cuCtxGetCurrent", ctypes.byref(other)))
    thread.start()
    thread.join()
    assert not other.value


def test_a_primary_context_lives_from_its_retain_to_its_release(library: str) -> None:
    cuda = Cuda(library, None)

    def is_active() -> int:
        flags, active = ctypes.c_uint(), ctypes.c_int()
        cuda("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        return active.value

    assert is_active() == 0
    context = Handle()
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    assert is_active() == 1
    cuda("cuDevicePrimaryCtxRelease_v2", 0)
    assert is_active() == 0


# Kernels


def test_a_kernel_writes_to_device_memory_and_to_pinned_memory(cuda: Cuda) -> None:
    stream, memory, pinned = cuda.stream(), cuda.allocate(8), cuda.pinned(8)
    launch_write_word(cuda, memory, 0x1234, stream)
    launch_write_word(cuda, pinned, 0x5678, stream)
    cuda.synchronize(stream)
    assert cuda.read(memory, 4) == b"\x34\x12\0\0"
    assert ctypes.string_at(pinned, 4) == b"\x78\x56\0\0"
    cuda.free(memory)
    cuda.free_pinned(pinned)


def test_a_kernel_of_the_library_sums(cuda: Cuda) -> None:
    stream, memory, pinned, count = cuda.stream(), cuda.allocate(80000), cuda.pinned(40000), 5000
    first, second = array.array("f", range(count)), array.array("f", [0.25] * count)
    cuda.write(memory, first.tobytes())
    ctypes.memmove(pinned, second.tobytes(), 4 * count)
    job = ReduceParameters(tiles=5, rows=1, sources=2)
    job.words[:6] = [0, count, 0, memory + 40000, memory, pinned]
    source = (TESTS.parent / "cpp/cuda/kernels/ptx/sum_float32.inc").read_text()
    ptx = "".join(re.findall(r'R"ptx\((.*?)\)ptx"', source, re.DOTALL)).encode() + b"\0"
    launch(cuda, ptx, b"sum_float32", job, 256, stream)
    cuda.synchronize(stream)
    result = array.array("f", cuda.read(memory + 40000, 4 * count))
    assert result == array.array("f", [a + b for a, b in zip(first, second)])
    cuda.free(memory)
    cuda.free_pinned(pinned)


def test_ptx_of_a_later_version_is_refused(cuda: Cuda) -> None:
    later = PTX.replace(b".version 6.0", b".version 99.9")
    assert cuda.code("cuModuleLoadData", ctypes.byref(Handle()), later) == UNSUPPORTED_PTX


def test_a_kernel_that_a_module_has_not_is_not_found(cuda: Cuda) -> None:
    module = Handle()
    cuda("cuModuleLoadData", ctypes.byref(module), PTX)
    assert cuda.code("cuModuleGetFunction", ctypes.byref(Handle()), module, b"other") == NOT_FOUND
    cuda("cuModuleUnload", module)
