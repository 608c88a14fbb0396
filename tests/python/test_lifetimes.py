"""The lifetime of memory: after errors, after Ctrl-C and after the end of a world."""

from __future__ import annotations

import pytest
from rank_program import program, turns_of_a_thread_during
from ranks import run
from waits_of_threads import HOST


def test_an_allgather_that_was_done_before_shutdown_can_be_waited_for_after_it():
    body = """
import gc, time
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
handle = rdmacoll.engine.allgather_async(np.arange(2000.0))
while not handle.done():
    time.sleep(0.01)
rdmacoll.shutdown()
first, again = handle.wait(), handle.wait()
assert again is first and handle.done()
assert (first == np.arange(2000.0)).all()
del handle, first, again    # the memory goes once, with the last array
gc.collect()
rdmacoll.init()
report(rdmacoll.engine.allgather(np.arange(3)).tolist())
"""
    assert run(body, 1).succeeded() == [[0, 1, 2]]


def test_a_prepared_run_that_ctrl_c_ended_keeps_its_memory_and_does_not_run_again():
    body = """
if me == 0:
    count = 4_000_000
    mine = np.ones(count, np.float32)
    step = engine.prepare_allreduce(mine, mine, rdmacoll.Sum, name="step")
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = refused = False
    try:
        step()
    except KeyboardInterrupt:
        interrupted = True
    try:
        step()
    except rdmacoll.RdmacollError as error:
        refused = "interrupted" in str(error)
    assert interrupted and refused
    del step, mine    # the engine has the address still
    others = [np.full(count, 7, np.float32) for _ in range(4)]
    engine.barrier(name="go")
    engine.barrier(name="end")
    assert all((other == 7).all() for other in others), "reused memory was written to"
else:
    engine.barrier(name="go")
    engine.allreduce(np.ones(4_000_000, np.float32), rdmacoll.Sum, name="step")
    engine.barrier(name="end")
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_ctrl_c_in_the_first_slice_of_a_small_prepared_run_is_noticed():
    """Python runs signal handlers when the library calls back, before any further line of this program."""
    body = """
import gc
if me == 0:
    mine = np.ones(4000, np.float32)
    step = engine.prepare_allreduce(mine, mine, rdmacoll.Sum, name="step")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    said = ""
    try:
        step()
    except KeyboardInterrupt:
        said = "interrupted"
    try:
        step()
    except rdmacoll.RdmacollError as error:
        said += str(error)
    assert said.startswith("interruptedthis prepared call was interrupted"), said
    once = engine.prepare_allreduce(np.ones(4000, np.float32), op=rdmacoll.Sum, name="once")
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        once()
    except KeyboardInterrupt:
        pass
    del step, mine, once    # the engine has their addresses still
    gc.collect()
    others = [np.full(4000, 7, np.float32) for _ in range(40)]
    engine.barrier(name="go")
    engine.barrier(name="end")
    assert all((other == 7).all() for other in others), "reused memory was written to"
else:
    engine.barrier(name="go")
    engine.allreduce(np.ones(4000, np.float32), rdmacoll.Sum, name="step")
    engine.allreduce(np.ones(4000, np.float32), rdmacoll.Sum, name="once")
    engine.barrier(name="end")
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_a_prepared_result_that_ctrl_c_kept_from_being_told_is_there_the_next_time():
    body = """
gather = engine.prepare_allgather(np.arange(4.0) + me, name="gather")
if me == 0:
    fetch = gather._results
    def interrupted(kept):
        raise KeyboardInterrupt
    gather._results = interrupted
    try:
        gather()
    except KeyboardInterrupt:
        gather._results = fetch
else:
    gather()
assert gather().tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
assert gather() is gather.out
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_a_prepared_call_that_is_freed_already_refuses():
    body = """
step = engine.prepare_allreduce(np.ones(3), name="step")
call = step.__call__
assert (call() == 1).all()
step.__del__()
kept = [bytes(range(number)) for number in range(200)]
try:
    call()
except rdmacoll.RdmacollError as error:
    assert "has been freed" in str(error), error
else:
    raise AssertionError("it ran")
"""
    outcome = run(program(body), 1, env={"PYTHONMALLOC": "debug"})
    assert [entry["error"] for entry in outcome.succeeded()] == [None]


def test_a_prepared_run_that_ends_between_two_slices_of_its_wait_is_not_run_again():
    body = """
step = engine.prepare_allreduce(np.full(1000, me + 1.0), op=rdmacoll.Sum)
run, timeouts = step._run, 0
def slow(*arguments):
    global timeouts
    code = run(*arguments)
    if code == 1:    # not done in its slice: it will be when the next one begins
        timeouts += 1
        time.sleep(0.6)
    return code
step._run = slow
for turn in range(3):
    if me == 1:
        time.sleep(0.3)
    assert (step._end(1) == 3).all()    # as the extension begins it, after a first slice
    engine.barrier()    # a run too many would meet it
assert me == 1 or timeouts == 3, timeouts
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_an_error_that_was_caught_keeps_no_engine():
    body = """
import gc, os
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
gc.disable()    # what only the garbage collector finds counts as kept
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def refused(call):
    try:
        call()
    except rdmacoll.MismatchError:
        return 1
    return 0
def once():
    rdmacoll.init()
    me = rdmacoll.rank()
    odd = np.ones(4 + me)
    handle = engine.allreduce_async(odd, name="async")
    grouped = engine.grouped_allreduce_async([odd, odd], name="grouped")
    step = engine.prepare_allreduce(odd, name="prepared")
    calls = (handle.wait, handle.wait, grouped.wait, step, lambda: engine.allreduce(odd))
    assert sum(map(refused, calls)) == len(calls)
    engine.barrier()
    rdmacoll.shutdown()
    return me
me = once()
before = descriptors()
for _ in range(4):
    once()
report([before, descriptors()], rank=me)
"""
    for before, after in run(body, 2).succeeded():
        assert before == after


def test_an_engine_outlives_its_close_though_its_last_holder_lets_go_meanwhile():
    body = """
import rdmacoll
from rdmacoll._world import world
from ranks import report
rdmacoll.init()
engine, order = world.current(), []
library = engine.library
class Watched:
    def __getattr__(self, name):
        return getattr(library, name)
    def engine_close(self, address, cause):
        engine.release(1)    # as another thread does, which the close has woken
        library.engine_close(address, cause)
        order.append("closed")
    def engine_free(self, address):
        order.append("freed")
        library.engine_free(address)
engine.library = Watched()
engine.hold(1)
rdmacoll.shutdown()
report(order, rank=0)
"""
    assert run(body, 1).succeeded() == [["closed", "freed"]]


def test_two_threads_in_the_first_wait_of_a_call_get_the_same_result():
    assert [entry["error"] for entry in run(program(HOST), 2).succeeded()] == [None, None]


@pytest.mark.parametrize("count", [4, 100_000])
def test_a_prepared_call_refuses_a_second_thread_and_goes_on(count):
    body = f"""
import threading
mine = np.ones({count}, np.float32)
step = engine.prepare_allreduce(mine, np.empty_like(mine), rdmacoll.Sum, name="step")
assert (step() == size).all()
if me == 0:
    found = []
    other = threading.Thread(target=lambda: found.append(step()))
    other.start()
    refused = ""
    while not step._runner:  # the thread has not begun
        time.sleep(0.01)
    try:
        step()
    except rdmacoll.RdmacollError as error:
        refused = str(error)
    assert refused.startswith("another thread runs this prepared call"), refused
    engine.barrier(name="refused")
    other.join()
    assert (found[0] == size).all()
    mine[:] = 2
else:
    engine.barrier(name="refused")
    step()
assert (step() == size + 1).all()
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


@pytest.mark.parametrize("spin_us", ["100", "0"])
def test_threads_go_on_while_a_small_prepared_run_waits_for_a_late_rank(spin_us):
    body = f"""
mine = np.ones(2, np.float32)
step = engine.prepare_allreduce(mine, np.empty_like(mine), rdmacoll.Sum)
for _ in range(100):
    step()
engine.barrier()
{turns_of_a_thread_during("step()")}
"""
    assert [
        entry["error"] for entry in run(program(body), 2, env={"RDMACOLL_SPIN_US": spin_us}).succeeded()
    ] == [None, None]
