"""Another build of rdmacoll as a peer of the benchmarks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_lines import command_line
from marks import slow
from ranks import ROOT

from rdmacoll.benchmarks import builds, judge
from rdmacoll.benchmarks.turns import Burst, Cell
from rdmacoll.errors import ConfigError

QUICK = ["--turns", "1", "--burst", "0.001", "--foreign", "1"]
COMPARE = ["bench", "compare", "--ours", "rdmacoll", "--peers", "", "--ranks", "2", "--links", "machine"]


def cell(*seconds: float, quiet: bool = True) -> Cell:
    return Cell([Burst([each], 0.0, 0.0, quiet) for each in seconds])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A built tree whose package says version 9.9.9."""
    tree = tmp_path / "clone"
    shutil.copytree(ROOT / "rdmacoll", tree / "rdmacoll", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "rdmacoll" / "version.py").write_text('__version__ = "9.9.9"\n')
    return tree


def test_another_build_has_a_time_and_a_ratio_in_every_cell(tmp_path, clone):
    library = clone / "rdmacoll" / "lib" / "librdmacoll.so"
    code, found, output = command_line(
        tmp_path, *COMPARE, "--sizes", "8,64K", "--library", str(library), *QUICK
    )
    assert code == 0, output
    (part,) = found["parts"]
    versions = {name: facts.get("version") for name, facts in part["libraries"].items()}
    assert versions["rdmacoll-build"] == "9.9.9" != versions["rdmacoll"]
    assert {facts.get("transport") for facts in part["libraries"].values()} == {"shm", None}
    assert [set(row["builds"]) for row in part["rows"]] == [{"rdmacoll", "rdmacoll plain"}, {"rdmacoll"}]
    assert found["build"]["path"] == str(clone)
    assert len(found["build"]["ratios"]) == 3
    assert found["build"]["geometric_mean"] > 0
    assert found["left_out"] == []
    assert found["wrong"] == 0
    assert found["processor"] in output.split("\n")[0]
    assert "geometric mean of 3 ratios" in output


@pytest.mark.parametrize("variant", [slow("step"), slow("ps-training")])
def test_steps_and_trainings_have_it_too(tmp_path, clone, variant):
    options = {
        "step": [
            "--peers",
            "",
            "--buckets",
            "25M",
            "--backward-ms",
            "5",
            "--backward",
            "wait",
            "--threads",
            "0",
        ],
        "ps-training": ["--models", "trivial", "--image", "8", "--ours", "rdmacoll-sync,rdmacoll-async"],
    }[variant]
    code, found, output = command_line(tmp_path, "bench", variant, *options, "--library", str(clone), *QUICK)
    assert code == 0, output
    assert (
        len({ratio["what"] for ratio in found["build"]["ratios"]}) == {"step": 3, "ps-training": 2}[variant]
    )
    assert "geometric mean of" in output


def test_a_path_without_a_build_is_one_sentence(tmp_path):
    code, found, output = command_line(tmp_path, *COMPARE, "--library", str(tmp_path))
    assert (code, found) == (2, None)
    assert f"--library {tmp_path} has no rdmacoll/lib/librdmacoll.so: give a clone" in output


def test_a_build_that_does_not_start_is_left_out_and_is_a_failure(tmp_path, clone):
    (clone / "rdmacoll" / "lib" / "librdmacoll.so").write_bytes(b"no library")
    code, found, output = command_line(tmp_path, *COMPARE, "--sizes", "8", "--library", str(clone), *QUICK)
    assert code == 1, output
    (sentence,) = found["left_out"]
    assert sentence.startswith("other build did not start: ")
    assert "the other build has no result" in output


def test_the_tree_of_a_library_is_found(clone):
    assert builds.tree_of(clone) == builds.tree_of(clone / "rdmacoll" / "lib" / "librdmacoll.so") == clone
    with pytest.raises(ConfigError):
        builds.tree_of(Path("/librdmacoll.so"))


def test_ratios_are_of_the_same_work_and_no_peer_is_a_build():
    cells = {
        "rdmacoll": cell(1.0, 1.0),
        "rdmacoll-build": cell(2.0, 4.0, quiet=False),
        "rdmacoll plain": cell(1.0),
        "openmpi": cell(9.0, 9.0),
    }
    assert builds.ratios_to_build(cells) == {"rdmacoll": 3.0}
    row = judge.compared(8, {name: cells[name] for name in cells if "plain" not in name})
    assert row["ratio"] == {"openmpi": 9.0}
    assert row["best"]["numpy"]["peer"] == "openmpi"
    row["builds"] = builds.ratios_to_build(cells)
    assert [str(each) for each in builds.ratios_of("8", row)] == ["3.00 (L)"]
