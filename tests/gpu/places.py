"""Places of tests of ranks: a CUDA driver, and the library whose arrays the ranks have on it."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from cuda_calls import Address, Cuda, CudaError, IpcHandle, run as run_alone
from cuda_sim_build import fake_driver
from rank_program import program
from ranks import run

REAL = "libcuda.so.1"
LIBRARIES = ("cupy", "torch", "jax", "numba")


COUNT = f"""
import ctypes, sys
driver, count = ctypes.CDLL({REAL!r}), ctypes.c_int()
sys.exit(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value)
"""


@functools.lru_cache(maxsize=1)
def has_real() -> bool:
    """Whether this machine has a GPU that NVIDIA's driver knows.

    A process of its own asks, since CUDA does not work in children that are forked after its start.
    """
    try:
        ctypes.CDLL(REAL)
    except OSError:
        return False
    return subprocess.run([sys.executable, "-c", COUNT], capture_output=True, timeout=100).returncode == 0


@dataclass(frozen=True)
class Place:
    """A driver, and the library whose arrays the ranks use."""

    arrays: str
    is_real: bool
    settings: dict[str, str] = field(default_factory=dict)

    def environment(self, **extra: str) -> dict[str, str]:
        """The variables for ranks on this driver. The variable GPU_SETTINGS has further ones."""
        environ = {"GPU_ARRAYS": self.arrays, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **extra}
        environ.update(word.split("=", 1) for word in os.environ.get("GPU_SETTINGS", "").split())
        if self.is_real:
            return environ
        seed = str(secrets.randbits(24))
        print("CUDA_SIM_SEED", seed)
        fake = {"CUDA_SIM_SEED": seed, "CUDA_SIM_DELAY_US": "50", "CUDA_SIM_MACHINE": "h100"}
        return {"RDMACOLL_CUDA_LIBRARY": str(fake_driver()), **fake, **environ}


def installed() -> list[str]:
    """The libraries of arrays that this machine has, if it has a driver."""
    return [name for name in LIBRARIES if has_real() and importlib.util.find_spec(name)]


def own_places(is_fake_slow: bool = False) -> list[object]:
    """The drivers alone, for programs whose arrays belong to the engine or to themselves."""
    return [place for place in places(is_fake_slow) if "cupy" not in str(place)]


def places(is_fake_slow: bool = False) -> list[object]:
    """The fake driver, and that of this machine with the imitated cupy and with the real one."""
    fake = pytest.param(Place("imitated", False), id="fake", marks=[pytest.mark.slow] if is_fake_slow else [])
    arrays = ["imitated", *(name for name in installed() if name == "cupy")] if has_real() else []
    return [fake, *(pytest.param(Place(name, True), id=name, marks=pytest.mark.gpu) for name in arrays)]


def run_body(place: Place, body: str, size: int = 2, **extra: str) -> None:
    """Runs the body on ranks that share the GPU."""
    found = run(program(body), size, env=place.environment(**extra), deadline_s=200).succeeded()
    assert [entry["error"] for entry in found] == [None] * size, found


def skip_without_ipc(library: str) -> None:
    """Skips the test, with the reason, where a sandbox keeps processes from sharing memory of a GPU."""
    if library != REAL:
        return
    try:
        cuda, handle = Cuda(library), IpcHandle()
        memory = cuda.allocate(1000)
        cuda("cuIpcGetMemHandle", ctypes.byref(handle), Address(memory))
        program = f"""
cuda = Cuda(library)
handle = IpcHandle.from_buffer_copy(bytes.fromhex({bytes(handle).hex()!r}))
cuda("cuIpcOpenMemHandle_v2", ctypes.byref(Address()), handle, 1)
"""
        done = run_alone(library, program)
        cuda.free(memory)
        cuda.close()
        refusal = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    except CudaError as error:
        refusal = str(error)
    if refusal:
        assert "cuIpc" in refusal, refusal
        pytest.skip(f"this sandbox forbids CUDA IPC: {refusal}")
