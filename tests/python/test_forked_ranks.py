"""Ranks that are forked from a process that has imported rdmacoll are like new ones."""

from __future__ import annotations

import os

import pytest
from ranks import run

PROGRAM = """
import mmap, os
import numpy as np, rdmacoll
from ranks import report
mapped = mmap.mmap(-1, 1 << 28)
address = np.frombuffer(mapped, np.uint8).ctypes.data
rdmacoll.init()
report({"address": address, "parent": os.getppid(), "variable": os.environ.get("OMP_NUM_THREADS")})
"""


def test_forked_ranks_have_addresses_of_their_own() -> None:
    reports = run(PROGRAM, 4).succeeded()
    assert os.getpid() not in {entry["parent"] for entry in reports}
    assert len({entry["address"] for entry in reports}) == 4


@pytest.mark.parametrize("options", [{"cold": True}, {"env": {"OMP_NUM_THREADS": "2"}}])
def test_ranks_are_cold_if_asked_and_with_variables_that_imports_read(options) -> None:
    for entry in run(PROGRAM, 2, **options).succeeded():
        assert entry["parent"] == os.getpid()
        assert entry["variable"] == options.get("env", {}).get("OMP_NUM_THREADS", "1")
