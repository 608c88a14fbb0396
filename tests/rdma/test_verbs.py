"""Our own verbs on the devices: the C++ program of tests/verbs, and what Python is told of the devices."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rdma.conftest import REAL_DEVICES, Runner

pytestmark = pytest.mark.rdma

ROOT = Path(__file__).resolve().parents[2]
_CABLE = "VerbsCable.*"  # pulls a cable, which only the guest's devices allow
_DEVICES = "import json; from rdmacoll.engine.library import load; print(json.dumps(load().devices({!r})))"


@pytest.fixture(scope="session")
def program() -> Path:
    """The program of tests/verbs, built."""
    target = ROOT / "build" / "test"
    configure = ["cmake", "-S", ROOT, "-B", target, "-DCMAKE_BUILD_TYPE=Release", "-DRDMACOLL_TESTS=ON"]
    if not (target / "CMakeCache.txt").exists() and shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    jobs = str(len(os.sched_getaffinity(0)))
    build = ["cmake", "--build", target, "--target", "verbs_tests", "--parallel", jobs]
    for command in (configure, build):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return target / "verbs_tests"


def _tests_passed(on_devices: Runner, program: Path, pattern: str) -> int:
    result = on_devices([str(program), f"--gtest_filter={pattern}"])
    text = (result.stdout + result.stderr).decode(errors="replace")
    assert result.code == 0, text[-12000:]
    assert "SKIPPED" not in text
    found = re.search(r"\[  PASSED  \] (\d+) test", text)
    assert found, text
    return int(found[1])


def test_the_verbs_work(on_devices: Runner, program: Path) -> None:
    assert _tests_passed(on_devices, program, f"-{_CABLE}") >= 30


if not REAL_DEVICES:

    def test_a_pulled_cable_is_an_event_of_the_port(on_devices: Runner, program: Path) -> None:
        assert _tests_passed(on_devices, program, _CABLE) == 1


def test_python_is_told_the_devices_and_the_choice(on_devices: Runner, devices: list[str]) -> None:
    names = sorted(set(devices))
    wish = f"RDMACOLL_DEVICE={','.join(names)}"
    result = on_devices([sys.executable, "-c", _DEVICES.format(wish)])
    assert result.code == 0, result.stderr.decode()
    told = json.loads(result.stdout)
    assert told["error"] is None
    assert told["choice_error"] is None
    assert set(names) <= {device["name"] for device in told["devices"]}
    assert [rail["device"] for rail in told["rails"]] == names
    if not REAL_DEVICES:
        assert [rail["gid"] for rail in told["rails"]] == ["::ffff:10.9.0.1", "::ffff:10.9.0.2"]
        assert all(device["software"] for device in told["devices"])
