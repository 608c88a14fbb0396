"""Runs one process of a job that is started by hand with TensorFlow's flags. RANKS_PLACE is its rank.

A worker reports its sum, a server that it has served, and each of them its error. After the word "serve" or
"bench" come the options of that command. ROUNDS: the number of sums before the reported one. With
asynchronous servers it is the number of each worker's pushes before the reported value."""

from __future__ import annotations

import atexit
import json
import os
import socket
import struct
import sys
from pathlib import Path

import numpy as np
from ranks import report

import rdmacoll
from rdmacoll import ps
from rdmacoll._start import start_deadline
from rdmacoll.cli.main import main


def listening() -> list[str]:
    """Returns the TCP addresses on which this process listens, such as "127.0.0.1:4000"."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    inodes = {os.readlink(link)[8:-1] for link in links if os.path.exists(link) or os.path.islink(link)}
    found = []
    for forwarded in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *rest = forwarded.split()
        if state == "0A" and rest[5] in inodes:
            address, port = local.split(":")
            found.append(f"{socket.inet_ntoa(struct.pack('=I', int(address, 16)))}:{int(port, 16)}")
    return found


def loaded() -> list[str]:
    """Returns the modules in this process that a server does not need."""
    return [name for name in ("tensorflow", "mpi4py.MPI") if name in sys.modules]


start_deadline.REPORT_EVERY_S = 0.3
place = int(os.environ["RANKS_PLACE"])
if sys.argv[1:2] in (["serve"], ["bench"]):
    atexit.register(lambda: report(loaded(), rank=place))
    main()
try:
    rdmacoll.init(argv=True, **json.loads(os.environ.get("ARGUMENTS", "{}")))
except SystemExit:
    report(loaded(), rank=place)
    raise
except rdmacoll.RdmacollError as error:
    report([type(error).__name__, str(error)], rank=place)
    raise
rounds = int(os.environ.get("ROUNDS", "0"))
if "--cross_replica_sync=false" in sys.argv:
    rule = ps.Rule("optimizer=sgd\nschedule=constant\ninitial_learning_rate=1\n")
    ps.declare({"w": np.zeros(1000)}, rule)
    for _ in range(rounds):
        ps.push(np.full(1000, -1.0), "w")
    rdmacoll.engine.barrier()
    got = ps.pull("w")
else:
    for _ in range(rounds):
        rdmacoll.push_pull(np.ones(1000), rdmacoll.Sum, name="again")
    got = rdmacoll.push_pull(np.full(1000, rdmacoll.rank() + 1.0), rdmacoll.Sum)
ends = [float(got[0]), float(got[-1])]
reported = {"rank": rdmacoll.rank(), "size": rdmacoll.size(), "ends": ends, "argv": sys.argv[1:]}
report({**reported, "listening": listening()}, rank=place)
