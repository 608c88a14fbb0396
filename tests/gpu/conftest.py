"""The drivers on which the facts are tested: the fake one, and that of this machine if it has one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
import table
from cuda_calls import Cuda
from cuda_sim_build import fake_driver
from places import REAL, has_real


def drivers() -> list[object]:
    fakes: list[object] = ["fake k80", "fake h100"]
    return [*fakes, pytest.param(REAL, marks=pytest.mark.gpu)] if has_real() else fakes


@pytest.fixture(scope="module", params=drivers())
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a driver. Each copy of the fake one emulates its own machine."""
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


ON_A_GPU: pytest.StashKey[set[str]] = pytest.StashKey()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr == "gpu" and not has_real():
        raise pytest.UsageError(f"{REAL} shows no GPU: these tests need a GPU of NVIDIA and its driver.")
    config.stash[ON_A_GPU] = {item.nodeid for item in items if item.get_closest_marker("gpu")}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was tested on a real GPU. The variable GPU_JSON names a file for the same as JSON."""
    chosen = terminalreporter.config.stash.get(ON_A_GPU, set())
    everything = [one for found in terminalreporter.stats.values() for one in found]
    reports = [one for one in everything if isinstance(one, pytest.TestReport) and one.nodeid in chosen]
    if not reports:
        return
    found = table.rows(reports)
    terminalreporter.section(f"tested on {table.card()['gpu']}")
    for line in table.lines(found):
        terminalreporter.write_line(line)
    if os.environ.get("GPU_JSON"):
        table.write(os.environ["GPU_JSON"], found, reports)
