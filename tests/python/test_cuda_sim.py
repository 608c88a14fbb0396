"""The fake CUDA driver: the machine that it emulates, its order of work, its refusals and counters."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda_calls import (
    ILLEGAL_ADDRESS,
    INVALID_HANDLE,
    TESTS,
    Address,
    Cuda,
    CudaError,
    Handle,
    counters,
    run,
    size_of,
)
from cuda_sim_build import fake_driver

UNAVAILABLE = 46


@pytest.fixture(scope="module")
def library() -> Path:
    return fake_driver()


@pytest.fixture
def cuda(library: Path) -> Iterator[Cuda]:
    made = Cuda(library)
    yield made
    made.close()


def output(program: str, library: Path, **settings: str) -> str:
    done = run(library, program, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def machine(folder: Path, description: object) -> str:
    path = folder / "machine.json"
    path.write_text(json.dumps(description))
    return str(path)


# The machine

FACTS = """
cuda = Cuda(library, None)
count, version = ctypes.c_int(), ctypes.c_int()
cuda("cuDeviceGetCount", ctypes.byref(count))
cuda("cuDriverGetVersion", ctypes.byref(version))
nvml, found = cuda.library, []
assert nvml.nvmlInit_v2() == 0
for gpu in range(count.value):
    name, uuid, handle = ctypes.create_string_buffer(64), ctypes.create_string_buffer(16), Handle()
    cuda("cuDeviceGetName", name, 64, gpu)
    cuda("cuDeviceGetUuid", uuid, gpu)
    text = uuid.raw.hex()
    text = "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    assert nvml.nvmlDeviceGetHandleByUUID(text.encode(), ctypes.byref(handle)) == 0
    bar1 = (ctypes.c_uint64 * 3)()
    refused = nvml.nvmlDeviceGetBAR1MemoryInfo(handle, bar1)
    found.append([name.value.decode(), text, None if refused else bar1[0]])
first, uuid = Handle(), ctypes.create_string_buffer(96)
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(first)) == 0
nvml.nvmlDeviceGetUUID(first, uuid, 96)
print(json.dumps([version.value, found, uuid.value.decode()]))
"""


def test_the_machine_is_named_by_the_environment(library: Path) -> None:
    version, gpus, first_of_nvml = json.loads(output(FACTS, library))
    assert version == 11040
    assert [name for name, _, _ in gpus] == ["Tesla K80", "Tesla K80"]
    assert first_of_nvml == gpus[1][1], "CUDA and NVML count alike, so tests cannot tell them apart"
    version, gpus, _ = json.loads(output(FACTS, library, CUDA_SIM_MACHINE="h100"))
    assert (version, len(gpus), gpus[0][2]) == (13000, 1, 128 << 30)


def test_a_file_describes_a_machine(library: Path, tmp_path: Path) -> None:
    path = machine(tmp_path, {"cuda": 11020, "gpus": [{}, {"name": "other", "bar1_bytes": 1 << 28}]})
    version, gpus, _ = json.loads(output(FACTS, library, CUDA_SIM_MACHINE=path))
    assert version == 11020
    assert [(name, bar1) for name, _, bar1 in gpus] == [("Tesla K80", 16 << 30), ("other", 1 << 28)]


def test_hidden_gpus_are_hidden_from_cuda_alone(library: Path) -> None:
    _, all_gpus, _ = json.loads(output(FACTS, library))
    _, seen, first_of_nvml = json.loads(output(FACTS, library, CUDA_VISIBLE_DEVICES="1"))
    assert seen == all_gpus[1:]
    assert first_of_nvml == all_gpus[1][1]
    _, seen, _ = json.loads(output(FACTS, library, CUDA_VISIBLE_DEVICES=all_gpus[1][1]))
    assert seen == all_gpus[1:]


def test_an_old_driver_lacks_functions() -> None:
    names = ("cuFlushGPUDirectRDMAWrites", "cuDeviceGetUuid_v2", "cuMemGetHandleForAddressRange")
    old = ctypes.CDLL(str(fake_driver(without=names)))
    for name in names:
        assert not hasattr(old, name)
    assert hasattr(old, "cuMemAlloc_v2")


def retain(library: Path, settings: dict[str, str], then: str = "") -> subprocess.Popen[str]:
    program = f"""
from cuda_calls import *
cuda = Cuda(sys.argv[1], None)
print(cuda.code("cuDevicePrimaryCtxRetain", ctypes.byref(Handle()), 0), flush=True)
{then}
"""
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n{program}", str(library)],
        env={**os.environ, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_gpu_for_one_process_refuses_the_second_one(library: Path, tmp_path: Path) -> None:
    uuid = f"GPU-{os.getpid():08x}-0000-4000-8000-000000000001"
    path = machine(tmp_path, {"gpus": [{"uuid": uuid, "attributes": {"20": 3}}, {}]})
    first = retain(library, {"CUDA_SIM_MACHINE": path}, "sys.stdin.read()")
    assert first.stdout is not None
    assert first.stdout.readline() == "0\n"
    assert retain(library, {"CUDA_SIM_MACHINE": path}).communicate()[0] == f"{UNAVAILABLE}\n"
    first.communicate()
    assert retain(library, {"CUDA_SIM_MACHINE": path}).communicate()[0] == "0\n"


def test_a_prohibited_gpu_refuses_a_context(library: Path, tmp_path: Path) -> None:
    path = machine(tmp_path, {"gpus": [{"attributes": {"20": 2}}]})
    assert retain(library, {"CUDA_SIM_MACHINE": path}).communicate()[0] == f"{UNAVAILABLE}\n"


def test_a_machine_can_refuse_a_function_always(library: Path, tmp_path: Path) -> None:
    path = machine(tmp_path, {"failures": {"cuInit": 999, "nvmlInit_v2": 9}})
    program = """
driver = ctypes.CDLL(library)
print([driver.cuInit(0), driver.cuInit(0), driver.nvmlInit_v2()])
"""
    assert output(program, library, CUDA_SIM_MACHINE=path) == "[999, 999, 9]\n"


def test_bar1_is_bounded(cuda: Cuda) -> None:
    take = cuda.library.cuda_sim_take_bar1
    take.argtypes = [ctypes.c_int, ctypes.c_longlong]
    assert take(0, 16 << 30) == 1
    assert take(0, 1) == 0
    assert take(1, 1) == 1
    assert take(0, -(16 << 30)) == 1
    assert take(1, -1) == 1


# Order

STEPS = """
cuda = Cuda(library)
cuda.library.cuda_sim_hold(1)
events = []
for stream in [cuda.stream() for _ in range(3)]:
    for _ in range(4):
        events.append(cuda.event())
        cuda("cuEventRecord", events[-1], stream)
order, passed = [], set()
while cuda.library.cuda_sim_step():
    now = {i for i, event in enumerate(events) if cuda.code("cuEventQuery", event) == 0}
    order += sorted(now - passed)
    passed = now
print(order)
"""


def test_the_seed_orders_the_work_of_streams(library: Path) -> None:
    orders = [output(STEPS, library, CUDA_SIM_SEED=seed) for seed in ("1", "1", "2", "3")]
    assert orders[0] == orders[1]
    assert len(set(orders)) > 1
    for order in orders:
        places = json.loads(order)
        assert sorted(places) == list(range(12))
        for stream in range(3):
            assert [place for place in places if place // 4 == stream] == [4 * stream + i for i in range(4)]


def test_the_machine_is_right_in_many_random_steps(cuda: Cuda) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    source = random.Random(seed)
    live: dict[int, tuple[int, bytes]] = {}
    ids = set()
    for step in range(1000):
        if live and source.random() < 0.5:
            address = source.choice(list(live))
            size, data = live.pop(address)
            if step % 16 == 0:
                assert cuda.read(address + size - len(data), len(data)) == data
            cuda.free(address)
        else:
            size = source.choice((1, 100, 512, 70000, 3 << 20))
            address = cuda.allocate(size)
            assert all(address + size <= other or other + live[other][0] <= address for other in live)
            data = os.urandom(min(size, 8))
            cuda.write(address + size - len(data), data)
            live[address] = size, data
            number = cuda.pointer_attribute(7, address)
            assert number not in ids
            ids.add(number)
    cuda.free(*live)
    assert counters(cuda)["live allocations"] == 0


# Refusals


def test_a_planned_failure_comes_once(cuda: Cuda) -> None:
    cuda.library.cuda_sim_fail(b"cuMemAlloc_v2", 2, 1)
    first = cuda.allocate(8)
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        cuda.allocate(8)
    cuda.free(first, cuda.allocate(8))


def test_a_gpu_has_no_more_memory_than_it_has(cuda: Cuda) -> None:
    big = cuda.allocate(11 << 30)
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        cuda.allocate(1 << 30)
    cuda.free(big)


def test_streams_and_events_of_another_context_are_refused(library: Path) -> None:
    first, second = Cuda(library, 0), Cuda(library, 1)
    stream, event = second.stream(), second.event()
    second("cuCtxPopCurrent_v2", None)
    memory = first.allocate(64)
    refused = first.code("cuMemsetD8Async", Address(memory), 0, size_of(64), stream)
    assert refused == INVALID_HANDLE
    assert first.code("cuEventRecord", event, first.stream()) == INVALID_HANDLE
    first.free(memory)
    first("cuCtxPushCurrent_v2", second.context)
    second.close()
    first.close()


PEERS = """
first, second = Cuda(library, 0), Cuda(library, 1)
memory, stream = second.allocate(8), Handle()
second("cuCtxPopCurrent_v2", None)
if "enable" in os.environ.get("PEERS", ""):
    first("cuCtxEnablePeerAccess", second.context, 0)
stream = first.stream()
launch_write_word(first, memory, 5, stream)
print(first.code("cuStreamSynchronize", stream))
os._exit(0)
"""


def test_a_kernel_needs_access_to_a_peer(library: Path) -> None:
    assert output(PEERS, library) == f"{ILLEGAL_ADDRESS}\n"
    assert output(PEERS, library, PEERS="enable") == "0\n"


def test_dma_buf_descriptors_show_the_bytes(library: Path) -> None:
    program = """
import mmap
cuda = Cuda(library)
memory, fd = cuda.allocate(4 << 20), ctypes.c_int(-1)
cuda.write(memory + 8192, b"bytes")
def code(address, size):
    name = "cuMemGetHandleForAddressRange"
    return cuda.code(name, ctypes.byref(fd), Address(address), size_of(size), 1, ctypes.c_uint64(0))
print([code(memory + 8192, 4096), code(memory + 100, 4096), code(memory, 100), code(memory, 5 << 20)])
place = os.lseek(fd.value, 0, os.SEEK_CUR)
print(mmap.mmap(fd.value, 4096, offset=place)[:5])
"""
    assert output(program, library, CUDA_SIM_MACHINE="h100") == "[0, 1, 1, 1]\nb'bytes'\n"
    assert output(program.split("print")[0] + "print(code(memory, 4096))", library) == "801\n"


# Counters


def test_counters_tell_of_calls_copies_and_default_streams(cuda: Cuda) -> None:
    cuda.library.cuda_sim_reset_counters()
    stream, memory, pinned = cuda.stream(), cuda.allocate(64), cuda.pinned(64)
    cuda("cuMemcpyHtoDAsync_v2", Address(memory), Handle(pinned), size_of(64), stream)
    cuda.synchronize(stream)
    seen = counters(cuda)
    assert (seen["copies host to device"], seen["bytes host to device"]) == (1, 64)
    assert seen["calls cuMemAlloc_v2"] == 1
    assert (seen["live allocations"], seen["live pinned"], seen["queued"]) == (1, 1, 0)
    assert "work on default streams" not in seen
    assert "device-wide synchronisations" not in seen
    cuda.fill(memory, 0, 8, Handle(2))
    cuda.synchronize(Handle(2))
    cuda.synchronize(Handle(1))
    assert cuda.library.cuda_sim_count(b"work on default streams") == 1
    assert cuda.library.cuda_sim_count(b"device-wide synchronisations") == 1
    cuda.free(memory)
    cuda.free_pinned(pinned)


def test_a_process_writes_its_counters_at_its_end(library: Path, tmp_path: Path) -> None:
    output("Cuda(library).allocate(8)", library, CUDA_SIM_LOG=str(tmp_path / "log"))
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["live allocations"] == 1


def test_starts_and_stops_leave_nothing(library: Path) -> None:
    cuda = Cuda(library, None)
    before = {key: value for key, value in counters(cuda).items() if key.startswith(("live", "retained"))}
    for _ in range(50):
        one = Cuda(library)
        one.allocate(100)
        one.event()
        one.fill(one.allocate(64), 0, 64, one.stream())
        one.close()
    after = {key: value for key, value in counters(cuda).items() if key.startswith(("live", "retained"))}
    assert after == before
