"""Facts of the CUDA driver that take a process of their own: deaths, errors that stay, and CUDA IPC."""

from __future__ import annotations

import ctypes

from cuda_calls import (
    NOT_INITIALIZED,
    Address,
    Cuda,
    IpcHandle,
    run,
)
from places import skip_without_ipc


def test_the_cpu_dies_on_device_memory(library: str) -> None:
    done = run(library, "cuda = Cuda(library)\nctypes.c_char.from_address(cuda.allocate(4096)).value")
    assert done.returncode == -11, done.stderr


def test_after_an_illegal_access_calls_fail_and_host_functions_are_not_called(library: str) -> None:
    program = """
cuda = Cuda(library)
import time
stream, event = cuda.stream(), cuda.event()
called = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
function = kind(lambda _: called.append(1))
launch_write_word(cuda, 8, 1, stream)
assert cuda.code("cuLaunchHostFunc", stream, function, None) == 0
assert cuda.code("cuEventRecord", event, stream) == 0
assert cuda.code("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS
assert cuda.code("cuEventQuery", event) == ILLEGAL_ADDRESS
time.sleep(0.3)
assert cuda.code("cuMemAlloc_v2", ctypes.byref(Address()), size_of(8)) == ILLEGAL_ADDRESS
assert called == []
print("done")
os._exit(0)
"""
    done = run(library, program)
    assert done.stdout == "done\n", done.stderr


def test_another_process_opens_an_allocation_by_a_handle_of_its_begin(cuda: Cuda, library: str) -> None:
    skip_without_ipc(library)
    before, memory = cuda.allocate(1000), cuda.allocate(1000)
    cuda.write(memory + 100, b"hello")
    handle, again = IpcHandle(), IpcHandle()
    cuda("cuIpcGetMemHandle", ctypes.byref(handle), Address(memory))
    cuda("cuIpcGetMemHandle", ctypes.byref(again), Address(memory + 100))
    assert bytes(handle) == bytes(again)
    assert cuda.code("cuIpcOpenMemHandle_v2", ctypes.byref(Address()), handle, 1) != 0  # in this process
    program = f"""
cuda = Cuda(library)
handle, address = IpcHandle.from_buffer_copy(bytes.fromhex({bytes(handle).hex()!r})), Address()
cuda("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, 1)
assert cuda.pointer_attribute(MEMORY_TYPE, address.value) == 2
print(cuda.read(address.value + 100, 5))
cuda.write(address.value + 100, b"world")
cuda("cuIpcCloseMemHandle", address)
assert cuda.code("cuIpcCloseMemHandle", address) != 0
assert cuda.pointer_attribute(MEMORY_TYPE, address.value) is None
"""
    done = run(library, program)
    assert (done.stdout, done.returncode) == ("b'hello'\n", 0), done.stderr
    assert cuda.read(memory + 100, 5) == b"world"
    cuda.free(before, memory)


def test_a_forked_child_is_refused(library: str) -> None:
    program = """
cuda = Cuda(library)
child = os.fork()
if child == 0:
    os._exit(cuda.code("cuMemAlloc_v2", ctypes.byref(Address()), size_of(8)))
print(os.waitpid(child, 0)[1] >> 8)
"""
    assert run(library, program).stdout == f"{NOT_INITIALIZED}\n"
