"""What scenes share: programs that run where the devices are, start ranks there and judge what they do.

A scene's checks are its functions check_...; `python -m rdma.scene_ranks check_a check_b` runs these, in this
order, and without names it runs all. It ends at the first that fails.
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

# As many as the guest has hosts; on a machine with real devices those that the caller named.
DEVICES = os.environ["RDMACOLL_TEST_DEVICE"].split(",")
ARE_SOFT = all(device.startswith("rxe") for device in DEVICES)
# Soft-RoCE with the guest's addresses; on a machine it has those of the machine.
ARE_THE_GUESTS = Path("/.guest").exists()
# First touches of pages cost 0.2 ms each in user-mode Linux.
SMALL_POOL = {"TF_RDMA_BUF_SIZE": "64M"}
RDMA = {"RDMACOLL_TRANSPORT": "rdma", **SMALL_POOL}
# A silent peer has failed after 3 s. Whoever pins fresh pages there is silent for seconds: so few of them.
QUICK = {"RDMACOLL_PEER_TIMEOUT_S": "3", "TF_RDMA_BUF_SIZE": "16M"}


def own_device(ranks: int) -> dict[int, dict[str, str]]:
    """Each rank's environment with a device of its own, as far as there are enough."""
    return {rank: {"RDMACOLL_DEVICE": DEVICES[rank % len(DEVICES)]} for rank in range(ranks)}


def shell(command: str) -> None:
    """Runs a command that makes or ends a fault."""
    subprocess.run(command.split(), check=True)


def seed() -> int:
    """A new one for every run; programs print it when they fail."""
    return int(np.random.SeedSequence().generate_state(1)[0]) % (1 << 24)


class Traffic:
    """What the devices count from here on."""

    def __init__(self) -> None:
        self._before = {device: counters(device) for device in DEVICES}

    def packets(self, device: str) -> int:
        """How many packets a soft-RoCE device has sent and received; others have no such counters."""
        now, before = counters(device), self._before[device]
        return sum(now[name] - before[name] for name in ("sent_pkts", "rcvd_pkts"))

    def silent(self, ranks: int) -> list[str]:
        """Soft-RoCE devices of so many ranks that carried no more than greetings: fewer than 100 packets."""
        used = DEVICES[:ranks] if ARE_SOFT else []
        return [device for device in used if self.packets(device) < 100]


def main(names: Mapping[str, Any]) -> None:
    """Runs the checks that the command line names, of a module's names."""
    every = [name for name in names if name.startswith("check_")]
    for name in sys.argv[1:] or every:
        begin = time.monotonic()
        names[name]()
        print(f"passed {name} in {time.monotonic() - begin:.1f} s", flush=True)
