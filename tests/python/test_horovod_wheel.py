"""The distribution `rdmacoll-horovod`: its wheel, installed beside rdmacoll, trains a program for Horovod."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from ranks import ROOT, clean_environment, run

from rdmacoll.version import __version__

COMPAT = ROOT / "compat" / "horovod" / "horovod"
PROGRAM = """
import horovod
import horovod.tensorflow.keras as hvd
import keras
import numpy as np
from ranks import report

hvd.init()
variable = keras.Variable(np.zeros(1, np.float32))
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
optimizer.apply_gradients([(np.full(1, -2.0 * hvd.rank(), np.float32), variable)])
report([horovod.__file__, horovod.__version__, float(variable.numpy()[0])])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of its files."""
    tree = tmp_path_factory.mktemp("tree")
    leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "compat", tree / "compat", ignore=leftovers)
    (tree / "rdmacoll").mkdir()
    shutil.copy(ROOT / "rdmacoll" / "version.py", tree / "rdmacoll")
    called(*pip("wheel"), "--no-build-isolation", "-w", tree / "dist", tree / "compat" / "horovod")
    (built,) = (tree / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, the tree's rdmacoll, and the packages of this environment."""
    environment = tmp_path_factory.mktemp("environment")
    called(sys.executable, "-m", "venv", "--without-pip", environment)
    (site,) = environment.glob("lib/python3*/site-packages")
    called(*pip("install"), "--no-index", "--target", site, wheel)
    (site / "others.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return environment / "bin" / "python"


def pip(command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-deps")


def called(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT / "tests",
        env=clean_environment({"PYTHONPATH": ""}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_for_every_python_and_needs_this_rdmacoll(wheel: Path) -> None:
    assert wheel.name == f"rdmacoll_horovod-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name) for name in archive.namelist() if ".dist-info/" in name}
        names = archive.namelist()
    facts = email.message_from_bytes(texts["METADATA"])
    assert "horovodrun = rdmacoll.cli.run:horovodrun_main" in texts["entry_points.txt"].decode()
    assert f"rdmacoll=={__version__}" in facts.get_all("Requires-Dist", [])
    sources = {str(one.relative_to(ROOT / "compat" / "horovod")) for one in COMPAT.rglob("*.py")}
    assert sources <= set(names)
    assert all(one.startswith(("horovod/", "rdmacoll_horovod-")) for one in names)


def test_a_program_for_horovod_trains_unchanged(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [str(python), str(program)]
    text = f"import os\nos.execv({command[0]!r}, {command!r})\n"
    reports = run(text, 2, deadline_s=300, env={"PYTHONPATH": str(ROOT / "tests")}).succeeded()
    for file, version, weight in reports:
        assert file.startswith(str(python.parents[1]))
        assert version == "0.28.1"
        assert weight == 1.0
