"""Starts, stops, and the end of a process."""

from __future__ import annotations

import os

import pytest
from cuda_sim_build import fake_driver
from marks import slow
from ranks import ROOT, run, run_python

PROGRAM = ROOT / "tests" / "multiprocess" / "starts_and_stops.py"


def check_constant(found: list[list[dict[str, int]]]) -> None:
    for before, after in found:
        assert after["descriptors"] == before["descriptors"], (before, after)
        assert after["threads"] == before["threads"], (before, after)
        assert after["maps"] <= before["maps"] + 8, (before, after)  # malloc's arenas come and go


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_60_starts_and_stops_leave_nothing_behind(transport):
    outcome = run(PROGRAM, 2, arguments=["60"], env={"RDMACOLL_TRANSPORT": transport}, deadline_s=240)
    check_constant(outcome.succeeded())


def test_starts_and_stops_under_mpirun_leave_nothing_behind():
    check_constant(run(PROGRAM, 2, launcher="mpirun", arguments=["50"], deadline_s=240).succeeded())


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_1000_starts_and_stops_leave_nothing_behind(transport):
    outcome = run(PROGRAM, 2, arguments=["1000"], env={"RDMACOLL_TRANSPORT": transport}, deadline_s=1200)
    check_constant(outcome.succeeded())


@pytest.mark.parametrize(
    ("turns", "ipc", "deadline_s"), [(30, "off", 120), slow(1000, "off", 1800), slow(1000, "always", 5400)]
)
def test_starts_and_stops_with_gpu_memory_leave_nothing_behind(turns, ipc, deadline_s):
    seed = str(int.from_bytes(os.urandom(3), "big"))
    print("CUDA_SIM_SEED", seed)
    env = {
        "RDMACOLL_CUDA_LIBRARY": str(fake_driver()),
        "CUDA_SIM_SEED": seed,
        "CUDA_SIM_DELAY_US": "50",
        "CUDA_SIM_MACHINE": "h100x2",
        "RDMACOLL_CUDA_IPC": ipc,
    }
    program = PROGRAM.with_name("device_starts.py")
    found = run(program, 2, arguments=[str(turns)], env=env, deadline_s=deadline_s).succeeded()
    check_constant(found)
    for before, after in found:
        of_driver = {name for name in before if " " in name}
        assert len(of_driver) >= 8
        assert {name: after[name] for name in of_driver} == {name: before[name] for name in of_driver}


@pytest.mark.parametrize(
    ("launcher", "level", "lines"), [("tcp", "warning", 1), ("tcp", "error", 0), ("mpirun", "warning", 1)]
)
def test_rank_0_says_once_who_started_it_and_nobody_says_more(launcher, level, lines):
    program = "import rdmacoll\nrdmacoll.init()\n"
    outcome = run(program, 2, launcher=launcher, env={"RDMACOLL_LOG": level})
    outcome.succeeded()
    outputs = {rank.output for rank in outcome.ranks}  # under mpirun it is one for all
    logged = [line for output in outputs for line in output.splitlines() if "[rdmacoll" in line]
    assert len(logged) == lines, outcome.text()
    for line in logged:
        assert line.startswith("[rdmacoll rank 0] started by "), line
        assert ": rank 0 of 2" in line, line


def test_a_program_may_end_without_shutdown():
    program = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
kept = rdmacoll.engine.empty(1000)
run = rdmacoll.engine.prepare_allreduce(kept, kept)
run()
report("ran")
"""
    for launcher in ("tcp", "mpirun"):
        outcome = run(program, 3, launcher=launcher, deadline_s=60)
        assert outcome.succeeded() == ["ran"] * 3
        assert "error" not in outcome.ranks[0].output, outcome.text()


def test_mpi_is_finalised_after_a_clean_end():
    program = """
import atexit
import numpy as np
from ranks import report
@atexit.register                       # runs after rdmacoll's own: registered before it
def look():
    from mpi4py import MPI
    report(MPI.Is_finalized(), rank=number)
import rdmacoll
rdmacoll.init()
number = rdmacoll.rank()
rdmacoll.shutdown()
rdmacoll.init()
"""
    assert run(program, 2, launcher="mpirun").succeeded() == [True, True]


def test_a_rank_that_others_keep_waiting_in_mpi_init_says_so():
    program = """
import os, time
from rdmacoll._start import start_deadline
start_deadline.REPORT_EVERY_S = 0.3
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    time.sleep(2)
import rdmacoll
from ranks import report
rdmacoll.init()
report("ran")
"""
    outcome = run(program, 2, launcher="mpirun")
    assert outcome.succeeded() == ["ran", "ran"]
    assert "rank 0] warning: waiting in MPI_Init for the other ranks" in outcome.ranks[0].output


def test_an_mpi_that_the_user_started_stays_the_users():
    program = """
from mpi4py import MPI
import rdmacoll
from ranks import report
rdmacoll.init()
rdmacoll.shutdown()
report(MPI.COMM_WORLD.allreduce(1), rank=MPI.COMM_WORLD.Get_rank())
"""
    assert run(program, 2, launcher="mpirun").succeeded() == [2, 2]


def test_threads_may_call_at_once():
    program = """
import threading
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
wrong = []
def work(number):
    for turn in range(200):
        got = rdmacoll.engine.allreduce(np.full(number * 100 + 1, float(turn)), rdmacoll.Sum,
                                        name=f"{number}/{turn}")
        if not (got == turn * rdmacoll.size()).all():
            wrong.append((number, turn))
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
report(wrong)
"""
    assert run(program, 3).succeeded() == [[], [], []]


def test_threads_that_take_turns_without_names_are_warned_of_once():
    program = """
import threading
import numpy as np, rdmacoll
rdmacoll.init()
mine, other = threading.Semaphore(1), threading.Semaphore(0)
def work(mine, other):
    for _ in range(60):
        mine.acquire()
        rdmacoll.engine.allreduce(np.ones(3))
        other.release()
threads = [threading.Thread(target=work, args=turns) for turns in ((mine, other), (other, mine))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    outcome = run(program, 2)
    outcome.succeeded()
    for rank in outcome.ranks:
        assert rank.output.count("several threads take turns") == 1, outcome.text()


def test_shutdown_ends_what_another_thread_waits_for():
    program = """
import threading, time
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
me, ended = rdmacoll.rank(), []
def work():
    try:
        rdmacoll.engine.allreduce(np.ones(3), name=f"only on {me}")
    except rdmacoll.RdmacollError as error:
        ended.append(type(error).__name__)
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.3)
begin = time.monotonic()
rdmacoll.shutdown()
thread.join(30)
report([ended, time.monotonic() - begin], rank=me)
"""
    for ended, seconds in run(program, 2).succeeded():
        assert ended in (["ShutdownError"], ["RankFailedError"])
        assert seconds < 25


def test_shutdown_ends_more_large_sums_than_run_at_once():
    program = """
import numpy as np, rdmacoll
from ranks import report
values, ends = np.ones(1 << 20, np.float32), set()
for turn in range(20):
    rdmacoll.init()
    handles = [rdmacoll.engine.allreduce_async(values, op=rdmacoll.Sum) for _ in range(40)]
    rdmacoll.shutdown()
    for handle in handles:
        try:
            handle.wait()
        except rdmacoll.RdmacollError as error:
            ends.add(type(error).__name__)
report(sorted(ends), rank=0)
"""
    assert run(program, 1).succeeded() == [["ShutdownError"]]


def test_the_library_that_is_missing_is_named(tmp_path):
    program = (
        "import rdmacoll._abi.library as library, pathlib\n"
        f"library.library_path = lambda: pathlib.Path({str(tmp_path / 'none.so')!r})\n"
        "import rdmacoll\n"
        "try:\n    rdmacoll.init()\nexcept rdmacoll.ConfigError as error:\n    print(error)\n"
    )
    result = run_python("-c", program, timeout_s=60)
    assert "none.so is missing" in result.stdout, result.stderr
    assert "make setup" in result.stdout
