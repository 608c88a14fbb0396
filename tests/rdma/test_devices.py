"""Tests the devices with the tools of rdma-core, in a guest, or on this machine with DEVICE=..."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from rdma.conftest import REAL_DEVICES, Runner

pytestmark = pytest.mark.rdma

# The program is passed as text, since another user may not be allowed to read the file.
PINGPONG = ["-c", Path(__file__).with_name("pingpong.py").read_text()]
# The limit is enough for a small region and for the queues, which adapters pin too. A large region exceeds
# it.
_MEMLOCK = ["prlimit", "--memlock=1048576:1048576"]
_NOBODY = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]


def test_every_device_has_an_active_port(on_devices: Runner, devices: list[str]) -> None:
    for device in sorted(set(devices)):
        result = on_devices(["ibv_devinfo", "-d", device])
        assert result.code == 0, result.stderr
        assert b"PORT_ACTIVE" in result.stdout


def test_two_hosts_talk_and_both_devices_count_it(on_devices: Runner, devices: list[str]) -> None:
    result = on_devices([sys.executable, *PINGPONG, devices[0], devices[1]])
    assert result.code == 0, result.stderr.decode()
    report = json.loads(result.stdout)
    assert report["codes"] == [0, 0]
    if not REAL_DEVICES:
        # ibv_rc_pingpong sends 1000 messages of 4096 bytes each way. All of them must pass this device.
        for device in devices:
            counted = report["counted"][device]
            assert counted["sent_pkts"] >= 1000, counted
            assert counted["rcvd_pkts"] >= 1000, counted


@pytest.mark.parametrize(("size", "fits"), [(4096, True), (1 << 22, False)])
def test_an_unprivileged_user_pins_no_more_than_memlock(
    size: int, fits: bool, on_devices: Runner, devices: list[str]
) -> None:
    nobody = _NOBODY if not REAL_DEVICES or os.geteuid() == 0 else []
    result = on_devices(
        [*_MEMLOCK, *nobody, "/usr/bin/python3", *PINGPONG, devices[0], devices[1], "--size", str(size)]
    )
    assert (result.code == 0) == fits, result.stderr.decode()
    assert (b"Couldn't register MR" in result.stderr) == (not fits), result.stderr.decode()
