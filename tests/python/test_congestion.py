"""The congestion control of TCP: what `rdmacoll doctor` says of it, and that ranks get what they ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ranks import run
from test_doctor import PLAIN, found, settings

from rdmacoll.cli import doctor_gather
from rdmacoll.cli.doctor_facts import Congestion, Machine

BBR = replace(PLAIN, congestion=Congestion("bbr", ("bbr", "reno")))


@pytest.mark.parametrize(
    ("machine", "state", "says"),
    [
        (replace(PLAIN, congestion=Congestion("cubic", ("reno", "cubic"))), "ok", ["cubic"]),
        (BBR, "note", ["bbr", "RDMACOLL_TCP_CONGESTION=reno on all ranks"]),
        (replace(BBR, settings=settings(RDMACOLL_TCP_CONGESTION="reno")), "ok", ["reno", "bbr"]),
        (replace(BBR, congestion=Congestion("bbr2", ("bbr", "bbr2"))), "note", ["'bbr bbr2 reno'"]),
        (replace(PLAIN, settings=settings(RDMACOLL_TCP_CONGESTION="bbr")), "note", ["=reno on all ranks"]),
        (
            replace(
                PLAIN,
                settings=settings(RDMACOLL_TCP_CONGESTION="cubic"),
                congestion=Congestion("bbr", ("bbr", "reno"), "Operation not permitted"),
            ),
            "problem",
            ["cubic", "not permitted", "bbr reno"],
        ),
    ],
)
def test_bbr_gets_a_note(machine: Machine, state: str, says: list[str]) -> None:
    (finding,) = found(machine, "TCP")
    assert finding.state == state
    for words in says:
        assert words in " ".join(finding.fields().values())


def test_facts(tmp_path: Path) -> None:
    ipv4 = tmp_path / "proc/sys/net/ipv4"
    ipv4.mkdir(parents=True)
    (ipv4 / "tcp_congestion_control").write_text("bbr\n")
    (ipv4 / "tcp_allowed_congestion_control").write_text("reno bbr\n")
    assert doctor_gather.congestion(tmp_path / "proc", "") == Congestion("bbr", ("reno", "bbr"))
    assert doctor_gather.congestion(tmp_path, "reno") == Congestion()
    refused = doctor_gather.congestion(tmp_path, "nonesuch")
    assert refused == Congestion(refusal="No such file or directory")


# Reports the congestion control of each TCP connection of the rank.
SENDERS = """
import os, socket, time
import numpy as np
import rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init()
result = engine.allreduce(np.ones(100_000, np.float32), op=rdmacoll.Sum)
assert result.min() == result.max() == rdmacoll.size()

def controls():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=int(number))
        except OSError:
            continue  # no socket, or closed by now
        try:
            one.getpeername()
            if one.family in (socket.AF_INET, socket.AF_INET6):
                control = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                found.append(control.rstrip(b"\\0").decode())
        except OSError:
            pass
        finally:
            one.detach()  # another object owns the descriptor
    return sorted(found)

end = time.monotonic() + 30
while (found := controls()).count("reno") < 4 and time.monotonic() < end:  # the second streams come later
    time.sleep(0.01)
report(found)
engine.barrier()  # a rank that is done closes its connections
rdmacoll.shutdown()
"""


def test_ranks_send_by_the_one_that_is_asked_for() -> None:
    env = {"RDMACOLL_TRANSPORT": "tcp", "RDMACOLL_TCP_STREAMS": "2", "RDMACOLL_TCP_CONGESTION": "reno"}
    for controls in run(SENDERS, 3, env=env).succeeded():
        assert controls.count("reno") == 4, controls


def test_one_that_is_not_there_is_named_with_those_that_are() -> None:
    env = {"RDMACOLL_TRANSPORT": "tcp", "RDMACOLL_TCP_CONGESTION": "nonesuch"}
    outcome = run("import rdmacoll\nrdmacoll.init()\n", 2, env=env)
    for rank in outcome.ranks:
        assert rank.code == 1
        assert "RDMACOLL_TCP_CONGESTION=nonesuch: the kernel does not have it" in rank.output
        assert "reno" in rank.output
