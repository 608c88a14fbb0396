"""The conformance suite of the transports over real queue pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from suites import Builds

from rdma.conftest import REAL_DEVICES

pytestmark = pytest.mark.rdma


@pytest.mark.needs_build("test")
def test_the_conformance_suite_passes_over_queue_pairs(
    builds: Builds, suite_passes: Callable[..., int], devices: list[str]
) -> None:
    program = builds.wait("test") / "conformance_tests"
    named = ",".join(devices)
    assert suite_passes(program, "*/rdma", timeout_s=400, RDMACOLL_TEST_DEVICES=named) >= 25


# The guest with one processor cannot start these tests.
if not REAL_DEVICES:

    @pytest.mark.slow
    @pytest.mark.needs_build("sanitize")
    @pytest.mark.parametrize(
        ("suite", "pattern", "least"),
        [("verbs_tests", "-VerbsCable.*", 30), ("conformance_tests", "*/rdma", 50)],
    )
    def test_sanitizers_find_nothing_in_a_guest_of_two_processors(
        builds: Builds,
        suite_passes: Callable[..., int],
        devices: list[str],
        suite: str,
        pattern: str,
        least: int,
    ) -> None:
        program = builds.wait("sanitize") / suite
        named = ",".join(devices)
        passed = suite_passes(program, pattern, timeout_s=400, kernel="qemu", RDMACOLL_TEST_DEVICES=named)
        assert passed >= least
