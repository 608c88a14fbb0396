"""The drivers on which the facts are tested: the fake one, and that of this machine if it has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from cuda_calls import Cuda
from cuda_sim_build import fake_driver
from places import REAL, has_real


def drivers() -> list[object]:
    fakes: list[object] = ["fake k80", "fake h100"]
    return [*fakes, pytest.param(REAL, marks=pytest.mark.gpu)] if has_real() else fakes


@pytest.fixture(scope="module", params=drivers())
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a driver. Each copy of the fake one plays its own machine."""
    kind, *machine = str(request.param).split()
    if kind != "fake":
        yield kind
        return
    copy = tmp_path_factory.mktemp(machine[0]) / "libcuda_sim.so"
    shutil.copy(fake_driver(), copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_SIM_MACHINE", machine[0])
        yield str(copy)


@pytest.fixture
def cuda(library: str) -> Iterator[Cuda]:
    """A driver with a current context, which ends with the test."""
    made = Cuda(library)
    yield made
    made.close()
