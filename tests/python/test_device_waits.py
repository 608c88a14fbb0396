"""Kernels of the program that do not end, while the engine needs calls of the driver that wait for kernels:
calls that load kernels, free memory, or open and close memory of other processes. On the fake driver."""

from __future__ import annotations

import pytest
from marks import slow
from rank_program import program, wait_done
from ranks import Run, run
from test_device_collectives import environment, run_body

IMITATION = 'import device_array\ncupy = device_array.cupy_of(os.environ["RDMACOLL_CUDA_LIBRARY"])\n'

# A host function that runs until `may_end` is set stands for a kernel that does not end.
KERNEL = """
import ctypes, pathlib, threading
import gpu_arrays
has_begun, may_end = threading.Event(), threading.Event()
def _run(_):
    has_begun.set()
    may_end.wait()
_run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_run)
stream, other = device_array.new_stream(), device_array.new_stream()
def meet(place):
    folder = pathlib.Path(sys.argv[0]).parent
    (folder / f"{place}.{me}").touch()
    soon(lambda: len(list(folder.glob(f"{place}.*"))) == 2)
def begin_a_kernel():
    with device_array._gpu(0).current() as cuda:
        cuda("cuLaunchHostFunc", device_array.Handle(stream.ptr), _run, None)
    assert has_begun.wait(60)
library = device_array._gpu(0).cuda.library
def count(name):
    return library.cuda_sim_count(name.encode())
def soon(condition, within_s=30):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.01)
def allocations_of_the_program_alone():
    return [count(f"live {name}") for name in ("allocations", "imports", "modules", "pinned")] == [1, 0, 0, 0]
"""
# After a shutdown: memory stays until the kernels of both ranks end.
KEPT_AND_FREED = """
assert not allocations_of_the_program_alone()
meet("after")
may_end.set()
soon(allocations_of_the_program_alone)
report({"error": None}, rank=me)
sys.exit(0)
"""
KERNELS_RUN = "kernels of this program still do"
IS_OPEN = "another rank of this node has GPU memory of this rank open"


# The peer timeout is long, since a rank would wait as long for a peer whose end it does not see.
@pytest.mark.parametrize("ipc", [slow("off"), "always"])
def test_the_end_waits_only_some_time_for_a_kernel_of_the_program(ipc):
    body = """
array = cupy.array(np.full(300_000, me + 1.0, np.float32))
if os.environ["RDMACOLL_CUDA_IPC"] != "off":
    gpu_arrays.prepare_sums()
assert (engine.allreduce(array, rdmacoll.Sum, out=array).get() == 3).all()
begin_a_kernel()
time.sleep(me)  # rank 0 has ended before the end of rank 1 begins
begin = time.monotonic()
rdmacoll.shutdown()
assert time.monotonic() - begin < 25
"""
    settings = environment(RDMACOLL_CUDA_IPC=ipc, RDMACOLL_PEER_TIMEOUT_S="50")
    outcome = run(program(IMITATION + KERNEL + body + KEPT_AND_FREED), 2, env=settings, deadline_s=100)
    outcome.succeeded()
    for rank in outcome.ranks:
        assert sorted(map(rank.output.count, (KERNELS_RUN, IS_OPEN))) == [0, 1], rank.output


@pytest.mark.slow
def test_memory_stays_while_a_kernel_of_another_rank_keeps_it_open():
    body = """
array = cupy.array(np.full(300_000, me + 1.0, np.float32))
gpu_arrays.prepare_sums()
assert (engine.allreduce(array, rdmacoll.Sum, out=array).get() == 3).all()
if me == 1:
    begin_a_kernel()
meet("before")
rdmacoll.shutdown()
"""
    settings = environment(RDMACOLL_CUDA_IPC="always", RDMACOLL_PEER_TIMEOUT_S="50")
    outcome = run(program(IMITATION + KERNEL + body + KEPT_AND_FREED), 2, env=settings, deadline_s=100)
    outcome.succeeded()
    first, second = (rank.output for rank in outcome.ranks)
    assert (first.count(IS_OPEN), first.count(KERNELS_RUN)) == (1, 0), first
    assert (second.count(IS_OPEN), second.count(KERNELS_RUN)) == (0, 1), second


def test_a_failure_is_told_though_a_kernel_of_the_program_does_not_end():
    body = """
array = cupy.array(np.ones(300_000, np.float32))
gpu_arrays.prepare_sums()
begin_a_kernel()
report({"pid": os.getpid()})
with other:
    try:
        while True:
            engine.allreduce(array, rdmacoll.Sum, out=array)
            if me == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    except rdmacoll.RankFailedError as error:
        assert error.rank == 1, error
failed = time.monotonic()
rdmacoll.shutdown()
assert time.monotonic() - failed < 20
report({"done": True, "error": None}, rank=me)
sys.exit(0)
"""
    with Run(program(IMITATION + KERNEL + body), 3, env=environment(RDMACOLL_CUDA_IPC="always")) as started:
        for entry in wait_done(started, (0, 2), 60):
            assert entry["error"] is None, entry


# A larger batch needs another slab, which a peer opens, or whose handle the driver refuses.
@pytest.mark.parametrize("is_refused", [False, slow(True)])
def test_more_memory_of_gpus_is_shared_while_no_call_waits(is_refused):
    body = """
values = np.arange(17_000_000, dtype=np.float32) % 977
large = cupy.array(values + me)
gpu_arrays.prepare_sums()
if REFUSED:
    library.cuda_sim_fail(b"cuIpcGetMemHandle", 801, 0)
device_array.keep_memory()     # to free it would wait for the kernel
begin_a_kernel()
with other:
    for turn in range(3):
        assert (engine.allreduce(large, rdmacoll.Sum).get() == 2 * values + 1).all()
may_end.set()
gpu_arrays.prepare_sums()
assert (engine.allreduce(large, rdmacoll.Sum).get() == 2 * values + 1).all()
"""
    run_body(f"REFUSED = {is_refused}\n" + KERNEL + body, RDMACOLL_CUDA_IPC="always", CUDA_SIM_DELAY_US="10")


@pytest.mark.parametrize("ipc", ["always", slow("off")])
def test_measurements_begin_once_gpus_are_ready(ipc):
    body = """
from rdmacoll.cli import bench_memory, measure
from rdmacoll.benchmarks.team_rank.kinds import KINDS
timed, staged = measure.timed, []
def timed_and_counted(*arguments):
    before = rdmacoll.metrics()["bytes_staged"]
    found = timed(*arguments)
    staged.append(rdmacoll.metrics()["bytes_staged"] - before)
    return found
measure.timed = timed_and_counted
memory = bench_memory.memory_named("cuda")
cells = measure.interleaved(
    [measure.OurContestant()], KINDS["allreduce"], 300_000, memory, turns=2, burst_s=0.01
)
assert cells[0].wrong == 0
is_staged = os.environ["RDMACOLL_CUDA_IPC"] == "off"
assert [one > 0 for one in staged] == [is_staged] * 3, staged
"""
    run_body(body, RDMACOLL_CUDA_IPC=ipc)
