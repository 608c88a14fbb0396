"""Compares pyverbs' view of the devices with ours, and breaks our queue pairs by means of pyverbs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rank_program import program, wait_done
from ranks import Run

from rdma.pingpong import gid_index
from rdma.scene import ARE_THE_GUESTS, DEVICES, RDMA, main
from rdma.scene_faults import named
from rdmacoll._abi import library
from rdmacoll._abi.device_differences import differences
from rdmacoll._abi.device_views import pyverbs_view, sysfs_view
from rdmacoll._abi.devices import engine_view

_HERE = Path(__file__).resolve().parent
_SYSFS = Path("/sys/class/infiniband")
_PEER_TIMEOUT_S = 10

# All ranks are idle when the stray packet comes.
PAUSE = """
ramp = np.arange(100_000, dtype=np.float64)

def sums():
    for turn in range(3):
        got = engine.allreduce(ramp * (me + 1) + turn, rdmacoll.Sum)
        assert (got == ramp * (size * (size + 1) / 2) + size * turn).all(), turn

sums()
engine.barrier()
report({"pid": os.getpid(), "idle": True})
while not os.path.exists(os.environ["RANKS_FOLDER"] + "/go on"):
    time.sleep(0.05)
sums()
"""
# mpirun ends all ranks when one ends. So no rank ends before all have reported.
AFTER = """
while not os.path.exists(os.environ["RANKS_FOLDER"] + "/enough"):
    time.sleep(0.05)
sys.exit(3)
"""


def check_the_engine_sysfs_and_pyverbs_agree() -> None:
    engine, sysfs, pyverbs = views = (engine_view(library.load()), sysfs_view(_SYSFS), pyverbs_view())
    for view in views:
        assert not view.problem, view
        assert set(DEVICES) <= {device.name for device in view.devices}, view
        for device in view.devices:
            if device.name in DEVICES:
                assert device.ports, view
                assert device.ports[0].state == "active", view
                assert device.ports[0].gids, view
    for one, other in ((engine, sysfs), (engine, pyverbs), (sysfs, pyverbs)):
        assert list(differences(one, other)) == []
    for view in (engine, pyverbs):  # sysfs does not show the MTU
        mtus = [device.ports[0].active_mtu for device in view.devices if device.name in DEVICES]
        assert mtus == [4096] * len(DEVICES) or (all(mtus) and not ARE_THE_GUESTS), view
    if ARE_THE_GUESTS:
        for number, device in enumerate(pyverbs.devices, start=1):
            assert f"::ffff:10.9.0.{number}" in [gid.gid for gid in device.ports[0].gids], device


def _queue_pair(device: str, pid: int) -> dict[str, Any]:
    """Returns the kernel's facts of a process's only queue pair, once its packet numbers stay the same."""
    end = time.monotonic() + 20
    before: dict[str, Any] = {}
    while time.monotonic() < end:
        shown = subprocess.run(
            ["rdma", "-dd", "-j", "resource", "show", "qp"], capture_output=True, check=True
        )
        rows = json.loads(shown.stdout)
        of_it = [row for row in rows if (row["ifname"], row.get("pid")) == (device, pid)]
        assert len(of_it) == 1, f"queue pairs of process {pid} on {device}: {rows}"
        now = of_it[0]
        if now == before:
            return before
        before = now
        time.sleep(0.3)
    raise AssertionError(f"the queue pair of process {pid} on {device} does not rest: {before}")


def _broken(operation: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Breaks rank 0's queue pair. Returns the queue pair, the final reports of both ranks, and all output.

    A third process writes to the queue pair as if it were rank 1, with an invalid key.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program(PAUSE, after=AFTER))
        file.flush()
        env = {
            **RDMA,
            "RDMACOLL_DEVICE": ",".join(DEVICES[:2]),
            "RDMACOLL_PEER_TIMEOUT_S": str(_PEER_TIMEOUT_S),
        }
        command = _HERE / "own_device.py"
        with Run(command, 2, launcher="mpirun", env=env, arguments=[file.name]) as started:
            end = time.monotonic() + 60
            while not all((started.reported(rank) or {}).get("idle") for rank in range(2)):
                assert started.processes[0].poll() is None, started.so_far().text()
                assert time.monotonic() < end, started.so_far().text()
                time.sleep(0.05)
            pair = _queue_pair(DEVICES[0], started.pid(0))
            assert pair["state"] == "RTS", pair
            index = gid_index(DEVICES[0])
            gid = (_SYSFS / DEVICES[0] / "ports" / "1" / "gids" / str(index)).read_text().strip()
            stray = [DEVICES[1], str(gid_index(DEVICES[1])), gid, str(pair["lqpn"]), str(pair["rq-psn"])]
            subprocess.run([sys.executable, _HERE / "stray_write.py", operation, *stray], check=True)
            sent = time.time()
            (started.folder / "go on").touch()
            found = wait_done(started, range(2), 60)
            (started.folder / "enough").touch()
            outcome = started.finish(30)
    for rank, entry in enumerate(found):
        named([entry], outcome, 1 - rank)
        assert entry["at"] - sent < _PEER_TIMEOUT_S, (entry, outcome.text())
        # Each of the two copies of the output has the error once.
        assert outcome.text().count(f"[rdmacoll rank {rank}] error: ") == 2, outcome.text()
    return pair, found, outcome.text()


def _both_say(status: str, pair: dict[str, Any], found: list[dict[str, Any]], text: str) -> None:
    """Checks that rank 0 reports its device's error, and that rank 1 repeats rank 0's report in one line."""
    own, cause_told = (entry["attributes"]["cause"] for entry in found)
    assert own.startswith(f"queue pair {pair['lqpn']} failed: "), text
    for part in (status, f"on {DEVICES[0]} port 1 (", "GID 1 ::ffff:10.9.0.1", "to GID ::ffff:10.9.0.2"):
        assert part in own, text
    assert own in cause_told, text
    assert "\n" not in cause_told, text


def check_a_queue_pair_broken_by_a_stray_write_is_named_with_its_status() -> None:
    """The write consumes a receive, and the receive's completion has the cause."""
    _both_say("remote access error (10)", *_broken("IBV_WR_RDMA_WRITE_WITH_IMM"))


def check_a_queue_pair_that_was_only_flushed_is_named_too() -> None:
    """The write consumes no receive. The device reports only that its receives are flushed."""
    _both_say("work request flushed error (5)", *_broken("IBV_WR_RDMA_WRITE"))


if __name__ == "__main__":
    main(globals())
