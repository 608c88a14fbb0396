"""Several TCP connections between two ranks. test_namespaces.py tests them between hosts."""

from __future__ import annotations

from rank_program import refused_start
from ranks import run

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
    streams = {rank: {"RDMACOLL_TCP_STREAMS": str(1 + rank)} for rank in range(2)}
    for text in run(refused_start(), 2, env_of=streams, deadline_s=60).succeeded():
        assert "RDMACOLL_TCP_STREAMS: rank 0: 1; rank 1: 2" in text
