"""`rdmacoll doctor` on RDMA devices: in a guest, or on this machine with DEVICE=..."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rdma.conftest import REAL_DEVICES, Runner
from rdma.limits import limited

pytestmark = pytest.mark.rdma

_ROOT = Path(__file__).resolve().parents[2]
# The script prints the file of --json, since files that a guest writes are lost.
_SCRIPT = 'f=$(mktemp); "$0" -m rdmacoll doctor --json "$f"; echo "exit $?"; cat "$f"; rm "$f"'
# The limit is less than the pool needs. The guest's user is root.
_LIMITED = limited(65536, as_root=not REAL_DEVICES or os.geteuid() == 0)


def _doctor(on_devices: Runner, *prefix: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    environ = [f"{name}={value}" for name, value in {"PYTHONPATH": str(_ROOT), **variables}.items()]
    result = on_devices([*prefix, "env", *environ, "bash", "-c", _SCRIPT, sys.executable])
    page, _, rest = result.stdout.decode().partition("exit ")
    code, _, text = rest.partition("\n")
    assert text, result.stderr.decode()
    return int(code), json.loads(text), page


def _finding(written: dict[str, Any], name: str) -> dict[str, str]:
    (found,) = (finding for finding in written["findings"] if finding["name"] == name)
    assert isinstance(found, dict)
    return found


def test_every_device_is_on_the_page(on_devices: Runner, devices: list[str]) -> None:
    _, written, page = _doctor(on_devices)
    for device in set(devices):
        assert device in _finding(written, "devices")["seen"]
        assert f"{device} port 1" in page
    assert _finding(written, "choice")["state"] in ("ok", "note")
    assert _finding(written, "views")["state"] == "ok"
    assert "the engine and sysfs" in _finding(written, "views")["seen"]
    assert _finding(written, "device files")["state"] == "ok"


def test_the_gid_of_the_address_is_chosen_on_the_device_that_is_named(
    on_devices: Runner, devices: list[str]
) -> None:
    code, written, page = _doctor(on_devices, RDMACOLL_DEVICE=devices[1])
    finding = _finding(written, "choice")
    assert f"{devices[1]} port 1" in finding["seen"], page
    if not REAL_DEVICES:
        assert code == 0, page
        assert re.search(r", GID \d+ ::ffff:10\.9\.0\.2, in software", finding["seen"]), page
        assert "software" in finding["why"]


def test_a_port_that_is_not_there_is_refused_with_those_that_are(
    on_devices: Runner, devices: list[str]
) -> None:
    code, written, page = _doctor(on_devices, RDMACOLL_DEVICE=f"{devices[0]}:77")
    assert code == 1
    assert f"{devices[0]} (port 1 can be used)" in _finding(written, "choice")["seen"], page


def test_memory_that_cannot_be_locked_is_a_problem(on_devices: Runner) -> None:
    code, written, _ = _doctor(on_devices, *_LIMITED)
    finding = _finding(written, "locked memory")
    assert (code, finding["state"]) == (1, "problem")
    assert "64 KiB" in finding["seen"]
    assert "memlock" in finding["cure"]
