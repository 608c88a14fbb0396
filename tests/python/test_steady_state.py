"""What a call costs once its kind has come again and again: whom it wakes, what it says."""

from __future__ import annotations

from frame import program
from ranks import run

CALLS = """
from rdmacoll import engine
array = np.full(6, 1.0)
CALLS = {
    "allreduce": lambda: engine.allreduce(array),
    "grouped_allreduce": lambda: engine.grouped_allreduce([array, array]),
    "broadcast": lambda: engine.broadcast(array, 1),
    "grouped_broadcast": lambda: engine.grouped_broadcast([array, array], 1),
    "allgather": lambda: engine.allgather(array[: me + 1]),
    "grouped_allgather": lambda: engine.grouped_allgather([array, array]),
    "barrier": lambda: engine.barrier(),
    "reducescatter": lambda: engine.reducescatter(array),
    "grouped_reducescatter": lambda: engine.grouped_reducescatter([array, array]),
    "alltoall": lambda: engine.alltoall(array),
    "uneven alltoall": lambda: engine.alltoall(array[: 2 * me + 1], [me, me + 1]),
    "reduce": lambda: engine.reduce(array, 1),
    "gather": lambda: engine.gather(array, 1),
    "scatter": lambda: engine.scatter(array, 1),
    "uneven scatter": lambda: engine.scatter(array, 1, [1, 5]),
    "join": lambda: rdmacoll.join(),
}
"""


def test_whoever_waits_drives_the_engine_and_calls_no_thread_for_it():
    body = (
        CALLS
        + """
from rdmacoll.engine import world
def submit(*_):
    raise AssertionError("this wakes the engine's thread")
world.current().library.submit = submit
for name, call in CALLS.items():
    for _ in range(3):
        call()
try:
    engine.barrier_async()
    raise ValueError("the check finds nothing")
except AssertionError:
    pass
"""
    )
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]
