"""Every other rank names a lost rank in time.

Deadlines are five times the promised times.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from marks import slow
from rank_program import program, wait_done
from ranks import LAUNCHERS, Run, run


def check_that_a_killed_rank_is_named(started):
    """Kills rank 1 of 3. The others have to name it within five times the promised time."""
    started.wait_for_reports(range(3))
    time.sleep(0.5)
    killed = time.time()
    os.kill(started.pid(1), signal.SIGKILL)
    for entry in wait_done(started, (0, 2), 20):
        assert entry["error"] == "RankFailedError", entry
        assert entry["attributes"]["rank"] == 1
        assert entry["at"] - killed < 5, entry


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (4, "tcp"), slow(2, "tcp"), slow(4, "shm")])
def test_a_killed_rank_is_named_with_host_and_cause(size, transport):
    body = """
big = np.ones(2_000_000, np.float32)
while True:
    engine.allreduce(big, rdmacoll.Sum)
"""
    victim = size - 1
    with Run(program(body, after="sys.exit(3)"), size, env={"RDMACOLL_TRANSPORT": transport}) as started:
        started.wait_for_reports(range(size))
        time.sleep(0.5)
        killed = time.time()
        os.kill(started.pid(victim), signal.SIGKILL)
        found = wait_done(started, range(victim), 20)
        outcome = started.finish(20)
    for rank, entry in enumerate(found):
        assert entry["error"] == "RankFailedError", entry
        assert entry["attributes"]["rank"] == victim, outcome.text()
        assert entry["attributes"]["host"] == os.uname().nodename
        assert entry["attributes"]["cause"]
        assert f"rank {victim}" in entry["text"]
        assert entry["at"] - killed < 5, entry
        assert outcome.ranks[rank].code == 3
        assert f"rank {victim}" in outcome.ranks[rank].output, (
            "printed at detection, on a rank that waits too"
        )


@pytest.mark.parametrize(
    ("call", "transport"),
    [
        ("reducescatter(big, rdmacoll.Sum)", "tcp"),
        ("alltoall(big)", "shm"),
        ("alltoall(big)", "tcp"),
        ("reduce(big, 0, rdmacoll.Sum)", "shm"),
    ],
)
def test_a_killed_rank_is_named_where_ranks_have_parts_of_their_own(call, transport):
    body = f"""
big = np.ones(1_200_000, np.float32)
while True:
    engine.{call}
"""
    with Run(program(body, after="sys.exit(3)"), 3, env={"RDMACOLL_TRANSPORT": transport}) as started:
        check_that_a_killed_rank_is_named(started)


def test_a_killed_rank_is_named_though_a_forked_child_keeps_its_sockets():
    body = """
if me == 1 and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
while True:
    engine.allreduce(np.ones(1000), rdmacoll.Sum)
"""
    with Run(program(body), 3) as started:
        check_that_a_killed_rank_is_named(started)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_calls_just_after_a_death_does_not_blame_itself(transport):
    body = """
pids = engine.allgather(np.array([os.getpid()]))
one, result = np.ones(16, np.float32), np.empty(16, np.float32)
for _ in range(3000):
    engine.allreduce(one, rdmacoll.Sum, out=result)
assert rdmacoll.metrics()["plans"] == 1
if me == 0:  # the neighbour of both in the control tree
    os.kill(os.getpid(), signal.SIGSTOP)
else:
    time.sleep(1)
if me == 1:
    handle = os.pidfd_open(int(pids[2]))
    os.kill(int(pids[2]), signal.SIGKILL)
    select.select([handle], [], [])
    time.sleep(0.03)
engine.allreduce(one, rdmacoll.Sum, out=result)
"""
    with Run(program(f"import select\n{body}"), 3, env={"RDMACOLL_TRANSPORT": transport}) as started:
        started.wait_for_reports(range(3))
        found = wait_done(started, (1,), 30)
        os.kill(started.pid(0), signal.SIGCONT)
        found += wait_done(started, (0,), 30)
    for entry in found:
        assert entry["error"] == "RankFailedError", entry
        assert entry["attributes"]["rank"] == 2, entry
        assert "left before" not in entry["attributes"]["cause"], entry


def test_an_exception_in_user_code_is_named_by_its_class_on_the_others():
    body = """
engine.allreduce(np.ones(3))
if me == 1:
    raise KeyError("no such layer")
while True:
    engine.allreduce(np.ones(3))
"""
    with Run(program(body, after="sys.exit(3)"), 3) as started:
        outcome = started.finish(30)
    assert outcome.ranks[1].code == 1
    for rank in (0, 2):
        entry = outcome.ranks[rank].report
        assert entry["error"] == "RankFailedError", entry
        assert entry["attributes"]["rank"] == 1
        assert "KeyError" in entry["text"]
        assert "no such layer" in entry["text"]
        assert entry["seconds"] < 5


@pytest.mark.parametrize("leaving", ["sys.exit(0)", "rdmacoll.shutdown()", "pass"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_whose_data_ends_early_is_named(launcher, leaving):
    body = f"""
for step in range(3 if me == 0 else 100):
    engine.allreduce(np.ones(3))
{leaving if leaving == "pass" else f"if me == 0: {leaving}"}
"""
    outcome = run(program(body), 2, launcher=launcher, deadline_s=60)
    entry = outcome.ranks[1].report
    assert entry.get("error") == "RankFailedError", outcome.text()
    assert entry["attributes"]["rank"] == 0
    assert entry["seconds"] < 5


@pytest.mark.parametrize(
    ("leaving", "cause"),
    [
        ("sys.exit(3)", "SystemExit: 3"),
        ("sys.exit()", "SystemExit: 0"),
        ("sys.exit('no such disk')", "SystemExit: no such disk"),
        ("raise SystemExit(3)", "SystemExit"),  # Python reports no code
        ("rdmacoll.shutdown()", "shutdown()"),
    ],
)
def test_how_a_rank_left_is_told_to_those_who_still_submit(leaving, cause):
    body = f"""
engine.allreduce(np.ones(3))
if me == 0: {leaving}
else: engine.allreduce(np.ones(3))
"""
    entry = run(program(body), 2).ranks[1].report
    assert entry["error"] == "RankFailedError", entry
    assert cause in entry["text"]
    assert cause in entry["attributes"]["cause"]


def test_an_exception_is_told_though_another_thread_still_waits():
    body = """
import threading
def work():
    try:
        engine.barrier(name="only here")
    except rdmacoll.ShutdownError:
        report({"ended": True})
if me == 1:
    threading.Thread(target=work).start()
    time.sleep(0.3)
    raise ValueError("in the main thread")
engine.barrier(name="the others")
"""
    outcome = run(program(body), 2, deadline_s=60)
    entry = outcome.ranks[0].report
    assert entry["error"] == "RankFailedError", outcome.text()
    assert "ValueError: in the main thread" in entry["text"]
    assert entry["seconds"] < 8
    assert outcome.ranks[1].code == 1, outcome.text()


def test_threads_go_on_after_the_main_thread_has_ended_well():
    body = """
import threading
def work():
    time.sleep(0.3)
    report(engine.allreduce(np.ones(1), rdmacoll.Sum).tolist())
threading.Thread(target=work).start()
sys.exit(0)
"""
    assert run(program(body), 2).succeeded() == [[2.0], [2.0]]


@pytest.mark.parametrize(
    "blocked", ["engine.allreduce(np.ones(9))", "engine.prepare_allreduce(np.ones(9))()"]
)
def test_ctrl_c_ends_a_blocked_wait(blocked):
    body = f"""
if me == 0:
    time.sleep(60)
try:
    {blocked}
except KeyboardInterrupt:
    report({{"interrupted": time.time(), "pid": os.getpid()}})
    raise
"""
    with Run(program(body), 2) as started:
        started.wait_for_reports((0, 1))
        time.sleep(0.7)
        sent = time.time()
        os.kill(started.pid(1), signal.SIGINT)
        started.processes[1].wait(10)
        assert started.reported(1)["interrupted"] - sent < 5
        os.kill(started.pid(0), signal.SIGINT)
        outcome = started.finish(20)
    assert "KeyboardInterrupt" in outcome.ranks[1].output


def test_sigterm_ends_a_blocked_wait_through_a_handler():
    body = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
if me == 1:
    engine.allreduce(np.ones(9))
time.sleep(60)
"""
    with Run(program(body), 2) as started:
        started.wait_for_reports((0, 1))
        time.sleep(0.7)
        sent = time.monotonic()
        os.kill(started.pid(1), signal.SIGTERM)
        assert started.processes[1].wait(10) == 7
        assert time.monotonic() - sent < 5


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_rank_is_named_and_learns_it_when_it_goes_on(transport):
    body = """
while True:
    engine.allreduce(np.ones(1000), rdmacoll.Sum)
"""
    env = {"RDMACOLL_PEER_TIMEOUT_S": "1", "RDMACOLL_TRANSPORT": transport}
    with Run(program(body), 3, env=env) as started:
        started.wait_for_reports(range(3))
        time.sleep(0.5)
        stopped = time.time()
        os.kill(started.pid(1), signal.SIGSTOP)
        try:
            for entry in wait_done(started, (0, 2), 30):
                assert entry["error"] == "RankFailedError", entry
                assert entry["attributes"]["rank"] == 1
                assert entry["at"] - stopped < 10, entry
        finally:
            os.kill(started.pid(1), signal.SIGCONT)
        (entry,) = wait_done(started, (1,), 30)
        assert entry["error"] == "RankFailedError", entry
        assert entry["attributes"]["rank"] == 1, entry
        assert entry["attributes"]["cause"].startswith("did not run for about"), entry


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_a_rank_has_sent_arrives_though_it_leaves_at_once(transport):
    body = """
if me == 0:
    time.sleep(0.5)
    engine.broadcast(np.full(10, 7.0), 0, name="last")
else:
    pending = engine.broadcast_async(np.zeros(10), 0, name="last")
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGSTOP)
    assert (pending.wait(10) == 7).all()
"""
    with Run(program(body), 2, env={"RDMACOLL_TRANSPORT": transport}) as started:
        started.wait_for_reports(range(2))
        time.sleep(1.2)
        os.kill(started.pid(1), signal.SIGCONT)
        for entry in wait_done(started, range(2), 20):
            assert entry["error"] is None, entry


def test_a_tensor_that_some_never_submit_is_a_warning_then_a_stalled_error():
    body = """
if me != 2:
    engine.allreduce(np.ones(3), name="conv1/kernel")
else:
    time.sleep(4)
"""
    environ = {"RDMACOLL_STALL_WARNING_S": "0.5", "RDMACOLL_STALL_ERROR_S": "2"}
    outcome = run(program(body), 3, env=environ)
    for rank in (0, 1):
        entry = outcome.ranks[rank].report
        assert entry["error"] == "StalledError", outcome.text()
        assert entry["attributes"] == {"tensor": "conv1/kernel", "missing_ranks": [2]}
        assert entry["seconds"] < 10
    text = "".join(rank.output for rank in outcome.ranks)
    assert "warning" in text
    assert "conv1/kernel" in text


def test_a_forked_child_is_refused_with_a_sentence():
    body = """
engine.allreduce(np.ones(3))
pending = engine.allreduce_async(np.ones(3), name="inherited")
kept = engine.empty(100)
prepared = engine.prepare_allreduce(kept, kept)
prepared()
def reduces():
    engine.allreduce(kept)
child = os.fork()
if child == 0:
    code = 0
    for call in (
        engine.barrier, rdmacoll.rank, rdmacoll.init, pending.wait, rdmacoll.metrics, prepared, reduces
    ):
        try:
            call()
        except rdmacoll.NotInitializedError as error:
            code += "forked" in str(error)
    rdmacoll.shutdown()
    del pending, kept, prepared
    sys.exit(code)     # with Python's exit handlers, which must leave the parent's engine alone
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
pending.wait()
kept[:] = 1
engine.allreduce(kept)
"""
    assert [entry["error"] for entry in run(program(body), 2).succeeded()] == [None, None]


def test_a_child_forked_after_shutdown_ends_and_is_refused():
    body = """
import os, sys, time
import rdmacoll
from ranks import report
rdmacoll.init()
me = rdmacoll.rank()
rdmacoll.shutdown()
child = os.fork()
if child == 0:
    try:
        rdmacoll.init()
    except rdmacoll.NotInitializedError:
        sys.exit(5)    # with Python's exit handlers, which must leave the parent's MPI alone
end = time.monotonic() + 20
while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
    time.sleep(0.02)
if not ended[0]:
    os.kill(child, 9)
report(os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs", rank=me)
"""
    assert run(body, 2, launcher="mpirun").succeeded() == [5, 5]


def unused_shared_memory() -> set[str]:
    """Returns the entries of /dev/shm that no process has mapped. Other jobs map or remove their entries."""
    used = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended
            used += maps.read_text()
    return {str(entry) for entry in Path("/dev/shm").iterdir() if f" {entry}\n" not in used}


def test_no_core_no_process_no_shared_memory_is_left():
    body = """
while True:
    engine.allreduce(np.ones(100_000), rdmacoll.Sum)
"""
    before = unused_shared_memory()
    with Run(program(body), 3) as started:
        started.wait_for_reports(range(3))
        time.sleep(0.3)
        os.kill(started.pid(2), signal.SIGKILL)
        wait_done(started, (0, 1), 20)
        outcome = started.finish(20)
    assert unused_shared_memory() <= before
    assert [rank.code for rank in outcome.ranks] == [0, 0, -signal.SIGKILL]
