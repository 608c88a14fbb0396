"""Ranks on a kernel with pages of 64 KiB, which many machines with 64-bit ARM have."""

from __future__ import annotations

import pytest
from large_pages import large_pages
from ranks import ROOT, run

ENV = {"RDMACOLL_TRANSPORT": "shm"}


def test_ranks_share_memory():
    program = """
import mmap
import numpy as np, rdmacoll
from ranks import report
rdmacoll.init()
sums = []
for count in (1, 3_000, 30_000, 3_000_000, 3_000_000):
    result = rdmacoll.engine.allreduce(np.ones(count), rdmacoll.Sum)
    sums.append(float(result.min() + result.max()))
    result.fill(100)  # the next result may lie here
report([mmap.PAGESIZE, sums])
rdmacoll.shutdown()
"""
    outcome = run(program, 2, env={**ENV, **large_pages()}, deadline_s=60)
    assert outcome.succeeded() == [[64 << 10, [4.0] * 5]] * 2


@pytest.mark.slow  # every rank loads TensorFlow, which takes seconds
def test_ranks_share_results():
    program = ROOT / "tests" / "multiprocess" / "tf_shared_results.py"
    outcome = run(program, 3, arguments=["yes"], env={**ENV, **large_pages()}, deadline_s=300)
    assert all(len(report["done"]) > 4 for report in outcome.succeeded())
