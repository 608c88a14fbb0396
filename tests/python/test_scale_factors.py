"""Factors of reductions, over every algorithm and through servers."""

from __future__ import annotations

import pytest
from marks import slow
from ranks import ROOT, run

PROGRAM = ROOT / "tests" / "multiprocess" / "scale_factors.py"


@pytest.mark.parametrize(
    ("ranks", "algorithm", "more"),
    [
        (3, "ring", {}),
        (2, "direct", {"RDMACOLL_TRANSPORT": "tcp"}),
        slow(1, "auto", {}),
        slow(3, "direct", {}),
        slow(4, "one_shot", {}),
        slow(5, "recursive_doubling", {}),
        slow(3, "halving_doubling", {"RDMACOLL_COMPUTE_WORKERS": "2"}),
        slow(4, "two_level", {}),
    ],
)
def test_16_bit_floats_are_scaled_in_32_bits_and_rounded_once(ranks, algorithm, more):
    env = {"RDMACOLL_ALLREDUCE_ALGORITHM": algorithm, **more}
    assert run(PROGRAM, ranks, env=env).succeeded() == ["right"] * ranks


@pytest.mark.parametrize("placement", ["dedicated", slow("colocated")])
def test_servers_scale_in_32_bits_too(placement):
    env = {"RDMACOLL_MODE": "ps", "RDMACOLL_NUM_SERVERS": "1", "RDMACOLL_SERVER_PLACEMENT": placement}
    servers = 1 if placement == "dedicated" else 0
    reports = run(PROGRAM, 2 + servers, env=env).succeeded()
    assert reports[:2] == ["right"] * 2
