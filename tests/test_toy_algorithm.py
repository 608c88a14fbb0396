"""A new algorithm is one file and one row: commands, settings, the simulator and documents know it then."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import command_line
from suites import ROOT, cores

TREE = ROOT / "build" / "toy_algorithm" / "tree"
BUILD = TREE / "build" / "release"
TABLE = "cpp/collectives/algorithms.cc"
SOURCES = ("CMakeLists.txt", "cpp", "rdmacoll", "release")


def _write(path: Path, content: bytes) -> None:
    """Writes the file if it differs, so that little is rebuilt."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _copy_with_toy() -> None:
    """Copies the tree, with one more file and one more row of the table."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SOURCES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    contents = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).is_file()}
    toy = (ROOT / "tests/toy_algorithm/toy_allreduce.cc").read_bytes()
    contents["cpp/collectives/toy_allreduce.cc"] = toy
    row = re.search(rb"^  ROW\(\w+\) *\\\n", contents[TABLE], re.MULTILINE)
    assert row, f"{TABLE} has no rows"
    contents[TABLE] = contents[TABLE].replace(row[0], row[0] + b"  ROW(toy) \\\n", 1)
    for name in SOURCES:
        for old in (TREE / name).rglob("*"):
            if (
                old.is_file()
                and str(old.relative_to(TREE)) not in contents
                and old.suffix in (".cc", ".h", ".py")
            ):
                old.unlink()
    for name, content in contents.items():
        _write(TREE / name, content)


@pytest.fixture(scope="module")
def built() -> None:
    """The copy of the tree is built."""
    _copy_with_toy()
    variables = {**os.environ, "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    library = TREE / "rdmacoll" / "lib"
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DRDMACOLL_LTO=OFF",
        f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={library}",
    ]
    build = ["cmake", "--build", BUILD, "--parallel", str(cores()), "--target", "rdmacoll"]
    for command in (["cmake", "-S", TREE, "-B", BUILD, *generator, *options], build):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.fixture
def environment(built: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables with which the commands run the copy. Python looks for modules in its folder first."""
    monkeypatch.chdir(TREE)
    return {"PYTHONPATH": str(TREE)}


@pytest.mark.slow
def test_plan_shows_its_cost_and_steps(tmp_path: Path, environment: dict[str, str]) -> None:
    words = ("--ranks", "4", "--nodes", "4", "--bytes", "1M", "--algorithm", "toy")
    code, found, output = command_line(tmp_path, "plan", *words, env=environment)
    assert code == 0, output
    assert found["shown"] == "toy"
    assert {row["algorithm"]: row["canonical"] for row in found["costs"]}["toy"] is True
    # It is a candidate by its formulas, within a node and between nodes, and not the cheapest one.
    for nodes in ("1", "4", "2"):
        arguments = ("--ranks", "4", "--nodes", nodes, "--bytes", "1M")
        _, found, output = command_line(tmp_path, "plan", *arguments, env=environment)
        formulas = {row["algorithm"]: row["formula_us"] for row in found["costs"]}
        assert formulas["toy"] > formulas[found["algorithm"]] > 0, output
    forced = {**environment, "RDMACOLL_ALLREDUCE_ALGORITHM": "toy"}
    _, found, output = command_line(tmp_path, "plan", *words[:6], env=forced)
    assert found["algorithm"] == "toy", output


@pytest.mark.slow
def test_its_schedules_are_verified(tmp_path: Path, environment: dict[str, str]) -> None:
    code, found, output = command_line(tmp_path, "verify-schedules", "--ranks", "1:9", env=environment)
    assert code == 0, output
    assert "toy" in found["algorithms"]


@pytest.mark.slow
def test_the_selftest_runs_it(tmp_path: Path, environment: dict[str, str]) -> None:
    words = ("selftest", "--transport", "tcp", "--algorithm", "toy")
    code, found, output = command_line(tmp_path, *words, ranks=3, env=environment)
    assert code == 0, output
    assert "allreduce toy, tcp, order canonical:" in output
    assert found["cases"] > 100


@pytest.mark.slow
def test_the_simulator_times_it(tmp_path: Path, environment: dict[str, str]) -> None:
    words = ("sim", "scale", "--ranks", "2:4", "--bytes", "64K", "--backward-ms", "0")
    code, found, output = command_line(tmp_path, *words, env=environment)
    assert code == 0, output
    assert all(row["time_us"]["toy"] > 0 for row in found["rows"])


@pytest.mark.slow
def test_documents_list_it(environment: dict[str, str]) -> None:
    program = (
        "import sys; sys.path.insert(0, 'release/docs'); import pages;"
        "from rdmacoll._abi.library import load;"
        "print(pages.algorithms_page(load().algorithms()), pages.settings_page(load().settings()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TREE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "| `toy` | sum | can be forced | yes |" in done.stdout
    assert re.search(r"## RDMACOLL_ALLREDUCE_ALGORITHM.*allowed: auto, [^\n]*\btoy\b", done.stdout, re.DOTALL)
