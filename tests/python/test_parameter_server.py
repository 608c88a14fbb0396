"""Parameter-server mode on real ranks: the same results as allreduce mode, and every end of it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from marks import slow
from rank_program import refused_start
from ranks import ROOT, Run, run

PROGRAMS = ROOT / "tests" / "multiprocess"


def ps(servers: int, **more: str) -> dict[str, str]:
    return {"RDMACOLL_MODE": "ps", "RDMACOLL_NUM_SERVERS": str(servers), **more}


def sums(workers: int, servers: int, **environ: str) -> list[Any]:
    """Runs ps_numpy.py and returns the sums that the workers report."""
    settings = {"RDMACOLL_ORDER": "canonical", **environ}
    reports = run(PROGRAMS / "ps_numpy.py", workers + servers, env=settings, deadline_s=240).succeeded()
    assert reports[workers:] == ["served, tensorflow: False"] * servers
    assert all(report["size"] == workers for report in reports[:workers])
    assert all(report["plans"] > 0 for report in reports[:workers]) or workers == 1
    assert [report["places"] for report in reports[:workers]] == [
        [rank, workers, 0, 1] for rank in range(workers)
    ]
    return [report["sums"] for report in reports[:workers]]


@pytest.mark.parametrize(
    ("workers", "servers", "transport"),
    [(3, 2, "shm"), (3, 1, "tcp"), slow(1, 1, "shm"), slow(5, 3, "tcp"), slow(2, 3, "shm")],
)
def test_sums_have_the_bits_of_allreduce(workers, servers, transport):
    through_servers = sums(workers, servers, **ps(servers, RDMACOLL_TRANSPORT=transport))
    among_workers = sums(workers, 0, RDMACOLL_TRANSPORT="shm")
    colocated = ps(1, RDMACOLL_SERVER_PLACEMENT="colocated", RDMACOLL_TRANSPORT=transport)
    in_workers = sums(workers, 0, **colocated)
    assert through_servers == among_workers == in_workers
    assert all(one == through_servers[0] for one in through_servers)


def test_mpirun_starts_it_and_ends_well():
    program = """
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init(mode="ps", num_servers=2, placement="dedicated")
got = rdmacoll.push_pull(np.full(1000, rdmacoll.rank() + 1.0), rdmacoll.Sum)
report([rdmacoll.size(), got[0], got[-1]])
"""
    outcome = run(program, 4, launcher="mpirun")
    assert outcome.ranks[0].code == 0, outcome.text()
    assert outcome.reports == [[2, 3.0, 3.0], [2, 3.0, 3.0], None, None]


STEPS = """
import os, sys, time
import numpy as np, rdmacoll
from ranks import report
def put(error):
    text = [type(error).__name__, str(error), time.time()]
    report(text, rank=int(os.environ["RDMACOLL_RANK"]))
try:
    rdmacoll.init()
    report({"rank": rdmacoll.rank()})
    for step in range(100_000_000):
        BODY
        rdmacoll.push_pull(np.ones(300_000, np.float32), name="gradient")
except rdmacoll.RdmacollError as error:
    put(error)
    raise
"""


def end_of(victim: int, transport: str) -> list[Any]:
    """Kills a rank of a training with 3 workers and 2 servers. Returns the reports of all other ranks."""
    environ = ps(2, RDMACOLL_TRANSPORT=transport)
    with Run(STEPS.replace("BODY", "pass"), 5, env=environ) as started:
        started.wait_for_reports(range(3))
        time.sleep(0.3)
        os.kill(started.pid(victim), signal.SIGKILL)
        killed = time.time()
        outcome = started.finish(30)
    found = []
    for rank, one in enumerate(outcome.ranks):
        if rank == victim:
            continue
        assert one.code == 1, outcome.text()
        assert one.report[0] == "RankFailedError", outcome.text()
        assert one.report[2] - killed < 5
        found.append(one.report[1])
    return found


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_worker_is_named_by_workers_and_servers(transport):
    for text in end_of(1, transport):
        assert "rank 1 (" in text, text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_server_is_named_as_one(transport):
    for text in end_of(4, transport):
        assert "server 1 (rank 4, " in text, text


def test_a_worker_that_raises_ends_the_others_and_the_servers():
    body = "if step == 50 and rdmacoll.rank() == 2: raise ValueError('nan')"
    outcome = run(STEPS.replace("BODY", body), 5, env=ps(2), deadline_s=60)
    for rank, one in enumerate(outcome.ranks):
        assert one.code == 1, outcome.text()
        if rank != 2:
            assert one.report[0] == "RankFailedError"
            assert "ValueError: nan" in one.report[1], outcome.text()


def test_a_worker_that_is_done_early_is_no_error_for_servers_alone():
    program = """
import numpy as np, rdmacoll
rdmacoll.init()
rdmacoll.push_pull(np.ones(10))
if rdmacoll.rank() == 0:
    rdmacoll.shutdown()
    try:
        rdmacoll.init()
    except rdmacoll.ConfigError as error:
        assert "have ended with its first world" in str(error)
    else:
        raise AssertionError
"""
    assert run(program, 3, env=ps(1), deadline_s=60).succeeded() == [None] * 3


@pytest.mark.parametrize(
    ("environ", "message_part"),
    [
        (ps(2), "RDMACOLL_NUM_SERVERS=2 leaves no worker among 2 ranks: start 3 or more"),
        (ps(1, RDMACOLL_ALLREDUCE_ALGORITHM="ring"), "exclude each other: the servers make the sums"),
        (ps(0), "RDMACOLL_NUM_SERVERS=0 is not allowed: it takes 1 to 4096"),
        ({"RDMACOLL_MODE": "async"}, "RDMACOLL_MODE=async is not allowed: it takes allreduce or ps"),
    ],
)
def test_settings_that_cannot_be_are_refused(environ, message_part):
    for report in run(refused_start(), 2, env=environ, deadline_s=60).succeeded():
        assert message_part in report


def test_ranks_that_differ_in_their_mode_are_told():
    for report in run(refused_start(), 3, env_of={2: ps(1)}, deadline_s=60).succeeded():
        assert "RDMACOLL_MODE" in report


# The mean of a batch and the mean of the means of its halves differ by rounding. A sum that is left out makes
# a far larger difference.
TOLERANCE = 2e-5


def train(workers: int, ranks: int, *arguments: str, **environ: str) -> list[Any]:
    """Runs ps_keras.py with the data spread over `workers`, and returns the reports of the workers."""
    settings = {"RDMACOLL_ORDER": "canonical", **environ}
    words = [str(workers), *arguments]
    outcome = run(
        PROGRAMS / "ps_keras.py", ranks, env=settings, arguments=words, preloaded=True, deadline_s=240
    )
    return [found for found in outcome.succeeded() if found is not None]


def distance(one: Any, other: Any) -> float:
    """The largest difference of the weights of two workers."""
    return max(
        float(np.abs(np.subtract(one["weights"][way], other["weights"][way])).max())
        for way in ("fit", "loop")
    )


# Sums of three depend on their order, those of two do not.
@pytest.mark.parametrize(("workers", "servers"), [slow(2, 1), slow(2, 2), slow(3, 1), (3, 2)])
def test_a_training_is_that_of_one_process_and_of_allreduce(workers: int, servers: int) -> None:
    (alone,) = train(workers, 1)
    among_workers = train(workers, workers)
    assert distance(alone, among_workers[0]) < TOLERANCE
    runs = [
        train(workers, workers + servers, **ps(servers)),
        train(workers, workers, **ps(servers, RDMACOLL_SERVER_PLACEMENT="colocated")),
    ]
    for found in runs:
        # The order of the sums is canonical, so workers agree with each other and with allreduce in all bits.
        assert {one["digest"] for one in found} == {among_workers[0]["digest"]}
        assert len(found) == workers


def test_without_the_wrapper_a_training_is_another():
    workers = 2
    (alone,) = train(workers, 1)
    found = train(workers, workers + 1, "plain", **ps(1))
    assert all(distance(alone, one) > 100 * TOLERANCE for one in found)
    assert len({one["digest"] for one in found}) == workers
