"""Too few file descriptors: every rank names the limit and the cure, and no rank crashes or hangs."""

from __future__ import annotations

import pytest
from ranks import run

TRANSPORTS = ["", "tcp"]

# Tries every limit in one job, from no free descriptor to enough of them, on all ranks or on one rank.
SWEEP = """
import os, resource, sys
from mpi4py import MPI
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
me = MPI.COMM_WORLD.Get_rank()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def start():
    try:
        rdmacoll.init()
        total = engine.allreduce(np.arange(4.0) + me, rdmacoll.Sum).tolist()
        rdmacoll.shutdown()
        return total
    except rdmacoll.RdmacollError as error:
        return [type(error).__name__, str(error)]
start()    # what MPI and Python load at their first use is there
used = max(int(number) for number in os.listdir("/proc/self/fd"))
found = []
for short in (None, 0, 1):
    for more in (*range(1, 44, 1 if short is None else 6), 200):
        limit = used + more
        if short in (None, me):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        outcome = start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        found.append([short, limit, outcome])
report(found, rank=me)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_limit_is_an_error_with_the_cure_or_enough(transport):
    both = run(SWEEP, 2, launcher="mpirun", env={"RDMACOLL_TRANSPORT": transport}).succeeded()
    enough: dict[int | None, bool] = {}
    for (short, limit, here), (_, _, there) in zip(*both):
        if here == there == [1.0, 3.0, 5.0, 7.0]:
            enough[short] = True
            continue
        assert not enough.get(short), (short, limit, here, there)  # more suffice as well
        enough[short] = False
        for rank, (kind, text) in enumerate((here, there)):
            assert kind == "ConfigError", (short, limit, text)
            assert f" {limit if short is None else ''}" in text
            assert "RLIMIT_NOFILE" in text
            assert "ulimit -n" in text
            is_reported = short is not None and short != rank
            assert (f"rank {short} could not start" in text) == is_reported, (short, limit, text)
    assert enough == {None: True, 0: True, 1: True}


STARVED = """
import os, resource
limit = int(os.environ["TEST_LIMIT"])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import numpy as np, rdmacoll
from rdmacoll import engine
rdmacoll.init()
assert engine.allreduce(np.ones(2), rdmacoll.Sum).tolist() == [2, 2]
"""


@pytest.mark.parametrize("limit", [9, 36])  # too few for MPI, and for what comes after it
def test_a_job_that_starts_with_few_descriptors_ends_with_a_sentence(limit):
    outcome = run(STARVED, 2, launcher="mpirun", env={"TEST_LIMIT": str(limit)}, deadline_s=60)
    code, output = outcome.ranks[0].code, outcome.ranks[0].output
    assert code is not None
    assert 0 < code < 128, outcome.text()  # no signal
    assert f"of the {limit} that a process may have here (RLIMIT_NOFILE)" in output
    assert "ulimit -n" in output


@pytest.mark.parametrize("starved", [0, 1])
def test_a_rank_that_cannot_reach_the_rendezvous_says_so(starved):
    limits = {rank: {"TEST_LIMIT": "8" if rank == starved else "256"} for rank in range(2)}
    outcome = run(STARVED, 2, env={"RDMACOLL_START_TIMEOUT_S": "1"}, env_of=limits, deadline_s=30)
    assert [rank.code for rank in outcome.ranks] == [1, 1], outcome.text()
    assert "of the 8 that a process may have here (RLIMIT_NOFILE)" in outcome.ranks[starved].output
    assert f"rank {starved} " in outcome.ranks[1 - starved].output


LATE = """
import contextlib, os, resource
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
me = rdmacoll.rank()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
hoard = []
if me == int(os.environ["TEST_STARVED"]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    with contextlib.suppress(OSError):
        while True:
            hoard.append(os.open(os.devnull, os.O_RDONLY))
try:
    engine.allreduce(np.ones(1 << 20), rdmacoll.Sum)
    outcome = None
except rdmacoll.RdmacollError as error:
    outcome = [type(error).__name__, str(error)]
finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
report(outcome, rank=me)
"""


@pytest.mark.parametrize(("transport", "starved"), [("", 1), ("tcp", 2)])  # the calling rank, the called rank
def test_a_connection_that_comes_too_late_is_a_failed_rank(transport, starved):
    env = {
        "RDMACOLL_TRANSPORT": transport,
        "RDMACOLL_ALLREDUCE_ALGORITHM": "ring",
        "TEST_STARVED": str(starved),
    }
    for kind, text in run(LATE, 3, env=env, deadline_s=40).succeeded():
        assert kind == "RankFailedError", text
        assert f": rank {starved} (" in text
        assert "too many open files" in text
        assert "ulimit -n" in text


CLOSED = """
import os
import numpy as np
numbers = []
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        numbers.append(number)
import rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
for number in range(3):
    os.write(number, b"printed by somebody")
total = engine.allreduce(np.ones(3), rdmacoll.Sum).tolist()
report([numbers, [os.readlink(f"/proc/self/fd/{number}") for number in range(3)], total])
"""


def test_no_socket_takes_the_place_of_a_closed_stdin_stdout_or_stderr():
    closed = ["bash", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "-"]
    outcome = run(CLOSED, 2, env={"PYTHONFAULTHANDLER": ""}, prefix_of={0: closed, 1: closed})
    for numbers, links, total in outcome.succeeded():
        assert numbers == [0, 1, 2]
        assert links == ["/dev/null"] * 3
        assert total == [2.0, 2.0, 2.0]
