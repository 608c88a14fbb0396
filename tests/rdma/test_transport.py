"""The conformance suite of the transports over real queue pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.rdma


def test_the_conformance_suite_passes_over_queue_pairs(
    build_suite: Callable[[str], Path], suite_passes: Callable[..., int], devices: list[str]
) -> None:
    program = build_suite("conformance_tests")
    named = ",".join(devices)
    assert suite_passes(program, "*/rdma", timeout_s=400, RDMACOLL_TEST_DEVICES=named) >= 25
