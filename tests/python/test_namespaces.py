"""Several hosts on one machine: network namespaces joined by virtual cables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from marks import slow
from ranks import ROOT, Run, run

from rdmacoll.benchmarks.hosts import Hosts

COLLECTIVES = ROOT / "tests" / "multiprocess" / "numpy_collectives.py"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


@pytest.mark.parametrize("address", [slow("10.77.0.1"), "[fd77::1]"])
def test_collectives_equal_numpy_across_hosts(hosts, address):
    found = run(
        COLLECTIVES,
        4,
        arguments=["77"],
        prefix_of=hosts.prefixes([0, 0, 1, 2]),
        rendezvous=f"{address}:5077",
        deadline_s=240,
    ).succeeded()
    assert [entry["local_size"] for entry in found] == [2, 2, 1, 1]
    assert {entry["cross_size"] for entry in found} == {3}


# Nodes of powers of two, for which the order is canonical; unequal nodes; ranks on the nodes in turns.
@pytest.mark.parametrize(
    ("host_of", "order"),
    [
        ([0, 0, 1, 1], "canonical"),
        ([0, 1, 0, 1, 0], "run"),
        slow([0, 0, 1], "canonical"),
        slow([0, 0, 0, 0, 1, 1, 1, 1], "canonical"),
        slow([0, 0, 1, 2], "run"),
    ],
)
def test_sums_by_nodes_equal_numpy(hosts, host_of, order):
    environ = {"RDMACOLL_ALLREDUCE_ALGORITHM": "two_level", "RDMACOLL_ORDER": order}
    found = run(
        COLLECTIVES,
        len(host_of),
        arguments=["78"],
        prefix_of=hosts.prefixes(host_of),
        rendezvous="10.77.0.1:5081",
        env=environ,
        deadline_s=240,
    ).succeeded()
    assert [entry["local_size"] for entry in found] == [host_of.count(host) for host in host_of]


def test_nodes_are_told_by_reachable_memory_not_by_host_name(hosts):
    program = """
import rdmacoll
from ranks import report
rdmacoll.init()
report([rdmacoll.local_rank(), rdmacoll.local_size(), rdmacoll.cross_rank(), rdmacoll.cross_size()])
"""
    outcome = run(program, 5, prefix_of=hosts.prefixes([0, 1, 0, 1, 2]), rendezvous="10.77.0.1:5078")
    assert outcome.succeeded() == [[0, 2, 0, 3], [0, 2, 1, 3], [1, 2, 0, 3], [1, 2, 1, 3], [0, 1, 2, 3]]


def test_shared_memory_alone_across_hosts_is_refused(hosts):
    program = """
import os, rdmacoll
from ranks import report
try:
    rdmacoll.init()
    rdmacoll.engine.barrier()
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, str(error)], rank=int(os.environ["RDMACOLL_RANK"]))
"""
    outcome = run(
        program,
        2,
        prefix_of=hosts.prefixes([0, 1]),
        rendezvous="10.77.0.1:5079",
        env={"RDMACOLL_TRANSPORT": "shm"},
        deadline_s=60,
    )
    for kind, text in outcome.succeeded():
        assert kind == "ConfigError"
        assert "RDMACOLL_TRANSPORT" in text


def test_an_unplugged_host_is_named(hosts):
    program = """
import time
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
report({})
try:
    while True:
        rdmacoll.engine.allreduce(np.ones(1000))
except rdmacoll.RankFailedError as error:
    report({"rank": error.rank, "at": time.time()})
"""
    with Run(
        program,
        3,
        prefix_of=hosts.prefixes([0, 1, 2]),
        rendezvous="10.77.0.1:5080",
        env={"RDMACOLL_PEER_TIMEOUT_S": "1"},
    ) as started:
        started.wait_for_reports(range(3))
        time.sleep(0.5)
        unplugged = time.time()
        hosts.unplug(2)
        outcome = started.finish(60)
    for rank in (0, 1):
        entry = outcome.ranks[rank].report
        assert entry.get("rank") == 2, outcome.text()
        assert entry["at"] - unplugged < 10
    assert outcome.ranks[2].report.get("rank") in (0, 1), outcome.text()


def test_no_namespace_is_left(hosts):
    names = hosts.names
    hosts.close()
    assert not [name for name in names if (Path("/run/netns") / name).exists()]


# Ends the last connection that the process has made to the other host.
BROKEN = """
import os, socket, time
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
me = rdmacoll.rank()
data = np.ones(3_000_000, np.float32)
started = time.monotonic()
def connections():
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            one = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        try:
            if one.family == socket.AF_INET and one.getpeername()[0].startswith("10.77."):
                yield one
        except OSError:
            pass
try:
    while rdmacoll.metrics()["connections"] < 3:
        engine.allreduce(data)
    if me == 0:
        mine = list(connections())
        assert len(mine) == 3, mine
        mine[-1].shutdown(socket.SHUT_RDWR)
        del mine
    started = time.monotonic()
    while True:
        engine.allreduce(data)
except rdmacoll.RankFailedError as error:
    report([error.rank, str(error), time.monotonic() - started])
"""


def test_one_of_several_connections_that_breaks_is_named_on_both_hosts(hosts):
    found = run(
        BROKEN,
        2,
        prefix_of=hosts.prefixes([0, 1]),
        rendezvous="10.77.0.1:5082",
        env={"RDMACOLL_TCP_STREAMS": "3"},
        deadline_s=60,
    ).succeeded()
    for me, (rank, text, seconds) in enumerate(found):
        assert rank == 1 - me
        assert " of 3 failed: " in text
        assert "RDMACOLL_TCP_STREAMS=1" in text
        assert seconds < 5
