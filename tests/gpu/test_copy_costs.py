"""Copies between host and GPU are measured when a GPU is first used, and segments follow from that."""

from __future__ import annotations

import pytest
from places import Place, places
from rank_program import program
from ranks import run

# Sums of two ranks have one value, whatever segments they travel in: before the measurement, and after it.
SUMS = """
import gpu_arrays
cupy = gpu_arrays.cupy()
values = [np.random.default_rng(rank).standard_normal(900_001).astype(np.float32) for rank in range(2)]
array = cupy.array(values[me])
for turn in range(8):
    total = engine.allreduce(array, rdmacoll.Sum)
    assert (total.get() == values[0] + values[1]).all(), turn
    time.sleep(0.02)
"""


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("tune", ["start", "off"])
def test_copies_are_measured_once_unless_that_is_off(place: Place, tune: str) -> None:
    environ = place.environment(RDMACOLL_LOG="info", RDMACOLL_TUNE=tune)
    outcome = run(program(SUMS), 2, env=environ, deadline_s=100)
    assert [rank["error"] for rank in outcome.succeeded()] == [None, None]
    for rank in outcome.ranks:
        measured = rank.output.count("a copy between pinned memory and the GPU cuda:0")
        unknown = rank.output.count("the costs of copies to the GPU cuda:0")
        assert measured + unknown == (1 if tune == "start" else 0), rank.output
