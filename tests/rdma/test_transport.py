"""The conformance suite of the transports over real queue pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from suites import Builds

pytestmark = pytest.mark.rdma


@pytest.mark.needs_build("test")
def test_the_conformance_suite_passes_over_queue_pairs(
    builds: Builds, suite_passes: Callable[..., int], devices: list[str]
) -> None:
    program = builds.wait("test") / "conformance_tests"
    named = ",".join(devices)
    assert suite_passes(program, "*/rdma", timeout_s=400, RDMACOLL_TEST_DEVICES=named) >= 25
