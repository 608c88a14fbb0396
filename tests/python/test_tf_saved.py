"""Saved graphs with rdmacoll's ops load before a program calls any of these ops."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import ROOT, run

PROGRAM = ROOT / "tests" / "multiprocess" / "tf_saved_graphs.py"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run(PROGRAM, 1, preloaded=True, arguments=[str(folder), "save"]).succeeded()
    return folder


@pytest.mark.parametrize("way", ["import", "keras", "init"])
def test_saved_graphs_load_after(saved: Path, way: str) -> None:
    assert run(PROGRAM, 1, preloaded=True, arguments=[str(saved), way]).succeeded() == [{"done": way}]
