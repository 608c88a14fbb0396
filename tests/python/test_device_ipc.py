"""Collectives of ranks of a node whose GPUs read each other's memory (CUDA IPC), on the fake CUDA driver."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from marks import slow
from rank_program import program, wait_done
from ranks import Run
from test_device_collectives import environment, run_body, run_numpy_program

COUNT = """
import gpu_arrays
def metrics():
    found = rdmacoll.metrics()
    return {name: found[name] for name in ("bytes_staged", "bytes_between_gpus", "kernel_launches")}
def grown(before):
    return {name: value - before[name] for name, value in metrics().items()}
"""


def test_ranks_on_one_gpu_sum_large_arrays_there_and_not_in_host_memory():
    run_body(
        COUNT
        + """
values = np.arange(300_000, dtype=np.float32) % 977
array = cupy.array(values + me)
gpu_arrays.prepare_sums()
before = metrics()
assert (engine.allreduce(array, rdmacoll.Sum).get() == 2 * values + 1).all()
found = grown(before)
assert found["bytes_staged"] == 0 and found["kernel_launches"] > 0, found
assert found["bytes_between_gpus"] == array.nbytes, found   # a half of the input, and a half of the sum
for turn in range(20):
    array.set(values + me + turn)
    assert engine.allreduce(array, rdmacoll.Sum, out=array) is array
    assert (array.get() == 2 * values + 1 + 2 * turn).all()
assert metrics()["bytes_staged"] == before["bytes_staged"], metrics()
""",
        RDMACOLL_CUDA_IPC="auto",
    )


def test_gradients_of_many_arrays_are_summed_in_long_segments_on_gpus():
    run_body(
        COUNT
        + """
rng = np.random.default_rng(5)
sizes = rng.integers(1, 900_000, 60)            # 108 MB, so that a larger slab is added
hosts = [rng.integers(-99, 99, size).astype(np.float32) for size in sizes]
arrays = [cupy.array(host * (me + 1)) for host in hosts]
gpu_arrays.prepare_sums()
engine.grouped_allreduce(arrays)                # begins to make the slab
gpu_arrays.prepare_sums()
before = metrics()
for turn in range(3):
    totals = engine.grouped_allreduce(arrays, rdmacoll.Sum)
    for host, total in zip(hosts, totals):
        assert (total.get() == host * 3).all()
found = grown(before)
assert found["bytes_staged"] == 0, found
assert found["bytes_between_gpus"] == 3 * sum(host.nbytes for host in hosts), found
assert found["kernel_launches"] < 200, found
""",
        RDMACOLL_CUDA_IPC="auto",
        CUDA_SIM_DELAY_US="10",
    )


# A sum of two ranks adds a half of the array, and copies the other half of the sum. Other arrays are copied
# to and from work memory, too.
IN_PLACE = (
    COUNT
    + """
cuda = device_array._gpu(0).cuda.library
def work():
    return cuda.cuda_sim_count(b"launches") + cuda.cuda_sim_count(b"copies device to device")
def work_of(array, out):
    engine.allreduce(array, rdmacoll.Sum, out=out)     # its recipe is known afterwards
    cupy.cuda.get_current_stream().synchronize()
    before, staged = work(), metrics()["bytes_staged"]
    assert engine.allreduce(array, rdmacoll.Sum, out=out) is out
    out.get()
    assert metrics()["bytes_staged"] == staged
    return work() - before
values = np.arange(300_000, dtype=np.float32) % 977
def in_engine(begin, size=300_000):
    whole = cupy.from_dlpack(engine.empty(begin + size, device="cuda:0"))
    return whole[begin:]
own = [in_engine(begin).set(values + me) for begin in (0, 4, 33)] + [in_engine(7) for _ in range(2)]
other = cupy.array(values + me)
gpu_arrays.prepare_sums()
for _ in range(6):                                     # peers open the memory meanwhile
    for array in own[:3]:
        engine.allreduce(array, rdmacoll.Sum, out=own[3])
    time.sleep(0.05)
between = metrics()["bytes_between_gpus"]
in_place = [work_of(array, own[3]) for array in own[:3]]
assert (own[3].get() == 2 * values + 1).all()
assert metrics()["bytes_between_gpus"] == between + 6 * values.nbytes
packed = work_of(other, cupy.array(values))
imports = cuda.cuda_sim_count(b"live imports")
assert (in_place, packed) == ([2, 2, 2], 4)
for turn in range(10):                     # in place, and in memory that was freed and given again
    array = in_engine(turn).set(values + me + turn)
    assert engine.allreduce(array, rdmacoll.Sum, out=array) is array
    assert (array.get() == 2 * values + 1 + 2 * turn).all()
    rows = engine.allgather(own[0])
    assert (rows.get() == np.concatenate([values, values + 1])).all()
    del array
opened = [cuda.cuda_sim_count(name) for name in (b"live imports", b"calls cuIpcOpenMemHandle_v2")]
engine.barrier()                                       # a rank that leaves ends the others' imports
assert opened == [imports, imports], (opened, imports)   # the memory is opened once
"""
)


def test_arrays_of_the_engine_are_read_in_place_and_opened_once():
    run_body(IN_PLACE, RDMACOLL_CUDA_IPC="always", RDMACOLL_ALLREDUCE_ALGORITHM="direct")


# A host function of the caller runs until the calls have returned. The driver loads no kernel meanwhile.
ENDLESS = (
    COUNT
    + """
import ctypes, threading
device_array.keep_memory()     # to free it would wait for the host function
has_begun, may_end = threading.Event(), threading.Event()
def hold(_):
    has_begun.set()
    may_end.wait()
hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(hold)
values = np.arange(300_000, dtype=np.float32) % 977
busy, other = device_array.new_stream(), device_array.new_stream()
with device_array._gpu(0).current() as cuda, other:
    cuda("cuLaunchHostFunc", device_array.Handle(busy.ptr), hold, None)
    assert has_begun.wait(60)
    array = cupy.array(values + me)
    for turn in range(4):
        assert (engine.allreduce(array, rdmacoll.Sum).get() == 2 * values + 1).all()
        many = [cupy.array(np.full(700, float(me + part))) for part in range(40)]
        totals = engine.grouped_allreduce(many, op=rdmacoll.Sum)
        assert [total.get()[2] for total in totals] == [2.0 * part + 1 for part in range(40)]
    assert metrics()["kernel_launches"] == 0, metrics()
    assert cuda.library.cuda_sim_count(b"modules loaded") == 0
may_end.set()
is_loaded = 0
while not is_loaded:
    engine.grouped_allreduce(many, op=rdmacoll.Sum)
    is_loaded = engine.allreduce(np.array([float(metrics()["kernel_launches"] > 0)]), rdmacoll.Min)[0]
gpu_arrays.prepare_sums()
before = metrics()
assert (engine.allreduce(array, rdmacoll.Sum).get() == 2 * values + 1).all()
found = grown(before)
"""
)


@pytest.mark.parametrize("ipc", ["off", "auto", "always"])
def test_no_call_waits_for_kernels_of_the_caller_while_others_are_loaded(ipc):
    more = "" if ipc == "off" else 'assert found["bytes_between_gpus"] > 0, found\n'
    run_body(ENDLESS + more, RDMACOLL_CUDA_IPC=ipc)


@pytest.mark.parametrize("size", [2, slow(3), slow(5)])
def test_collectives_over_memory_of_gpus_equal_numpy(size):
    run_numpy_program(size, RDMACOLL_CUDA_IPC="always")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 5])
def test_collectives_over_arrays_that_peers_read_in_place_equal_numpy(size):
    run_numpy_program(size, RDMACOLL_CUDA_IPC="always", GPU_MEMORY="engine")


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["k80", "h100x2"])
def test_arrays_on_gpus_of_each_rank_that_peers_read_in_place_equal_numpy(machine):
    more = {"CUDA_SIM_MACHINE": machine, "GPU_OF_EACH_RANK": "1", "GPU_MEMORY": "engine"}
    run_numpy_program(2, RDMACOLL_CUDA_IPC="always", **more)


@pytest.mark.slow
def test_ranks_on_host_memory_among_ranks_on_gpus_equal_numpy():
    run_numpy_program(3, DEVICE_RANKS="0,2", RDMACOLL_CUDA_IPC="always")


@pytest.mark.slow
def test_canonical_order_on_gpus_has_the_bits_of_host_memory():
    run_numpy_program(3, RDMACOLL_CUDA_IPC="always", RDMACOLL_ORDER="canonical")


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["k80", "h100x2"])
def test_collectives_of_ranks_with_a_gpu_each_equal_numpy(machine):
    run_numpy_program(2, RDMACOLL_CUDA_IPC="always", CUDA_SIM_MACHINE=machine, GPU_OF_EACH_RANK="1")


def machine(tmp_path: Path, **facts: object) -> str:
    """The path of a description of a machine for the fake driver: h100x2, but for these facts."""
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"base": "h100x2", **facts}))
    return str(path)


STAGED = (
    COUNT
    + """
gpu_arrays.prepare_sums()
before = metrics()
array = cupy.array(np.full(300_000, me + 1.0, np.float32))
for _ in range(3):
    assert (engine.allreduce(array, rdmacoll.Sum).get() == 3).all()
found = grown(before)
assert found["bytes_staged"] > 0 and found["bytes_between_gpus"] == 0, found
"""
)


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ({"cuIpcGetMemHandle": 801}, "cuIpcGetMemHandle"),
        ({"cuIpcOpenMemHandle_v2": 801}, "by CUDA IPC"),
        ({"cuModuleLoadData": 222}, "loading the kernel"),
    ],
)
def test_what_a_driver_refuses_is_staged_and_said_once(tmp_path, failures, reason):
    outcome = run_body(
        STAGED, CUDA_SIM_MACHINE=machine(tmp_path, failures=failures), RDMACOLL_CUDA_IPC="always"
    )
    for rank in outcome.ranks:
        said = [line for line in rank.output.splitlines() if "go through host memory" in line]
        assert len(said) == 1, rank.output
        assert reason in said[0], rank.output


@pytest.mark.slow
def test_a_gpu_without_cuda_ipc_is_staged_and_named(tmp_path):
    without = machine(tmp_path, gpus=[{"ipc": False}, {}])
    outcome = run_body(
        STAGED
        + """
count = device_array._gpu(0).cuda.library.cuda_sim_count
assert count(b"calls cuIpcGetMemHandle") == 0      # the attribute decides
""",
        CUDA_SIM_MACHINE=without,
        RDMACOLL_CUDA_IPC="always",
    )
    for rank in outcome.ranks:
        said = [line for line in rank.output.splitlines() if "go through host memory" in line]
        assert len(said) == 1, rank.output
        assert "is not capable of CUDA IPC (IS_LEGACY_CUDA_IPC_CAPABLE is 0)" in said[0], rank.output


def test_gpus_without_access_to_each_other_are_staged(tmp_path):
    body = "device_array.Device(me).__enter__()\n" + STAGED
    lonely = machine(tmp_path, gpus=[{"peers": []}, {"peers": []}])
    outcome = run_body(body, CUDA_SIM_MACHINE=lonely, RDMACOLL_CUDA_IPC="always")
    assert all("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" in rank.output for rank in outcome.ranks), outcome.text()


def test_a_rank_that_uses_a_gpu_later_is_read_from_then_on():
    run_body(
        COUNT
        + """
host = np.full(300_000, me + 1.0, np.float32)
array = cupy.array(host) if me == 0 else None
for _ in range(3):
    total = engine.allreduce(array if me == 0 else host, rdmacoll.Sum)
    assert ((total.get() if me == 0 else total) == 3).all()
array = cupy.array(host)
gpu_arrays.prepare_sums()       # rank 1 learns of the memory of rank 0, and the other way round
before = metrics()
for _ in range(3):
    assert (engine.allreduce(array, rdmacoll.Sum).get() == 3).all()
    total = engine.allreduce(array if me == 0 else host, rdmacoll.Sum)
    assert ((total.get() if me == 0 else total) == 3).all()
found = grown(before)
assert found["bytes_between_gpus"] >= 3 * host.nbytes, found
""",
        RDMACOLL_CUDA_IPC="always",
    )


def test_a_job_whose_ranks_reach_no_memory_of_each_other_prepares_no_gpu():
    run_body(
        COUNT
        + """
array = cupy.array(np.full(300_000, me + 1.0, np.float32))
for _ in range(3):
    assert (engine.allreduce(array, rdmacoll.Sum).get() == 3).all()
assert rdmacoll.metrics()["gpus_preparing"] == 0
for call in ("cuIpcGetMemHandle", "cuModuleLoadData"):
    count = device_array._gpu(0).cuda.library.cuda_sim_count(f"calls {call}".encode())
    assert count == (0 if call.startswith("cuIpc") else 2), (call, count)   # the kernels that copy
""",
        RDMACOLL_CUDA_IPC="auto",
        RDMACOLL_TRANSPORT="tcp",
    )


# Peers have arrays of the engine open. They stay for the program while it has them, and so does the engine.
@pytest.mark.parametrize("memory", ["program", "engine"])
def test_survivors_of_a_failed_world_free_all_memory_on_gpus(memory):
    body = """
import device_array, gc, gpu_arrays
cupy = device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])
if os.environ["GPU_MEMORY"] == "engine":
    big = cupy.from_dlpack(engine.empty(1_000_000, device="cuda:0")).set(np.ones(1_000_000, np.float32))
else:
    big = cupy.array(np.ones(1_000_000, np.float32))
gpu_arrays.prepare_sums()
report({"pid": os.getpid()})
try:
    while True:
        engine.allreduce(big, rdmacoll.Sum)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
except rdmacoll.RankFailedError:
    pass
rdmacoll.shutdown()
count = device_array._gpu(0).cuda.library.cuda_sim_count
# The engine stays with its array. Then its thread closes the memory of peers, which takes a moment.
limit = time.monotonic() + (25 if os.environ["GPU_MEMORY"] == "engine" else 0)
while count(b"live imports") > 0 and time.monotonic() < limit:
    time.sleep(0.01)
assert count(b"live imports") == 0
big.get()
del big
gc.collect()
live = {name: count(f"live {name}".encode()) for name in ("allocations", "modules", "streams")}
assert live == {"allocations": 0, "modules": 0, "streams": 1}, live   # the stream of the program
report({"done": True, "error": None}, rank=me)
sys.exit(0)
"""
    env = environment(RDMACOLL_CUDA_IPC="always", GPU_MEMORY=memory)
    with Run(program(body), 3, env=env) as started:
        for entry in wait_done(started, (0, 2), 60):
            assert entry["error"] is None, entry


def test_a_rank_killed_during_a_sum_on_gpus_is_named():
    body = """
import device_array
cupy = device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])
import gpu_arrays
big = cupy.array(np.ones(1_000_000, np.float32))
gpu_arrays.prepare_sums()
while True:
    engine.allreduce(big, rdmacoll.Sum)
"""
    env = environment(RDMACOLL_CUDA_IPC="always")
    with Run(program(body, after="sys.exit(3)"), 3, env=env) as started:
        started.wait_for_reports(range(3))
        time.sleep(3)
        os.kill(started.pid(1), signal.SIGKILL)
        for entry in wait_done(started, (0, 2), 25):
            assert entry["error"] == "RankFailedError", entry
            assert entry["attributes"]["rank"] == 1, entry
