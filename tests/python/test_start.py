"""Ctrl-C and the death of a rank end a start."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import time

import pytest
from ranks import ROOT, Run, launcher_version, run

from rdmacoll._start.liveness_check import LivenessCheck
from rdmacoll.errors import RankFailedError

PROGRAM = ROOT / "tests" / "multiprocess" / "start_steps.py"
DEADLINE_S = 5.0  # five times what is promised


@pytest.mark.parametrize(
    ("ended", "step", "how"),
    [
        (2, "engine_open", "killed"),
        (0, "engine_node", "killed"),
        (1, "engine_node", "killed"),
        (0, "engine_start", "killed"),
        (2, "engine_start", "killed"),
        (0, "engine_start", "killed after it"),
        (1, "engine_start", "killed after it"),
    ],
)
def test_a_rank_that_is_killed_during_the_start_is_named_on_the_others(ended, step, how):
    outcome = run(PROGRAM, 3, arguments=[str(ended), step, how], deadline_s=60)
    killed_at = outcome.ranks[ended].report["at"]
    for rank, survivor in enumerate(outcome.ranks):
        if rank == ended:
            assert survivor.code == -signal.SIGKILL
            continue
        reported = survivor.report
        assert reported["class"] == "RankFailedError", outcome.text()
        assert reported["rank"] == ended, outcome.text()
        assert reported["host"] in (socket.gethostname(), "127.0.0.1"), outcome.text()
        assert f"rank {ended} (" in reported["text"]
        assert reported["at"] - killed_at < DEADLINE_S


def test_a_rank_that_is_killed_between_two_steps_over_mpi_is_named_where_survivors_may_speak():
    env = {"OMPI_MCA_orte_enable_recovery": "1"}  # without it, the launcher ends them first
    with Run(PROGRAM, 3, launcher="mpirun", arguments=["1", "engine_node", "killed"], env=env) as started:
        outcome = started.finish(60)
    ended, *survivors = (outcome.reports[rank] for rank in (1, 0, 2))
    spoke = [reported for reported in survivors if "class" in reported]
    assert len(spoke) == 2 or "Open MPI" not in launcher_version(), outcome.text()
    for reported in spoke:
        assert (reported["class"], reported["rank"]) == ("RankFailedError", 1), outcome.text()
        assert (reported["host"], reported["cause"]) == (socket.gethostname(), "its process has ended")
        assert reported["at"] - ended["at"] < 2 * DEADLINE_S


def test_whose_socket_is_gone_is_gone():
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    cards = []
    for rank, listener in enumerate(listeners):
        name = f"rdmacoll-test-{os.getpid()}-{rank}"
        listener.bind("\0" + name)
        node = "elsewhere" if rank == 2 else "here"
        cards.append(json.dumps({"unix": name, "node": node, "host": f"h{rank}", "pid": 7}))
    liveness = LivenessCheck(cards, 0)
    liveness.check()
    listeners[2].close()  # a rank on another node is not visible here
    liveness.check()
    listeners[1].close()
    with pytest.raises(RankFailedError, match=r"rank 1 \(h1, pid 7\) left during the start") as caught:
        liveness.check()
    assert (caught.value.rank, caught.value.host) == (1, "h1")
    listeners[0].close()
    liveness.check()  # without the own socket, the system's list says nothing


def interrupt(started, rank):
    """Sends Ctrl-C to a rank that waits in its start, and returns the time of sending."""
    time.sleep(0.4)
    assert started.reported(rank) == {"pid": started.pid(rank)}
    sent = time.time()
    os.kill(started.pid(rank), signal.SIGINT)
    return sent


@pytest.mark.parametrize(("interrupted", "late", "other"), [(0, 1, 2), (1, 2, 0)])
@pytest.mark.parametrize("step", ["init", "engine_node", "engine_start"])
def test_ctrl_c_ends_a_start_that_waits_for_a_late_rank(interrupted, late, other, step):
    with Run(PROGRAM, 3, arguments=[str(late), step, "stays"]) as started:
        started.wait_for_reports((0, 1, 2))
        sent = interrupt(started, interrupted)
        assert started.processes[interrupted].wait(20) in (130, -signal.SIGINT)
        assert started.processes[other].wait(20) == 1
        ended, reported = started.reported(interrupted), started.reported(other)
        text = started.so_far().text()
    assert ended["class"] == "KeyboardInterrupt", text
    assert ended["at"] - sent < DEADLINE_S
    assert (reported["class"], reported["rank"]) == ("RankFailedError", interrupted), text
    assert "KeyboardInterrupt" in reported["cause"], text
    assert reported["at"] - sent < DEADLINE_S


def test_ctrl_c_ends_a_search_for_rank_0():
    with Run(PROGRAM, 2, arguments=["0", "init", "stays"]) as started:
        started.wait_for_reports((0, 1))
        sent = interrupt(started, 1)
        assert started.processes[1].wait(20) in (130, -signal.SIGINT)
        ended = started.reported(1)
    assert ended["class"] == "KeyboardInterrupt"
    assert ended["at"] - sent < DEADLINE_S


# Rank 1 never reaches init(). Rank 0 stays in MPI_Init, which no call can interrupt.
KEPT_IN_MPI_INIT = """
import os, sys, time
from pathlib import Path
number = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
Path(os.environ["RANKS_FOLDER"], "pid" + number).write_text(str(os.getpid()))
from rdmacoll._start import start_deadline
start_deadline.REPORT_EVERY_S = 0.3
if number == "1":
    time.sleep(1000)
import rdmacoll
rdmacoll.init()
"""


def test_a_rank_that_others_keep_in_mpi_init_ends_with_the_time_it_was_given():
    env = {"RDMACOLL_START_TIMEOUT_S": "2"}
    with Run(KEPT_IN_MPI_INIT, 2, launcher="mpirun", env=env) as started:
        outcome = started.finish(60)
    assert outcome.ranks[0].code != 0
    words = "of this MPI job reached init() within 2 s (RDMACOLL_START_TIMEOUT_S)"
    assert words in outcome.ranks[0].output, outcome.text()


def test_ctrl_c_ends_a_rank_that_waits_in_mpi_init():
    with Run(KEPT_IN_MPI_INIT, 2, launcher="mpirun") as started:
        waits = "waiting in MPI_Init for the other ranks"
        until = time.monotonic() + 60
        while waits not in started.so_far().text() and time.monotonic() < until:
            time.sleep(0.05)
        sent = time.monotonic()
        os.kill(int((started.folder / "pid0").read_text()), signal.SIGINT)
        outcome = started.finish(60)
    assert waits in outcome.text()
    assert outcome.ranks[0].code != 0
    assert time.monotonic() - sent < DEADLINE_S, outcome.text()


@pytest.mark.parametrize("step", [pytest.param("engine_open", marks=pytest.mark.slow), "engine_start"])
def test_ctrl_c_ends_a_start_under_mpirun(step):
    with Run(PROGRAM, 2, launcher="mpirun", arguments=["0", step, "stays"]) as started:
        started.wait_for_reports((0, 1))
        sent = interrupt(started, 1)
        outcome = started.finish(30)
    ended = outcome.ranks[1].report
    assert ended["class"] == "KeyboardInterrupt", outcome.text()
    assert ended["at"] - sent < DEADLINE_S


def test_ranks_share_memory_on_a_kernel_without_memfds():
    program = """
import old_kernel
old_kernel.pretend_linux_3_10()
import os
import numpy as np, rdmacoll
from ranks import report
try:
    os.memfd_create("none")
except OSError as error:
    refused = error.strerror
rdmacoll.init()
sums = [float(rdmacoll.engine.allreduce(np.ones(count), rdmacoll.Sum)[-1]) for count in (1, 3_000_000)]
report([refused, sums])
rdmacoll.shutdown()
"""
    outcome = run(program, 2, env={"RDMACOLL_TRANSPORT": "shm"}, deadline_s=60)
    assert outcome.succeeded() == [[os.strerror(errno.ENOSYS), [2.0, 2.0]]] * 2
