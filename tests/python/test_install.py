"""The package from a clean clone: one wheel for every Python 3, in a fresh environment."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ranks import ROOT, clean_environment


def command(*arguments: str | Path, cwd: Path = ROOT, **env: str) -> str:
    result = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=clean_environment(env),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel from a copy of the tree's tracked and new files, so that no build leftovers can help."""
    clone = tmp_path_factory.mktemp("a clone")
    listed = command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    # Paths in the compiler's command are what ccache compares.
    environ = {"CCACHE_BASEDIR": str(clone), "CCACHE_NOHASHDIR": "1"}
    out = tmp_path_factory.mktemp("wheel")
    command(
        *[sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"],
        *["-w", out, clone],
        **environ,
    )
    (built,) = out.iterdir()
    return built


def test_the_wheel_is_for_every_python_3_and_this_platform(wheel):
    assert re.fullmatch(r"rdmacoll-[\d.]+-py3-none-(many)?linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "rdmacoll/lib/librdmacoll.so" in names
    assert "rdmacoll/lib/librdmacoll_tf.so" in names
    assert "rdmacoll/lib/fast_calls.abi3.so" in names
    assert "rdmacoll/_world/world.py" in names
    assert "rdmacoll/ops/__init__.py" in names
    assert "rdmacoll/ops/gpu_stream.cc" in names  # for `rdmacoll build-gpu-op`
    assert "rdmacoll/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "cpp", "build"))]
    assert wheel.stat().st_size < 10e6


def test_the_wheel_runs_with_numpy_alone(wheel, tmp_path):
    environment = tmp_path / "environment"
    command(sys.executable, "-m", "venv", "--without-pip", environment)
    (site,) = (environment / "lib").glob("python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    import numpy

    here = Path(numpy.__file__).resolve().parent
    for folder in (here, here.parent / "numpy.libs"):
        if folder.exists():
            os.symlink(folder, site / folder.name)
    program = (
        "import numpy as np, rdmacoll, sys, inspect; from rdmacoll import *; rdmacoll.init(); "
        "inspect.getmembers(rdmacoll); assert not hasattr(rdmacoll, 'keras'); "
        "print(rdmacoll.__file__, rdmacoll.engine.allreduce(np.ones(2)).tolist()); "
        "assert not {'tensorflow', 'mpi4py', 'click'} & set(sys.modules)"
    )
    output = command(environment / "bin" / "python", "-c", program, cwd=tmp_path, PYTHONPATH="")
    assert str(site) in output
    assert "[1.0, 1.0]" in output
    asked = (
        "import rdmacoll\ntry: rdmacoll.DistributedOptimizer\nexcept AttributeError as error: print(error)"
    )
    output = command(environment / "bin" / "python", "-c", asked, cwd=tmp_path, PYTHONPATH="")
    assert "pip install 'rdmacoll[tensorflow]'" in output


def test_the_makefile_keeps_a_folder_with_a_space_in_one_word(tmp_path):
    """A path in two words would send the compiled libraries to another folder."""
    clone = tmp_path / "my clone"
    (clone / "release" / "docs").mkdir(parents=True)
    for name in ("Makefile", "requirements.txt", "release/requirements.txt", "release/docs/requirements.txt"):
        (clone / name).write_bytes((ROOT / name).read_bytes())
    targets = ("native", "suite", "suite-arm64", "train", "test-gpu", "wheel", "check-wheel", "docs")
    printed = command("make", "--dry-run", *targets, cwd=clone)
    words = shlex.split(printed)
    assert sum(str(clone) in word for word in words) >= 5
    assert [word for word in words if word.endswith(str(tmp_path / "my"))] == []


def test_the_library_needs_no_tensorflow_python_mpi_verbs_or_cuda():
    needed = command("readelf", "-d", ROOT / "rdmacoll" / "lib" / "librdmacoll.so")
    found = re.findall(r"\(NEEDED\).*\[(.+?)\]", needed)
    assert set(found) <= {
        "libc.so.6",
        "libm.so.6",
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libpthread.so.0",
        "ld-linux-x86-64.so.2",
    }, found


@pytest.mark.parametrize(
    ("library", "own"),
    [("librdmacoll.so", "rc_"), ("librdmacoll_tf.so", "rc_tf_"), ("fast_calls.abi3.so", "PyInit_")],
)
def test_only_own_names_are_exported(library, own):
    exported = command("nm", "-D", "--defined-only", ROOT / "rdmacoll" / "lib" / library)
    names = {line.split()[-1].split("@")[0] for line in exported.splitlines()}
    foreign = {name for name in names if not name.startswith(own)}
    assert names
    assert not foreign, sorted(foreign)[:20]


def test_the_library_knows_the_version_of_the_package():
    program = (
        "from rdmacoll import version; from rdmacoll._abi import library; "
        "assert library.load().version == version.__version__, library.load().version"
    )
    command(sys.executable, "-c", program)


def test_a_folder_that_is_called_like_the_package_hides_nothing(tmp_path):
    """The program lies beside a clone. Python must not take the clone's folder for a namespace package."""
    (tmp_path / "rdmacoll" / "rdmacoll").mkdir(parents=True)
    program = tmp_path / "train.py"
    program.write_text("import rdmacoll\nrdmacoll.init()\nprint(rdmacoll.size())\n")
    assert command(sys.executable, program, cwd=tmp_path, PYTHONPATH="").strip() == "1"
