"""join: ranks whose data ends before the data of other ranks."""

from __future__ import annotations

import pytest
from marks import slow
from ranks import ROOT, run

PROGRAMS = ROOT / "tests" / "multiprocess"


@pytest.mark.parametrize(
    ("size", "transport", "repeats"),
    [(2, "shm", 2), (3, "tcp", 2), (4, "shm", 0), slow(4, "tcp", 2), slow(5, "shm", 2)],
)
def test_sums_go_on_without_those_who_have_joined(size, transport, repeats):
    environ = {"RDMACOLL_TRANSPORT": transport, "RDMACOLL_PLAN_REPEATS": str(repeats)}
    found = run(PROGRAMS / "joins.py", size, env=environ, deadline_s=240).succeeded()
    assert all((entry["plans_left"] > 0) == (repeats > 0) for entry in found), found


@pytest.mark.parametrize("size", [2, slow(3)])
def test_steps_of_tensorflow_are_uneven(size):
    assert run(PROGRAMS / "tf_joins.py", size, preloaded=True, deadline_s=240).succeeded() == [True] * size


def test_a_rank_that_is_killed_ends_the_wait_of_those_who_have_joined():
    program = """
import os, signal, time
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
rank = rdmacoll.rank()
try:
    for step in range(3 + 20 * rank):
        rdmacoll.engine.allreduce(np.ones(1000), name="x")
        if step == 30:
            os.kill(os.getpid(), signal.SIGKILL)
    rdmacoll.join()
except rdmacoll.RankFailedError as error:
    report(error.rank)
"""
    outcome = run(program, 3)
    assert outcome.reports[:2] == [2, 2], outcome.text()


def test_a_rank_that_leaves_without_joining_is_named():
    program = """
import rdmacoll
from ranks import report
rdmacoll.init()
rank = rdmacoll.rank()
if rank == 1:
    rdmacoll.shutdown()
else:
    try:
        rdmacoll.join()
    except rdmacoll.RankFailedError as error:
        report(str(error), rank=rank)
"""
    first, _, last = run(program, 3).succeeded()
    assert all("rank 1" in text and "shutdown()" in text for text in (first, last)), (first, last)


def test_a_rank_that_does_nothing_is_named(tmp_path):
    program = """
import os, pathlib, time
import rdmacoll
from ranks import report
rdmacoll.init()
rank, told = rdmacoll.rank(), pathlib.Path(os.environ["TOLD"])
if rank != 1:
    try:
        rdmacoll.join()
    except rdmacoll.StalledError as error:
        report([error.missing_ranks, str(error)], rank=rank)
    (told / str(rank)).touch()
while len(list(told.iterdir())) < 2:
    time.sleep(0.01)
"""
    env = {"RDMACOLL_STALL_WARNING_S": "0.2", "RDMACOLL_STALL_ERROR_S": "0.6", "TOLD": str(tmp_path)}
    first, _, last = run(program, 3, env=env).succeeded()
    assert first == last
    assert first[0] == [1]
    assert "join was called by 2 of 3 ranks" in first[1]
