"""The measurement of ranks that share a GPU checks its results, and tells each of its ratios."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from places import Place, own_places
from ranks import ROOT, clean_environment

RATIOS = {
    "staged": {"broadcast, GPU to host", "broadcast, host to GPU", "broadcast, GPU to GPU"},
    "gradients": {"allreduce, 161 arrays, 0 MB", "allreduce, 161 arrays, 2 MB"},
    "small": {"allreduce of 8 B, GPU"},
}


def check_part(place: Place, part: str, tmp_path: Path) -> None:
    path, scale = tmp_path / "found.json", "0.02" if place.is_real else "0.001"
    command = [sys.executable, "benchmarks/gpu.py", "--only", part, "--scale", scale, "--json", str(path)]
    environ = clean_environment(place.environment())
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert found["gpu"].startswith("NVIDIA") or place.is_real
    with_ratio = {row["measured"] for row in found["rows"] if "ratio" in row}
    if place.is_real:  # its arrays are larger
        assert len(with_ratio) == len(RATIOS[part])
    else:
        assert with_ratio == RATIOS[part]
    assert all(row["value"] > 0 for row in found["rows"])


def test_a_service_that_does_not_start_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nexit 3\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    names = runpy.run_path(str(ROOT / "benchmarks" / "gpu.py"))
    rows = [{"measured": "an earlier part"}]
    results = {"gpu": "", "rows": rows, "failed": []}
    names["_measure_with_mps"](results, 0.001, tmp_path, {"": {}})
    assert results["rows"] == [{"measured": "an earlier part"}]
    assert len(results["failed"]) == 1
    assert "returned non-zero exit status 3. Run without --mps." in results["failed"][0]
    assert results["failed"][0] in capsys.readouterr().out


@pytest.mark.parametrize("place", own_places())
def test_the_measurement_of_small_allreduces_has_its_ratio(place: Place, tmp_path: Path) -> None:
    check_part(place, "small", tmp_path)


@pytest.mark.parametrize("place", own_places(is_fake_slow=True))
@pytest.mark.parametrize("part", ["staged", "gradients"])
def test_the_measurement_of_large_transfers_has_its_ratios(place: Place, part: str, tmp_path: Path) -> None:
    check_part(place, part, tmp_path)
