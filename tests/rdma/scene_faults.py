"""Faults of ranks over RDMA: a rank dies, a cable is pulled, packets are lost, a device is removed."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from rank_program import program, wait_done
from ranks import Outcome, Run

from rdma.scene import QUICK, RDMA, main, own_device, shell

# The ranks sum for ever. They report the number of turns, so that the test sees their progress.
FOREVER = """
ramp = np.arange(100_000, dtype=np.float64)
turn = 0
# All see the sign to stop in the same turn.
while not engine.allreduce(np.int32(os.path.exists(os.environ["RANKS_FOLDER"] + "/enough")), rdmacoll.Max):
    got = engine.allreduce(ramp * (me + 1) + turn, rdmacoll.Sum, name=f"turn {turn}")
    assert (got == ramp * (size * (size + 1) / 2) + size * turn).all(), turn
    turn += 1
    report({"pid": os.getpid(), "turn": turn})
"""


def _wait_for_turns(started: Run, turns: int, within_s: float = 60) -> int:
    """Waits until rank 0 has done `turns` further sums. Returns the number of its last sum."""
    first = now = (started.reported(0) or {}).get("turn", 0)
    end = time.monotonic() + within_s
    while now < first + turns:
        if time.monotonic() > end:
            raise AssertionError(f"{now - first} of {turns} sums in {within_s} s:\n{started.so_far().text()}")
        time.sleep(0.05)
        now = (started.reported(0) or {}).get("turn", 0)
    return int(now)


def _start(ranks: int, **env: str) -> Run:
    return Run(program(FOREVER, after="sys.exit(3)"), ranks, env={**RDMA, **env}, env_of=own_device(ranks))


def named(entries: list[dict[str, Any]], outcome: Outcome, rank: int) -> None:
    for entry in entries:
        assert entry["error"] == "RankFailedError", outcome.text()
        assert entry["attributes"]["rank"] == rank, outcome.text()
        assert entry["attributes"]["host"] == os.uname().nodename
        assert f"rank {rank} (" in entry["text"], entry
        assert entry["attributes"]["cause"], entry


def check_a_killed_rank_is_named_by_every_survivor() -> None:
    for ranks in (2, 3):
        victim = ranks - 1
        with _start(ranks) as started:
            _wait_for_turns(started, 5)
            killed = time.time()
            os.kill(started.pid(victim), signal.SIGKILL)
            found = wait_done(started, range(victim), 30)
            outcome = started.finish(30)
        named(found, outcome, victim)
        for entry in found:
            assert entry["at"] - killed < 5, (entry, outcome.text())


def check_a_stopped_rank_is_named_once_its_heartbeats_are_missed() -> None:
    with _start(2, **QUICK) as started:
        _wait_for_turns(started, 5)
        stopped = time.time()
        os.kill(started.pid(1), signal.SIGSTOP)
        found = wait_done(started, [0], 30)
        os.kill(started.pid(1), signal.SIGKILL)
        outcome = started.finish(30)
    named(found, outcome, 1)
    assert found[0]["at"] - stopped < 15, found


def check_a_cable_that_stays_pulled_is_an_error_with_status_and_path() -> None:
    with _start(2) as started:
        _wait_for_turns(started, 5)
        shell("ip link set b2 down")
        try:
            found = wait_done(started, [0, 1], 60)
            outcome = started.finish(30)
        finally:
            shell("ip link set b2 up")
    for rank, entry in enumerate(found):
        named([entry], outcome, 1 - rank)
        # The rank that gives up first reports its device's error. The other rank is told this error.
        cause = entry["attributes"]["cause"]
        assert "queue pair " in cause, outcome.text()
        assert "no answer from the other end: retry counter exceeded (12)" in cause, outcome.text()
        assert "on rxe" in cause, outcome.text()
        assert "::ffff:10.9.0.1" in cause, outcome.text()
        assert "::ffff:10.9.0.2" in cause, outcome.text()


def _goes_on_and_ends_well(started: Run) -> None:
    _wait_for_turns(started, 10)
    (started.folder / "enough").touch()
    outcome = started.finish(60)
    assert [entry["error"] for entry in outcome.reports] == [None, None], outcome.text()


def check_a_cable_that_comes_back_at_once_heals() -> None:
    with _start(2) as started:
        _wait_for_turns(started, 5)
        shell("ip link set b2 down")
        time.sleep(0.5)
        shell("ip link set b2 up")
        _goes_on_and_ends_well(started)


def check_sums_are_right_though_packets_are_lost() -> None:
    shell("tc qdisc add dev v2 root netem limit 10000 loss 1%")
    try:
        with _start(2) as started:
            _wait_for_turns(started, 20)
            _goes_on_and_ends_well(started)
    finally:
        shell("tc qdisc del dev v2 root")


# This check must be the last one in a guest. It deletes a network interface, which removes its device.
def check_a_device_that_is_taken_away_is_named_at_both_ends() -> None:
    with _start(2) as started:
        _wait_for_turns(started, 5)
        shell("ip link delete v2")
        found = wait_done(started, [0, 1], 30)
        outcome = started.finish(30)
    for rank, entry in enumerate(found):
        named([entry], outcome, 1 - rank)
        cause = entry["attributes"]["cause"]
        # The kernel removes the device slowly. The other end may run out of retries first.
        is_gone = (
            "the RDMA device of rank 1, rxe2 port 1 (" in cause
            and "does not answer any more: it was removed" in cause
        )
        is_lost = "queue pair " in cause and "no answer from the other end: retry counter exceeded" in cause
        assert is_gone or is_lost, outcome.text()


if __name__ == "__main__":
    main(globals())
