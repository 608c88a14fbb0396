"""Starts without a data path between ranks, and starts with strangers at a listener."""

from __future__ import annotations

import os

import pytest
from rank_program import refused_start
from ranks import Run, free_addresses
from test_rendezvous_liveness import STRANGERS, STRANGERS_COST_S, hold

from rdmacoll.benchmarks.hosts import Hosts, ip

# Rank 0 connects when strangers have come to rank 1's listener.
BESIEGED = """
import os, sys, time
from pathlib import Path
import numpy as np, rdmacoll
from rdmacoll._abi.library import Library
from ranks import report
folder, me = Path(os.environ["RANKS_FOLDER"]), int(os.environ["RDMACOLL_RANK"])
plain = Library.engine_node
def waits(*arguments):
    report("listening", rank=me)
    while not (folder / "go").exists():
        time.sleep(0.01)
    global begun
    begun = time.monotonic()
    return plain(*arguments)
Library.engine_node = waits
rdmacoll.init()
seconds = time.monotonic() - begun
report([float(rdmacoll.engine.allreduce(np.full(100_000, 1.0 + me), rdmacoll.Sum)[-1]), seconds])
"""


@pytest.mark.parametrize("word", ["", "rdmacoll and so on"], ids=["silent", "that begin as a rank does"])
def test_thousands_of_strangers_at_an_engines_port_end_no_start(word):
    (address,) = free_addresses(1)
    port = address.rpartition(":")[2]
    env = {"RDMACOLL_TRANSPORT": "tcp"}
    with Run(BESIEGED, 2, env=env, env_of={1: {"RDMACOLL_PORT": port}}) as started:
        started.wait_for_reports([0, 1])
        with hold(int(port), STRANGERS, word) as holding:
            try:
                assert holding.stdout.readline() == "all\n"
                (started.folder / "go").touch()
                outcome = started.finish(60)
            finally:
                holding.kill()
    for total, seconds in outcome.succeeded():
        assert total == 3.0
        assert seconds < STRANGERS_COST_S


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ranks_whose_data_has_no_way_say_who_waits_for_whom_and_where():
    with Hosts(2) as hosts:
        # Rank 1 listens at an interface to which rank 0 has no route.
        ip("-n", hosts.names[1], "link", "add", "eth1", "type", "veth", "peer", "name", "eth2")
        ip("-n", hosts.names[1], "address", "add", "10.99.0.1/24", "dev", "eth1")
        for port in ("eth1", "eth2"):
            ip("-n", hosts.names[1], "link", "set", port, "up")
        with Run(
            refused_start(),
            2,
            prefix_of=hosts.prefixes([0, 1]),
            rendezvous="10.77.0.1:5091",
            env={"RDMACOLL_START_TIMEOUT_S": "12"},
            env_of={1: {"RDMACOLL_INTERFACE": "eth1"}},
        ) as started:
            outcome = started.finish(60)
    assert len([text for text in outcome.succeeded() if text]) == 2
    assert "no connection after 12 s: 10.99.0.1:" in outcome.reports[0]
    caller, called = (rank.output for rank in outcome.ranks)
    assert "[rdmacoll rank 0] warning: waiting for rank 1 (" in caller
    assert ") to let it in at 10.99.0.1:" in caller
    assert "[rdmacoll rank 1] warning: waiting for rank 0 (" in called
    assert ") to call it at 10.99.0.1:" in called
    for output in (caller, called):
        assert "(for 10 s). Does a firewall let these ports through" in output
