"""A call returns while a GPU still does the last part of its work: memory stays, and streams wait."""

from __future__ import annotations

import pytest
from places import Place, places, run_body
from rank_program import program
from ranks import run
from waits_of_threads import GPU

# Streams are later than callers, so that most calls return before their end. `Plain` is memory that is freed
# with its object, without a look at the work that may use it. The fake driver ends the process if some does.
PLAIN = """
import os
import gpu_arrays
from rdmacoll._world.world import current
cupy, cuda, stream, count = gpu_arrays.cupy(), gpu_arrays.calls(), None, rdmacoll.size()
is_real = "RDMACOLL_CUDA_LIBRARY" not in os.environ
stream = cuda.stream()

class Plain:
    def __init__(self, value, elements=20_000):
        values = np.full(elements, value, np.float32)
        self.shape, self.size, self.address = values.shape, values.nbytes, cuda.allocate(values.nbytes)
        cuda.write(self.address, values.tobytes())

    def __del__(self):
        cuda.free(self.address)

    @property
    def __cuda_array_interface__(self):
        data = (self.address, False)
        return {"shape": self.shape, "typestr": "<f4", "data": data, "stream": stream.value, "version": 3}

def look(kept):
    cuda.synchronize(stream)
    return np.frombuffer(cuda.read(kept.address, kept.size), np.float32)
"""

CALLS = (
    PLAIN
    + """
early = 0
for turn in range(40):
    right = count * turn + count * (count - 1) / 2
    array, kept = Plain(me + turn), Plain(-1)
    engine.allreduce(array, rdmacoll.Sum, out=array)
    early += len(current().keeper) > 0
    cuda.copy(kept.address, array.address, kept.size, stream)
    cuda.fill(array.address, 0xFF, array.size, stream)
    assert (look(kept) == right).all(), turn
    # Now memory goes at once.
    engine.allreduce(Plain(me + turn), rdmacoll.Sum, out=Plain(-1))
    handle = engine.allreduce_async(Plain(me + turn), rdmacoll.Sum, out=Plain(-1))
    handle.wait()
    del handle
    rows = engine.allgather_async(Plain(me + turn)).wait()
    engine.grouped_allreduce([Plain(me + turn, 100 + n) for n in range(3)], rdmacoll.Sum)
    array = Plain(me + turn)
    run = engine.prepare_allreduce(array, array, rdmacoll.Sum)
    assert run() is array
    del run, array
assert early > 0 or is_real, "each call has waited for the GPU"
engine.barrier()
array = Plain(1)
engine.allreduce(array, rdmacoll.Sum)
del array
while len(current().keeper):  # lets go without a further call
    time.sleep(0.001)
"""
)

# Results of the engine go to another stream, which no call has ordered.
RESULTS = (
    PLAIN
    + """
other = cupy.cuda.ExternalStream(cuda.stream().value)
for turn in range(40):
    rows = engine.allgather(Plain(me + turn))
    shares = engine.reducescatter(Plain(me + turn), rdmacoll.Sum)
    with other:
        found = cupy.from_dlpack(rows).get().reshape(count, -1)
        assert [set(row.tolist()) for row in found] == [{float(rank + turn)} for rank in range(count)], turn
        right = count * turn + count * (count - 1) / 2
        assert (cupy.from_dlpack(shares).get() == right).all(), turn
    # The next call has another stream than the one that makes its input.
    rows = engine.allgather(Plain(me + turn, 4000))
    highest = engine.allreduce(rows, rdmacoll.Max, stream=other.ptr)
    with other:
        found = cupy.from_dlpack(highest).get().reshape(count, -1)
        assert (found == count - 1 + turn).all() or (found == [[r + turn] for r in range(count)]).all(), found
    out = engine.empty(20_000, np.float32, device="cuda:0")
    engine.allreduce(Plain(me + turn), rdmacoll.Sum, out=out, stream=stream.value)
    with other:
        assert (cupy.from_dlpack(out).get() == right).all(), turn
"""
)

# Handles live on, while another stream takes the results. The library of `Plain` adopts results at once, on
# that stream, so the results of these calls are on the host.
HANDLES = (
    PLAIN
    + """
other = cupy.cuda.ExternalStream(cuda.stream().value)
def from_dlpack(memory):
    with other:
        return cupy.from_dlpack(memory).get()

def look_at(out, right):
    with other:
        found = cupy.from_dlpack(out).get()
    assert (found == right).all(), (turn, right, found)

outs = [engine.empty(20_000, np.float32, device="cuda:0") for _ in range(6)]
here = {"stream": stream.value}
for turn in range(20):
    right = count * turn + count * (count - 1) / 2
    own, (first, second, third) = Plain(me + turn), outs[turn % 2 :: 2]
    handles = [
        engine.allreduce_async(own, rdmacoll.Sum, out=first, **here),
        engine.broadcast_async(own, 1, out=second, **here),
        engine.reduce_async(own, 0, rdmacoll.Sum, out=third if me == 0 else None, **here),
    ]
    assert handles[2].wait() is third or me > 0
    if me == 0:
        look_at(third, right)
    assert handles[1].wait() is second
    look_at(second, 1 + turn)
    assert handles[0].wait() is first
    look_at(first, right)
    handle = engine.grouped_allreduce_async([own, own], rdmacoll.Sum, out=outs[:2], **here)
    handle.wait()
    look_at(outs[1], right)
    look_at(outs[0], right)
    handle = engine.allreduce_async(own, rdmacoll.Sum)
    adopted = [
        *engine.grouped_allreduce([own, own], rdmacoll.Sum),
        *engine.grouped_broadcast([own], 1),
        handle.wait(),
        engine.allreduce(own, rdmacoll.Sum),
    ]
    for found, value in zip(adopted, [right, right, 1 + turn, right, right]):
        assert (found == value).all(), (turn, value, found)
"""
)

# Each thread has its own stream 2.
THREADS = (
    PLAIN
    + """
from concurrent.futures import ThreadPoolExecutor
other = ThreadPoolExecutor(1, initializer=lambda: cuda("cuCtxSetCurrent", cuda.context))
other.submit(int).result()

from cuda_calls import Handle
def wait_again():
    assert handle.wait() is target
    cuda.copy(kept.address, target.address, kept.size, Handle(2))
    cuda.synchronize(Handle(2))
    found = np.frombuffer(cuda.read(kept.address, kept.size), np.float32)
    assert (found == right).all(), (turn, found)

def take():
    with cupy.cuda.Stream.ptds:
        found = cupy.from_dlpack(out).get()
    assert (found == right).all(), (turn, found)

out, early = engine.empty(20_000, np.float32, device="cuda:0"), 0
for turn in range(20):
    right = count * turn + count * (count - 1) / 2
    engine.allreduce(Plain(me + turn), rdmacoll.Sum, out=out, stream=2)
    early += len(current().keeper) > 0
    named = out.__cuda_array_interface__["stream"]
    other.submit(take).result()
    assert named in (None, 1), named
    # The memory itself names no stream, so this thread waits for the handle again.
    target, kept = Plain(-1), Plain(-1)
    handle = engine.allreduce_async(Plain(me + turn), rdmacoll.Sum, out=target, stream=2)
    assert handle.wait() is target
    other.submit(wait_again).result()
assert early > 0 or is_real, "each call has waited for the GPU"
"""
)

# A GPU fails after the last call has returned, and before the end of its work. No call follows.
FAILED = (
    PLAIN
    + """
array = Plain(1)
for turn in range(100):
    engine.allreduce(array, rdmacoll.Max, out=array)
    if me == 1 and not current().keeper.is_done():
        cuda.library.cuda_sim_break(0)
        break
else:
    assert me == 0, "each call has waited for the GPU"
"""
)

# The GPU of rank 0 stands still, and does only as much as its last call needs to return. Then rank 1 is
# killed.
KILLED = """
import gpu_arrays
cupy, cuda = gpu_arrays.cupy(), gpu_arrays.calls()
shares_gpus, may_die = "RDMACOLL_CUDA_IPC" in os.environ, __file__ + ".may_die"
mine, out = (cupy.array(np.full(200_000, value, np.float32)) for value in (me + 1, 0))
if shares_gpus:
    gpu_arrays.prepare_sums()
for _ in range(10):
    engine.allreduce(mine, rdmacoll.Sum, out=out)
before = rdmacoll.metrics()["bytes_between_gpus"]
out[...] = cupy.array(np.zeros(200_000, np.float32))
stream = cuda.stream()
other = int(engine.broadcast(np.array([os.getpid()]), 1)[0])
if me == 0:
    cuda.library.cuda_sim_hold(1)
handle = engine.allreduce_async(mine, rdmacoll.Sum, out=out, stream=stream.value)
while me == 1:
    handle.wait()
    if os.path.exists(may_die):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
while True:
    try:
        handle.wait(0.002)
        break
    except TimeoutError:
        cuda.library.cuda_sim_step()
open(may_die, "w").close()
while open(f"/proc/{other}/statm").read().split()[0] != "0":
    time.sleep(0.01)
cuda.library.cuda_sim_hold(0)
cuda.synchronize(stream)
assert (out.get() == 3).all(), ("wrong without a word", out.get())
assert shares_gpus == (rdmacoll.metrics()["bytes_between_gpus"] > before)
"""


# A handler of a signal waits for the operation while its thread takes the result from the engine.
SIGNAL = """
import gpu_arrays, signal
from rdmacoll._world.world import current
cupy, library = gpu_arrays.cupy(), current().library
take, found = library.result_take, []
signal.signal(signal.SIGUSR1, lambda *_: found.append(handle.wait()))
def interrupted(*arguments):
    library.result_take = take
    if not is_behind:
        signal.raise_signal(signal.SIGUSR1)
    taken = take(*arguments)
    if is_behind:
        signal.raise_signal(signal.SIGUSR1)
    return taken
right = np.repeat(np.arange(float(rdmacoll.size()), dtype=np.float32), 1000)
for is_behind in (False, True):
    found.clear()
    handle = engine.allgather_async(cupy.array(np.full(1000, me, np.float32)))
    library.result_take = interrupted
    result = handle.wait()
    assert len(found) == 1 and found[0] is result, (is_behind, found, result)
    others = [engine.allgather(cupy.array(np.full(1000, -1, np.float32))) for _ in range(3)]
    assert (result.get() == right).all(), (is_behind, result.get())
    assert handle.wait() is result
"""


@pytest.mark.parametrize("place", places())
def test_a_handler_of_a_signal_that_waits_gets_the_same_result(place: Place) -> None:
    run_body(place, SIGNAL)


@pytest.mark.parametrize("place", places())
def test_memory_stays_until_the_work_of_its_call_is_done(place: Place) -> None:
    run_body(place, CALLS, CUDA_SIM_DELAY_US="3000")


@pytest.mark.parametrize("place", places())
def test_results_are_complete_for_each_stream_that_takes_them(place: Place) -> None:
    run_body(place, RESULTS, CUDA_SIM_DELAY_US="3000")


@pytest.mark.parametrize("place", places())
def test_results_are_complete_for_other_streams_while_handles_live(place: Place) -> None:
    run_body(place, HANDLES, CUDA_SIM_DELAY_US="3000")


@pytest.mark.parametrize("place", places())
def test_results_of_a_threads_own_stream_are_complete_for_other_threads(place: Place) -> None:
    run_body(place, THREADS, CUDA_SIM_DELAY_US="3000")


@pytest.mark.parametrize("place", places())
def test_two_threads_in_the_first_wait_of_a_call_get_the_same_result(place: Place) -> None:
    run_body(place, GPU, CUDA_SIM_DELAY_US="3000")


# Whichever way the program ends, the failure is named.
@pytest.mark.parametrize("end", ["call", "shutdown"])
@pytest.mark.parametrize("ipc", ["", "always"], ids=["staged", "ipc"])
def test_a_result_is_right_although_a_peer_is_killed_behind_its_call(ipc: str, end: str) -> None:
    environ = Place("imitated", False).environment(**({"RDMACOLL_CUDA_IPC": ipc} if ipc else {}))
    last = "engine.barrier()" if end == "call" else ""
    body = program(KILLED + last, after="rdmacoll.shutdown()")
    ranks = run(body, 2, env=environ, deadline_s=60)
    own = ranks.reports[0]
    assert own.get("done"), ranks.text()
    if end == "call":
        assert (own["error"], own["attributes"]["rank"]) == ("RankFailedError", 1), own
    else:
        assert own["error"] is None, own
    assert "rank 1 (" in ranks.ranks[0].output, ranks.text()


def test_a_failure_behind_the_last_call_is_named_at_the_end() -> None:
    environ = Place("imitated", False).environment(CUDA_SIM_DELAY_US="30000")
    # The process ends at once, since nothing more can be done on its GPU.
    body = program(FAILED, after="rdmacoll.shutdown(); os._exit(0)")
    ranks = run(body, 2, env=environ, deadline_s=100)
    other, own = ranks.succeeded()
    assert own["error"] is None, "its calls had returned"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in ranks.ranks[1].output
    assert (other["error"], other["attributes"]["rank"]) == ("RankFailedError", 1), other
    # The failure comes before or after this rank's goodbye.
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in other["text"] or "it called shutdown()" in other["text"]
