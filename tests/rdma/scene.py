"""Functions for all scenes. A scene is a program that runs beside the devices, starts ranks and checks them.

A scene's checks are its functions check_... `python -m rdma.scene_ranks check_a check_b` runs these two, in
this order. Without names, it runs all checks. The scene ends at the first failed check.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdma.pingpong import counters

# A guest has one device for each host. On a machine with real devices, the caller names them.
DEVICES = os.environ["RDMACOLL_TEST_DEVICE"].split(",")
ARE_SOFT = all(device.startswith("rxe") for device in DEVICES)
# In the guest, soft-RoCE devices have the addresses 10.9.0.x. On a machine they have the machine's addresses.
ARE_THE_GUESTS = Path("/.guest").exists()
# The first touch of a page is slow in user-mode Linux, so the pool is small.
SMALL_POOL = {"TF_RDMA_BUF_SIZE": "64M"}
RDMA = {"RDMACOLL_TRANSPORT": "rdma", **SMALL_POOL}
# A peer that is silent for 3 s has failed. A rank that pins many fresh pages in user-mode Linux is silent for
# seconds, so this pool is even smaller.
QUICK = {"RDMACOLL_PEER_TIMEOUT_S": "3", "TF_RDMA_BUF_SIZE": "16M"}


def own_device(ranks: int) -> dict[int, dict[str, str]]:
    """Returns each rank's environment. Each rank has its own device if there are enough devices."""
    return {rank: {"RDMACOLL_DEVICE": DEVICES[rank % len(DEVICES)]} for rank in range(ranks)}


def shell(command: str) -> None:
    """Runs a command that causes or ends a fault."""
    subprocess.run(command.split(), check=True)


def seed() -> int:
    """Returns a new seed for every run. Programs print it when they fail."""
    return int(np.random.SeedSequence().generate_state(1)[0]) % (1 << 24)


class Traffic:
    """Counts the devices' packets from the creation of this object on."""

    def __init__(self) -> None:
        self._before = {device: counters(device) for device in DEVICES}

    def packets(self, device: str) -> int:
        """Returns how many packets a soft-RoCE device has sent and received. Others have no such counters."""
        now, before = counters(device), self._before[device]
        return sum(now[name] - before[name] for name in ("sent_pkts", "rcvd_pkts"))

    def silent(self, ranks: int) -> list[str]:
        """Returns those of the first `ranks` soft-RoCE devices that carried less than 100 packets."""
        used = DEVICES[:ranks] if ARE_SOFT else []
        return [device for device in used if self.packets(device) < 100]


def main(names: Mapping[str, Any]) -> None:
    """Runs the checks that the command line names. names: the globals of the scene's module."""
    every = [name for name in names if name.startswith("check_")]
    for name in sys.argv[1:] or every:
        begin = time.monotonic()
        names[name]()
        print(f"passed {name} in {time.monotonic() - begin:.1f} s", flush=True)
