"""Programs that import `horovod`: `rdmacoll run --horovod`, horovodrun, and the files in the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT, clean_environment
from test_run_command import DEADLINE_S, launch, script

PROGRAM = """
import os
import horovod, horovod.runner, rdmacoll
print(horovod.__version__, horovod.run is horovod.runner.run is rdmacoll.run, horovod.__file__)
"""
COMPAT = ROOT / "compat" / "horovod"


def test_an_unchanged_program_finds_horovod_for_one_run(tmp_path: Path) -> None:
    done = launch("--horovod", "-np", "2", sys.executable, script(tmp_path, PROGRAM))
    assert done.returncode == 0, done.stderr
    place = COMPAT / "horovod" / "__init__.py"
    line = f"0.28.1 True {place}"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{line}" for rank in (0, 1)]


def test_without_the_option_it_does_not(tmp_path: Path) -> None:
    done = launch("-np", "1", sys.executable, script(tmp_path, PROGRAM))
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'horovod'" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "from rdmacoll.cli.run import horovodrun_main; horovodrun_main()"],
        ["-m", "horovod.runner.launch"],
    ],
)
def test_horovodrun_is_the_same_command(tmp_path: Path, command: list[str]) -> None:
    program = script(tmp_path, PROGRAM)
    done = subprocess.run(
        [sys.executable, *command, "-np", "1", "--gloo", sys.executable, program],
        env=clean_environment({"PYTHONPATH": f"{COMPAT}:{ROOT}"}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0]<stdout>:0.28.1 ")
    assert 'horovodrun = "rdmacoll.cli.run:horovodrun_main"' in (COMPAT / "pyproject.toml").read_text()


def test_the_wheel_of_rdmacoll_carries_the_package(tmp_path: Path) -> None:
    tree, built = tmp_path / "tree", tmp_path / "built"
    for folder in ("rdmacoll", "compat"):
        unneeded = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build")
        shutil.copytree(ROOT / folder, tree / folder, ignore=unneeded)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(built)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": ""},
        timeout=DEADLINE_S,
        check=True,
    )
    found = built / "rdmacoll" / "_horovod_package" / "horovod"
    names = {str(path.relative_to(COMPAT / "horovod")) for path in (COMPAT / "horovod").rglob("*.py")}
    assert {str(path.relative_to(found)) for path in found.rglob("*.py")} == names
    # The launcher finds the folder in an installed package.
    program = "from rdmacoll._launch.request import horovod_folder; print(horovod_folder())"
    shutil.copytree(ROOT / "rdmacoll" / "lib", built / "rdmacoll" / "lib", dirs_exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment({"PYTHONPATH": str(built)}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout.strip() == str(found.parent), done.stderr
