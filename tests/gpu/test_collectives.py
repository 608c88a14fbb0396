"""Collectives on arrays in GPU memory equal numpy, on a GPU that the ranks share and on the fake driver."""

from __future__ import annotations

import secrets

import pytest
from places import Place, places
from ranks import ROOT, run

from rdmacoll.cli.references import dtype_of
from rdmacoll.operators import CODES

PROGRAM = ROOT / "tests" / "multiprocess" / "device_collectives.py"
PLANS = {"RDMACOLL_PLAN_REPEATS": "2"}  # operations that repeat twice become a plan


def run_numpy_program(place: Place, size: int, **extra: str) -> None:
    """Runs every collective with every dtype and operator, as tests of host memory do."""
    seed = str(secrets.randbits(24))
    print("seed", seed)
    environ = place.environment(**extra)
    arguments = ["numpy_collectives.py", seed]
    found = run(PROGRAM, size, arguments=arguments, env=environ, deadline_s=500).succeeded()
    assert [entry["rank"] for entry in found] == list(range(size))
    assert all(entry["cases"] > 250 for entry in found)
    assert all(entry["dtypes"] == [name for name in CODES if dtype_of(name) is not None] for entry in found)


@pytest.mark.parametrize("place", places(is_fake_slow=True))
@pytest.mark.parametrize("size", [2, 4], ids=["two", "four"])
def test_collectives_of_ranks_that_share_a_gpu_equal_numpy(place: Place, size: int) -> None:
    run_numpy_program(place, size)


@pytest.mark.parametrize("place", places(is_fake_slow=True))
def test_collectives_over_tcp_equal_numpy(place: Place) -> None:
    run_numpy_program(place, 2, RDMACOLL_TRANSPORT="tcp")


@pytest.mark.parametrize("place", places(is_fake_slow=True))
def test_ranks_with_host_memory_and_with_gpu_memory_have_the_bits_of_canonical_order(place: Place) -> None:
    run_numpy_program(place, 2, DEVICE_RANKS="1", RDMACOLL_ORDER="canonical")


@pytest.mark.parametrize("place", places(is_fake_slow=True))
def test_process_sets_on_a_gpu_keep_their_promises(place: Place) -> None:
    seed = str(secrets.randbits(24))
    print("seed", seed)
    arguments = ["process_sets.py", seed, "3"]
    run(PROGRAM, 3, arguments=arguments, env=place.environment(**PLANS), deadline_s=300).succeeded()


@pytest.mark.parametrize("place", places(is_fake_slow=True))
def test_ranks_that_join_give_zeros_to_arrays_on_a_gpu(place: Place) -> None:
    run(PROGRAM, 3, arguments=["joins.py"], env=place.environment(**PLANS), deadline_s=300).succeeded()
