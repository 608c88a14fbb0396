"""The drivers on which the facts are tested: the fake one, and that of this machine if it has one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from cuda_calls import Cuda
from cuda_sim_build import fake_driver

REAL = "libcuda.so.1"


def drivers() -> list[object]:
    try:
        ctypes.CDLL(REAL)
    except OSError:
        return ["fake"]
    return ["fake", pytest.param(REAL, marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=drivers())
def library(request: pytest.FixtureRequest) -> str:
    return str(fake_driver()) if request.param == "fake" else str(request.param)


@pytest.fixture
def cuda(library: str) -> Iterator[Cuda]:
    """A driver with a current context, which ends with the test."""
    made = Cuda(library)
    yield made
    made.close()
