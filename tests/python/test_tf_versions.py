"""One binary works with all versions of TensorFlow: it trains in 2.15 (Keras 2) and in the newest (Keras 3).

Each version has its own environment. All other tests run in the newest version.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT, run

PROGRAMS = ROOT / "tests" / "multiprocess"
OLD = ("tensorflow-cpu==2.15.1", "numpy<2", "mpi4py")


def cache_folder() -> Path:
    """Returns the folder for the downloads of tests, and creates it if it is missing."""
    cache = Path(os.environ.get("RDMACOLL_CACHE", Path.home() / ".cache" / "rdmacoll"))
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def old_python() -> Path:
    """Python with TensorFlow 2.15.1: made when it is missing (some minutes), then kept."""
    cache = cache_folder()
    folder = cache / "tf-2.15"
    python = folder / "bin" / "python"
    with (cache / "tf-2.15.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        probe = [str(python), "-c", "import tensorflow, mpi4py; assert tensorflow.__version__ == '2.15.1'"]
        if not python.exists() or subprocess.run(probe, capture_output=True, timeout=300).returncode != 0:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *OLD], check=True, timeout=1200)
    return python


def run_in_old_python(python: Path, program: str, ranks: int, *arguments: str) -> list[list[str]]:
    """Runs `program` in the environment of `python`, and returns the checks that each rank has done."""
    command = [str(python), str(PROGRAMS / program), *arguments]
    text = f"import os\nos.execv({command[0]!r}, {command!r})\n"
    return [report["done"] for report in run(text, ranks, launcher="mpirun", deadline_s=400).succeeded()]


def test_the_same_binary_trains_in_tensorflow_2_15(old_python: Path) -> None:
    for done in run_in_old_python(old_python, "tf_keras2.py", 2, "smoke"):
        assert done == ["check_the_tape_trains", "check_new_optimizers"]


@pytest.mark.slow
def test_all_of_keras_2_works_in_tensorflow_2_15(old_python: Path) -> None:
    for done in run_in_old_python(old_python, "tf_keras2.py", 2):
        assert len(done) == 13


@pytest.mark.slow
@pytest.mark.parametrize("inter_op_threads", [1, 2])
def test_all_ops_work_in_tensorflow_2_15(old_python: Path, inter_op_threads: int) -> None:
    for done in run_in_old_python(old_python, "tf_ops.py", 2, str(inter_op_threads)):
        assert len(done) > 12
    for done in run_in_old_python(old_python, "tf_parts.py", 2, str(inter_op_threads)):
        assert len(done) > 8
    for done in run_in_old_python(old_python, "tf_shared_results.py", 3, "yes"):
        assert len(done) > 8
    for done in run_in_old_python(old_python, "tf_refusals.py", 2, str(inter_op_threads)):
        assert len(done) > 4
