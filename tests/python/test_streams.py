"""Several TCP connections between two ranks."""

from __future__ import annotations

import os

import pytest
from ranks import run

from rdmacoll.benchmarks.hosts import Hosts

SUMS = """
import time
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
for size in (1, 1000, 100_000, 5_000_000):
    for round in range(4):
        ours = np.arange(size, dtype=np.float32) % 1000 + rdmacoll.rank() + round
        total = engine.allreduce(ours, rdmacoll.Sum)
        assert np.array_equal(total, 2 * (np.arange(size, dtype=np.float32) % 1000 + round) + 1), size
end = time.monotonic() + 20
while rdmacoll.metrics()["connections"] < 3 and time.monotonic() < end:
    time.sleep(0.01)
found = rdmacoll.metrics()
report({name: found[name] for name in ("connections", "handshakes", "bytes_striped", "bytes_sent")})
rdmacoll.shutdown()
"""


def test_large_sums_go_over_all_streams():
    env = {"RDMACOLL_TRANSPORT": "tcp", "RDMACOLL_TCP_STREAMS": "3"}
    for found in run(SUMS, 2, env=env, deadline_s=120).succeeded():
        assert found["connections"] == found["handshakes"] == 3
        assert 0 < found["bytes_striped"] < found["bytes_sent"]


def test_ranks_that_want_different_numbers_are_told():
    program = """
import os, rdmacoll
from ranks import report
try:
    rdmacoll.init()
except rdmacoll.ConfigError as error:
    report(str(error), rank=int(os.environ["RDMACOLL_RANK"]))
"""
    streams = {rank: {"RDMACOLL_TCP_STREAMS": str(1 + rank)} for rank in range(2)}
    for text in run(program, 2, env_of=streams, deadline_s=60).succeeded():
        assert "RDMACOLL_TCP_STREAMS: rank 0: 1; rank 1: 2" in text


# Ends one connection of the process, the last that it has made to the other host.
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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_one_of_several_connections_that_breaks_is_named_on_both_hosts():
    hosts = Hosts(2)
    try:
        hosts.open()
        found = run(
            BROKEN,
            2,
            prefix_of=hosts.prefixes([0, 1]),
            rendezvous="10.77.0.1:5082",
            env={"RDMACOLL_TCP_STREAMS": "3"},
            deadline_s=60,
        ).succeeded()
    finally:
        hosts.close()
    for me, (rank, text, seconds) in enumerate(found):
        assert rank == 1 - me
        assert " of 3 failed: " in text
        assert "RDMACOLL_TCP_STREAMS=1" in text
        assert seconds < 5
