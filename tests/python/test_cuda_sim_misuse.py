"""The misuse of CUDA that the fake driver finds. It ends the process, so each runs in one of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda_calls import TESTS, Address, Cuda, run
from cuda_sim_build import fake_driver

ABORTED = -6


@pytest.fixture(scope="module")
def library() -> Path:
    return fake_driver()


@pytest.fixture
def cuda(library: Path) -> Iterator[Cuda]:
    made = Cuda(library)
    yield made
    made.close()


def misuse(program: str, library: Path, **settings: str) -> str:
    """Returns the sentence with which the fake driver ends the program."""
    done = run(library, "cuda = Cuda(library)\n" + program, **settings)
    assert done.returncode == ABORTED, (done.returncode, done.stderr)
    return done.stderr.splitlines()[0]


def test_a_plain_name_of_an_old_function_is_misuse(library: Path) -> None:
    assert "cuMemAlloc: the plain name" in misuse("cuda.code('cuMemAlloc', None, 8)", library)


def test_a_host_function_may_not_call_cuda(library: Path) -> None:
    program = """
call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: cuda.code("cuStreamQuery", stream))
stream = cuda.stream()
cuda("cuLaunchHostFunc", stream, call, None)
cuda.synchronize(stream)
"""
    assert "cuStreamQuery: a host function may not call CUDA." in misuse(program, library)


@pytest.mark.parametrize("free", ["cuda.free(memory)", "cuda.free_pinned(pinned)"])
def test_memory_of_queued_work_may_not_go(library: Path, free: str) -> None:
    program = f"""
stream, memory, pinned = cuda.stream(), cuda.allocate(64), cuda.pinned(64)
cuda.library.cuda_sim_hold(1)
cuda("cuMemcpyHtoDAsync_v2", Address(memory), Handle(pinned), size_of(64), stream)
{free}
"""
    assert "the memory is in use by work that is queued." in misuse(program, library)


OPENER = """
handle, address = IpcHandle.from_buffer_copy(bytes.fromhex(sys.argv[1])), Address()
cuda("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, 1)
stream, own = cuda.stream(), cuda.allocate(64)
"""


def test_an_exporter_may_not_free_what_another_process_has_open(library: Path) -> None:
    opener = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom cuda_calls import *\n"
    opener += f"cuda = Cuda({str(library)!r}){OPENER}print('open', flush=True)\nsys.stdin.read()"
    program = f"""
import subprocess
memory, handle = cuda.allocate(64), IpcHandle()
cuda("cuIpcGetMemHandle", ctypes.byref(handle), Address(memory))
command = [sys.executable, "-c", {opener!r}, bytes(handle).hex()]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    assert child.stdout.readline() == b"open\\n"
    if os.environ["ORDER"] == "late":
        child.communicate()
    cuda.free(memory)
print("freed")
"""
    done = run(library, "cuda = Cuda(library)\n" + program, ORDER="late")
    assert done.stdout == "freed\n", done.stderr
    assert "has the memory open by CUDA IPC" in misuse(program, library, ORDER="early")


def test_an_opener_may_not_close_what_its_queued_work_needs(cuda: Cuda, library: Path) -> None:
    memory, handle = cuda.allocate(64), (ctypes.c_ubyte * 64)()
    cuda("cuIpcGetMemHandle", handle, Address(memory))
    program = f"sys.argv.append({bytes(handle).hex()!r})\n" + OPENER
    program += """
cuda.library.cuda_sim_hold(1)
cuda.copy(own, address.value, 64, stream)
cuda("cuIpcCloseMemHandle", address)
"""
    assert "in use by work that is queued" in misuse(program, library)
    cuda.free(memory)
