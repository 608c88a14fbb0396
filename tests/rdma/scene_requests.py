"""Tests when RDMA is used, by the requests and the ranks' abilities, and which rank a refusal names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ranks import Outcome, run

from rdma.limits import limited
from rdma.scene import ARE_SOFT, ARE_THE_GUESTS, DEVICES, RDMA, SMALL_POOL, Traffic, main, own_device
from rdmacoll.benchmarks.hosts import Hosts

# Less memory than the start tries to pin.
LIMITED = limited(16384, as_root=os.geteuid() == 0)
# No kernel gives a device this name. A name such as mlx5_7 exists on machines with eight adapters.
MISSING = "nothere_0"

PROGRAM = """
import os, sys, numpy as np, rdmacoll
from ranks import report
try:
    rdmacoll.init()
except rdmacoll.RdmacollError as error:
    report({"error": type(error).__name__, "text": str(error)}, int(os.environ["RDMACOLL_RANK"]))
    sys.exit(1)
me, count = rdmacoll.rank(), rdmacoll.size()
for size in (5, 500_000):
    got = rdmacoll.engine.allreduce(np.full(size, me + 1.0), rdmacoll.Sum)
    assert (got == count * (count + 1) / 2).all()
report({"transport": rdmacoll._world.world.describe()["transport"], **rdmacoll.metrics()})
rdmacoll.shutdown()
"""


def _start(
    env: Mapping[str, str], env_of: Mapping[int, Mapping[str, str]] | None = None, **options: Any
) -> Outcome:
    return run(PROGRAM, 2, env={**SMALL_POOL, **env}, env_of=env_of or {}, deadline_s=60, **options)


def _refusals(outcome: Outcome) -> list[str]:
    """Checks that all ranks were refused. Returns the texts of their errors."""
    assert [rank.code for rank in outcome.ranks] == [1, 1], outcome.text()
    assert all(entry["error"] == "ConfigError" for entry in outcome.reports), outcome.text()
    return [entry["text"] for entry in outcome.reports]


def _transports(outcome: Outcome) -> set[str]:
    return {entry["transport"] for entry in outcome.succeeded()}


def check_a_device_that_is_missing_is_refused_with_those_present() -> None:
    for text in _refusals(_start({}, {1: {"RDMACOLL_DEVICE": MISSING}})):
        assert "rank 1 (" in text, text
        assert f"this machine has no RDMA device {MISSING}" in text
        assert all(f"{device} (port " in text.partition("present: ")[2] for device in DEVICES), text


def check_false_goes_over_tcp() -> None:
    traffic = Traffic()
    outcome = _start({"RDMACOLL_TRANSPORT": "tcp", "TF_RDMA_ENABLED": "false"})
    assert _transports(outcome) == {"tcp"}
    assert "RDMA" not in outcome.text().replace("TF_RDMA", "").replace("RDMACOLL", "")
    assert not ARE_SOFT or traffic.packets(DEVICES[0]) == 0


def check_neighbours_keep_to_shared_memory_unless_told() -> None:
    outcome = _start({})
    assert _transports(outcome) == {"shm"}
    assert "RDMA over" not in outcome.text()
    # RDMA is requested, but shared memory has priority on one host.
    assert _transports(_start({"TF_RDMA_ENABLED": "true"})) == {"shm"}


def check_one_rank_that_cannot_decides_for_all_and_is_named() -> None:
    for text in _refusals(_start(RDMA, own_device(2), prefix_of={1: LIMITED})):
        assert "RDMA was requested" in text
        assert "rank 1 (" in text
        assert "of pinned memory, and the limit (RLIMIT_MEMLOCK) is 16 KiB" in text
        assert "ulimit -l unlimited" in text


@contextmanager
def _without_device_files() -> Iterator[None]:
    """Hides the device files, as in a container without the devices. The kernel still has the devices."""
    there, away = Path("/dev/infiniband"), Path("/dev/infiniband.away")
    there.rename(away)
    try:
        yield
    finally:
        away.rename(there)


def check_devices_that_no_program_may_use_are_said_though_nobody_asked() -> None:
    if not ARE_THE_GUESTS:
        return  # other programs use the devices of this machine
    with Hosts(2) as hosts:
        prefix_of = {rank: ["nsenter", f"--net=/run/netns/{name}"] for rank, name in enumerate(hosts.names)}
        options: dict[str, Any] = {"prefix_of": prefix_of, "rendezvous": f"{hosts.addresses[0]}:4711"}
        with _without_device_files():
            outcome = _start({}, **options)
            assert _transports(outcome) == {"tcp"}
            logged = outcome.ranks[0].output
            assert "no RDMA, but TCP: rank 0 (" in logged, logged
            assert "the kernel has rxe1" in logged, logged
            assert "/dev/infiniband/uverbs* is missing" in logged, logged
            for text in _refusals(_start({"TF_RDMA_DEV_NAME": DEVICES[0]}, **options)):
                assert f"RDMA was requested (TF_RDMA_DEV_NAME={DEVICES[0]} at rank 0 (" in text, text
                assert "To go without it, unset that setting." in text, text
            silent = _start({"TF_RDMA_ENABLED": "false"}, **options)
            assert _transports(silent) == {"tcp"}
            assert "no RDMA" not in silent.ranks[0].output


if __name__ == "__main__":
    main(globals())
