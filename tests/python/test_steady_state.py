"""Repeated calls: the threads that they wake, and the control messages that they send."""

from __future__ import annotations

import pytest
from rank_program import program
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


def test_a_waiting_caller_drives_the_engine_and_wakes_no_thread_for_it():
    body = (
        CALLS
        + """
from rdmacoll._world import world
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


PREPARED = """
uneven = array[: 2 * me + 1].copy()
CALLS.update({
    "prepared allreduce": engine.prepare_allreduce(array),
    "prepared broadcast": engine.prepare_broadcast(array, 1),
    "prepared allgather": engine.prepare_allgather(uneven),
    "prepared barrier": engine.prepare_barrier(),
    "prepared reducescatter": engine.prepare_reducescatter(array),
    "prepared alltoall": engine.prepare_alltoall(array),
    "prepared uneven alltoall": engine.prepare_alltoall(uneven, [me, me + 1]),
    "prepared reduce": engine.prepare_reduce(array, 1),
    "prepared gather": engine.prepare_gather(uneven, 1),
    "prepared scatter": engine.prepare_scatter(array, 1),
    "allgather of nothing": lambda: engine.allgather(array[:0]),
    "several": lambda: (engine.broadcast(array, 0), engine.barrier(), engine.allgather(uneven)),
})
"""


def test_what_repeats_itself_needs_no_control_messages_whatever_its_kind():
    body = (
        CALLS
        + PREPARED
        + """
del CALLS["join"]  # it ends a plan
said = {}
for name, call in CALLS.items():
    counts = []
    for _ in range(6):
        before = rdmacoll.metrics()["control_messages"]
        for _ in range(40):
            call()
        counts.append(rdmacoll.metrics()["control_messages"] - before)
    said[name] = min(counts)  # a plan may end early where a rank does not run for a second
assert len(said) == 27 and not any(said.values()), said
"""
    )
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_rows_that_change_are_no_error_and_plans_come_back():
    body = """
plans = 0
for step in range(600):
    rows = me + 1 + (step // 60 if me == 1 else 0)
    got = engine.allgather(np.full(rows, float(me + step)))
    assert got.tolist() == [step] * 1 + [step + 1.0] * (2 + step // 60), step
assert rdmacoll.metrics()["plans"] > 2
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


# Rank `late` submits `others` before "x". The other ranks submit "x" first, by the plan.
AHEAD_OF_A_PLAN = """
def one(name, step, **options):
    call = engine.allreduce_async if options.pop("is_async", False) else engine.allreduce
    return call(np.full({elements}, float(me + step)), op=rdmacoll.Sum, name=name, **options)

def expected(step, members):
    return sum(member + step for member in members)

world = list(range(size))
for late in [*world, 0]:
    for step in range(30):
        assert one("x", step)[0] == expected(step, world)
    pending = None if me == late else one("x", 7, is_async=True)
    for number in range({others}):
        assert one(f"h{{number}}", number)[-1] == expected(number, world)
    assert (one("x", 7) if pending is None else pending.wait())[-1] == expected(7, world)
assert rdmacoll.metrics()["plans"] > 2
"""


@pytest.mark.parametrize("elements", [10, 300_000])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_may_wait_for_another_operation_before_the_next_of_the_plan(ranks, elements):
    body = AHEAD_OF_A_PLAN.format(elements=elements, others=9)
    env = {"RDMACOLL_STALL_ERROR_S": "5", "RDMACOLL_TUNE": "off"}  # plans begin after trials
    assert [entry["error"] for entry in run(program(body), ranks, env=env).succeeded()] == [None] * ranks


# Rank `late` is the root, and waits for the last reduce first. The other ranks submit all by the plan.
LATE_ROOT = """
names = [f"x{number}" for number in range(6)]

def start(name, step, root):
    return engine.reduce_async(np.full(10, float(me + step)), root, op=rdmacoll.Sum, name=name)

def ends_well(pending, step, root):
    got = pending.wait()
    return me != root or (got == sum(member + step for member in range(size))).all()

for late in [*range(size), 0]:
    for step in range(30):
        assert all(ends_well(one, step, late) for one in [start(name, step, late) for name in names])
    if me == late:
        assert all(ends_well(start(name, 7, late), 7, late) for name in reversed(names))
    else:
        assert all(ends_well(one, 7, late) for one in [start(name, 7, late) for name in names])
assert rdmacoll.metrics()["plans"] > 2
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_root_of_planned_reduces_may_submit_them_in_another_order(ranks):
    env = {"RDMACOLL_STALL_ERROR_S": "5", "RDMACOLL_TUNE": "off"}
    assert [entry["error"] for entry in run(program(LATE_ROOT), ranks, env=env).succeeded()] == [None] * ranks


# Rank `late` waits for each of the sums, in the reverse order, before it submits the next one. The
# other ranks submit all of them first, by a plan whose decisions are about several sums.
WAITS_WITHIN_A_BATCH = """
names = [f"x{{number}}" for number in range(24)]

def start(name, step):
    return engine.allreduce_async(np.full({elements}, float(me + step)), op=rdmacoll.Sum, name=name)

def ends_well(pending, step):
    return pending.wait()[-1] == sum(member + step for member in range(size))

for late in [*range(size), 0]:
    for step in range(60):
        assert all(ends_well(one, step) for one in [start(name, step) for name in names])
    if me == late:
        assert all(ends_well(start(name, 7), 7) for name in reversed(names))
    else:
        assert all(ends_well(one, 7) for one in [start(name, 7) for name in names])
assert rdmacoll.metrics()["plans"] > 2
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_may_wait_for_one_sum_of_a_planned_batch_before_another(ranks):
    body = WAITS_WITHIN_A_BATCH.format(elements=10)
    env = {"RDMACOLL_STALL_ERROR_S": "5", "RDMACOLL_TUNE": "off"}
    assert [entry["error"] for entry in run(program(body), ranks, env=env).succeeded()] == [None] * ranks


# As above, but rank 1 alone is late, and the sums are in place.
IN_PLACE_IN_ANOTHER_ORDER = """
names = [f"x{number}" for number in range(24)]

def start(name, step):
    array = np.full(10, float(me + step))
    return engine.allreduce_async(array, op=rdmacoll.Sum, name=name, out=array)

def ends_well(pending, step):
    return pending.wait()[-1] == sum(member + step for member in range(size))

for _ in range(5):
    for step in range(60):
        assert all(ends_well(one, step) for one in [start(name, step) for name in names])
    if me == 1:
        assert all(ends_well(start(name, 7), 7) for name in reversed(names))
    else:
        assert all(ends_well(one, 7) for one in [start(name, 7) for name in names])
"""


@pytest.mark.parametrize("cure", [False, True])
def test_sums_in_place_that_wait_for_each_other_end_with_the_cure(cure):
    env = {"RDMACOLL_STALL_ERROR_S": "2", "RDMACOLL_TUNE": "off"}
    env |= {"RDMACOLL_PLAN_REPEATS": "0"} if cure else {}
    result = run(program(IN_PLACE_IN_ANOTHER_ORDER), 2, env=env)
    if cure:
        assert [entry["error"] for entry in result.succeeded()] == [None, None]
        return
    error = result.succeeded()[0]
    assert error["error"] == "StalledError"
    assert "not by rank 1 " in error["text"]
    assert "set RDMACOLL_PLAN_REPEATS=0." in error["text"]
    assert "Every rank must submit the same operations" not in error["text"]
