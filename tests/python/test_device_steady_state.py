"""Whole sessions on the fake CUDA driver: its counts of what must not happen, and not in the steady state."""

from __future__ import annotations

import pytest
from test_device_collectives import run_body
from tf_sim_ops import framework

# All kinds of calls on arrays that exist already. Results that the engine makes lie in memory of its own.
CALLS = """
import gpu_arrays
device_array.keep_memory()
count = device_array._gpu(0).cuda.library.cuda_sim_count
ALLOCATING = (
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemFreeHost",
    "cuMemHostRegister_v2", "cuMemHostUnregister", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
    "cuModuleLoadData", "cuStreamCreate", "cuStreamDestroy_v2",
)
def made():
    return {name: count(f"calls {name}".encode()) for name in ALLOCATING}
def array(elements):
    return cupy.array(np.full(elements, me + 1.0, np.float32))
SIZES = (3, 2_000, 150_000)
ins, outs = [array(n) for n in SIZES], [array(n) for n in SIZES]
even = [array(size * n) for n in (5, 30_000)]
shares = [array(n) for n in (5, 30_000)]
many, many_outs = [array(700 + n) for n in range(12)], [array(700 + n) for n in range(12)]
runs = [engine.prepare_allreduce(one, out, rdmacoll.Sum) for one, out in zip(ins, outs)]
runs += [engine.prepare_allgather(one) for one in ins]
total = size * (size + 1) / 2
def turn():
    for one, out in zip(ins, outs):
        engine.allreduce(one, rdmacoll.Sum, out=out)
        engine.broadcast(one, 0, out=out)
        engine.allreduce(one, rdmacoll.Average, out=out)
        engine.allreduce_async(one, rdmacoll.Max, out=out).wait()
        engine.allgather(one)
        engine.allgather_async(one).wait()
        engine.gather(one, 0)
        engine.reduce(one, 1, rdmacoll.Sum, out=out if me == 1 else None)
    for one in even:
        engine.reducescatter(one, rdmacoll.Sum)
        engine.alltoall(one)
        engine.scatter(one, 1)
    engine.grouped_allreduce(many, rdmacoll.Sum, out=many_outs)
    engine.grouped_allreduce_async(many, rdmacoll.Sum, out=many_outs).wait()
    engine.grouped_allgather(many)
    for run in runs:
        run()
    engine.allreduce(ins[-1], rdmacoll.Sum, out=outs[-1])
    assert (outs[-1].get() == total).all() and (many_outs[7].get() == total).all()
"""

# tests/tf_sim stands for TensorFlow.
OF_TENSORFLOW = """
import tf_sim_ops
ops = tf_sim_ops.Ops(FRAMEWORK, cupy)
sums = [ops.node("RdmacollAllreduce", np.float32, tensor_name=f"gradient {n}") for n in range(len(ins))]
weights = ops.node("RdmacollBroadcast", np.float32, tensor_name="weights")
rows = ops.node("RdmacollAllgather", np.float32, tensor_name="rows")
parts = ops.node("RdmacollReducescatter", np.float32, tensor_name="parts")
def turn():
    started = [node.run([one], in_place=True) for node, one in zip(sums, ins)]
    started += [weights.run([outs[2]], in_place=True), rows.run([shares[1]]), parts.run([even[1]])]
    for one in started:
        one.drop()
"""

# Memory grows until it suffices for the most calls that are under way at once, which may be late.
STEADY = """
gpu_arrays.prepare_sums()
quiet = turns = 0
while quiet < 4:                            # in a row, in which nothing is made
    turns += 1
    assert turns <= 40, (before, made())
    before = made()
    turn()
    ours = 0.0 if made() == before else 1.0
    quiet = 0 if engine.allreduce(np.array([ours]), rdmacoll.Max)[0] else quiet + 1
for name in ("device-wide synchronisations", "work on default streams", "order on default streams"):
    assert count(name.encode()) == 0, name
"""


@pytest.mark.parametrize("ipc", ["off", "always"])
def test_the_steady_state_allocates_nothing_and_no_call_uses_the_default_stream_or_waits_for_a_gpu(ipc):
    more = 'assert rdmacoll.metrics()["bytes_between_gpus"] > 0\n' if ipc == "always" else ""
    body = CALLS + STEADY + more
    run_body(body, RDMACOLL_CUDA_IPC=ipc, CUDA_SIM_DELAY_US="10")


def test_the_steady_state_of_tensorflow_s_kernels_does_neither():
    run_body(
        CALLS + OF_TENSORFLOW.replace("FRAMEWORK", repr(str(framework()))) + STEADY,
        CUDA_SIM_DELAY_US="10",
    )
