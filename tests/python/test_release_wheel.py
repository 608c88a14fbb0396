"""Old clusters can load the release wheel, which zig builds from the source archive.

The command `make check-wheel` adds trainings in fresh environments.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT


def make(*arguments: str) -> str:
    result = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    text = result.stdout + result.stderr
    assert result.returncode == 0, text[-8000:]
    return text


def test_the_build_of_the_wheel_says_beforehand_what_takes_minutes() -> None:
    lines = make("--dry-run", "wheel").splitlines()
    said, archive, wheel = (
        next(number for number, line in enumerate(lines) if part in line)
        for part in ('echo "packing the sources, then', " -m build ", " -m pip wheel --verbose ")
    )
    assert said < archive < wheel


@pytest.mark.slow
def test_the_release_wheel_has_no_findings_and_runs_with_numpy_alone(tmp_path: Path) -> None:
    make("wheel")
    out = tmp_path / "check.json"
    here = f"numpy-{sys.version_info[0]}.{sys.version_info[1]}"
    text = make("check-wheel", f"ARGS=--environments {here} --json {out}")
    found = json.loads(out.read_text())
    assert found["ok"], text
    assert {library["name"] for library in found["libraries"]} == {
        "librdmacoll.so",
        "librdmacoll_tf.so",
        "fast_calls.abi3.so",
    }
    (trial,) = found["environments"]
    assert trial["result"]["cases"] > 1000, trial
