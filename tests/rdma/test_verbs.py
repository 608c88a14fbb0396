"""Tests our verbs on the devices: the C++ program of tests/verbs, and the list of devices in Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from suites import Builds

from rdma.conftest import REAL_DEVICES, Runner

pytestmark = pytest.mark.rdma

_CABLE = "VerbsCable.*"  # these tests pull a cable, which only the guest has
_DEVICES = "import json; from rdmacoll._abi.library import load; print(json.dumps(load().devices({!r})))"


@pytest.fixture(scope="session")
def program(builds: Builds) -> Path:
    """Builds the program of tests/verbs and returns its path."""
    return builds.wait("test") / "verbs_tests"


@pytest.mark.needs_build("test")
def test_the_verbs_work(program: Path, suite_passes: Callable[..., int]) -> None:
    assert suite_passes(program, f"-{_CABLE}") >= 30


if not REAL_DEVICES:

    @pytest.mark.needs_build("test")
    def test_a_pulled_cable_is_an_event_of_the_port(program: Path, suite_passes: Callable[..., int]) -> None:
        assert suite_passes(program, _CABLE) == 1


def test_python_is_told_the_devices_and_the_choice(on_devices: Runner, devices: list[str]) -> None:
    names = sorted(set(devices))
    wish = f"RDMACOLL_DEVICE={','.join(names)}"
    result = on_devices([sys.executable, "-c", _DEVICES.format(wish)])
    assert result.code == 0, result.stderr.decode()
    listing = json.loads(result.stdout)
    assert listing["error"] is None
    assert listing["choice_error"] is None
    assert set(names) <= {device["name"] for device in listing["devices"]}
    assert [rail["device"] for rail in listing["rails"]] == names
    if not REAL_DEVICES:
        assert [rail["gid"] for rail in listing["rails"]] == ["::ffff:10.9.0.1", "::ffff:10.9.0.2"]
        assert all(device["software"] for device in listing["devices"])
