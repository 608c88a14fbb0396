"""Fixtures that run this folder's tests in a guest, or on devices of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from rdma import guest
from rdma.machine import Options, Result

# `make test-rdma DEVICE=...` sets this variable: one device, or several with commas between them.
REAL_DEVICES = os.environ.get("RDMACOLL_TEST_DEVICE", "")

# Runs on real devices skip the tests of the guest itself.
collect_ignore = ["test_guest.py"] if REAL_DEVICES else []

ROOT = Path(__file__).resolve().parents[2]


class Runner(Protocol):
    """Runs a command beside the devices. Hosts, memory and kernel are settings of a guest."""

    def __call__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float = 120,
        hosts: int = 2,
        memory: str = "2G",
        kernel: str = "auto",
    ) -> Result: ...


# Runs checks of a scene: (module, checks..., options of the runner). Without names, it runs all checks. The
# option `modules` adds a folder to PYTHONPATH.
SceneRunner = Callable[..., None]


@pytest.fixture(scope="session")
def devices() -> list[str]:
    """Returns the devices for the tests, at least two entries. A single device is both ends."""
    named = REAL_DEVICES.split(",") if REAL_DEVICES else ["rxe1", "rxe2"]
    return named * 2 if len(named) == 1 else named


@pytest.fixture(scope="session")
def guest_is_ready(request: pytest.FixtureRequest) -> None:
    """Puts the guest's kernel into the cache and shows the progress of its build."""
    if not REAL_DEVICES:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            guest.prepare("auto")


@pytest.fixture(scope="session")
def on_devices(guest_is_ready: None) -> Runner:
    """Runs a command beside the devices."""

    def run(
        command: Sequence[str],
        *,
        timeout_s: float = 120,
        hosts: int = 2,
        memory: str = "2G",
        kernel: str = "auto",
    ) -> Result:
        if not REAL_DEVICES:
            return guest.run(command, Options(timeout_s=timeout_s, hosts=hosts, memory=memory, kernel=kernel))
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=timeout_s)
        seconds = time.monotonic() - begin
        return Result(done.returncode, done.stdout, done.stderr, "", "this machine", seconds)

    return run


@pytest.fixture(scope="session")
def run_scene(on_devices: Runner) -> SceneRunner:
    """Runs a scene: a program of this folder that starts ranks beside the devices and checks them there."""

    def run(
        scene: str,
        *checks: str,
        timeout_s: float = 120,
        hosts: int = 2,
        memory: str = "2G",
        modules: Path | None = None,
    ) -> None:
        path = os.pathsep.join(map(str, [ROOT, ROOT / "tests", *([modules] if modules else [])]))
        command = ["env", f"PYTHONPATH={path}", sys.executable, "-m", f"rdma.{scene}", *checks]
        result = on_devices(command, timeout_s=timeout_s, hosts=hosts, memory=memory)
        text = (result.stdout + result.stderr).decode(errors="replace")
        assert result.code == 0, text[-12000:]
        passed = re.findall(r"^passed (\w+) ", text, re.MULTILINE)
        assert passed, text[-12000:]
        assert not checks or passed == list(checks), text[-12000:]

    return run


@pytest.fixture(scope="session")
def suite_passes(on_devices: Runner) -> Callable[..., int]:
    """Runs the tests of a C++ suite that match a pattern. Returns how many passed; none may be skipped."""

    def run(
        program: Path, pattern: str, *, timeout_s: float = 120, kernel: str = "auto", **environ: str
    ) -> int:
        named = [f"{name}={value}" for name, value in environ.items()]
        command = ["env", *named, str(program), f"--gtest_filter={pattern}"]
        result = on_devices(command, timeout_s=timeout_s, kernel=kernel)
        text = (result.stdout + result.stderr).decode(errors="replace")
        assert result.code == 0, text[-12000:]
        assert "SKIPPED" not in text
        found = re.search(r"\[  PASSED  \] (\d+) test", text)
        assert found, text
        return int(found[1])

    return run
