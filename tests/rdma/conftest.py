"""Where the tests of this folder run: in a guest, or on devices of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest

from rdma import guest
from rdma.machine import Options, Result

# Set by `make test-rdma DEVICE=...`: one device, or several with commas between.
REAL_DEVICES = os.environ.get("RDMACOLL_TEST_DEVICE", "")

# The guest itself is of no interest where there are real devices.
collect_ignore = ["test_guest.py"] if REAL_DEVICES else []

Runner = Callable[[Sequence[str]], Result]


@pytest.fixture(scope="session")
def devices() -> list[str]:
    """The devices that tests use, two entries at least; a single device is both ends."""
    named = REAL_DEVICES.split(",") if REAL_DEVICES else ["rxe1", "rxe2"]
    return named * 2 if len(named) == 1 else named


@pytest.fixture(scope="session")
def guest_is_ready(request: pytest.FixtureRequest) -> None:
    """The guest's kernel is in the cache; who waits for it sees how far it is."""
    if not REAL_DEVICES:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            guest.prepare("auto")


@pytest.fixture(scope="session")
def on_devices(guest_is_ready: None) -> Runner:
    """Runs a command where the devices are."""

    def run(command: Sequence[str]) -> Result:
        if not REAL_DEVICES:
            return guest.run(command, Options(timeout_s=120))
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=120)
        seconds = time.monotonic() - begin
        return Result(done.returncode, done.stdout, done.stderr, "", "this machine", seconds)

    return run
