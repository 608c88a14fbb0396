"""Planted bugs in Python, in TensorFlow's ops and in the use of GPUs: the test that a patch names sees it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suites import ROOT, cores
from tf_sim_ops import framework

from rdmacoll._abi.mirror import HEADER_HASH

PATCHES = [
    patch
    for kind in ("training", "arrays", "devices", "tensorflow")
    for patch in sorted((ROOT / "tests" / "mutations" / kind).glob("*.patch"))
]


def finder_of(patch: Path) -> str:
    """Returns the test in the second paragraph of a patch: "Found by tests/python/test_x.py::test_y."."""
    found = re.search(r"^Found by (tests/\S+)\.$", patch.read_text(), re.MULTILINE)
    assert found, f"{patch.name} does not say which test finds it"
    return found[1]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_the_test_that_a_patch_names_is_there(patch: Path) -> None:
    file, _, test = finder_of(patch).partition("::")
    assert not test or f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def run_finder(finder: str, tree: Path, *patches: Path) -> tuple[int, str]:
    """Runs a test in a copy of the tree with these patches. Returns pytest's exit status and the end of its
    output.
    """
    for name in ("rdmacoll", "tests"):
        left_out = shutil.ignore_patterns("__pycache__", "lib", "mutations")
        shutil.copytree(ROOT / name, tree / name, ignore=left_out)
    shutil.copytree(ROOT / "rdmacoll" / "lib", tree / "rdmacoll" / "lib")
    shutil.copytree(ROOT / "cpp", tree / "cpp")  # the fake CUDA driver is built from it
    shutil.copy(ROOT / "pyproject.toml", tree)
    # git applies patches to the copy, not to a repository around it.
    environ = {**os.environ, "PYTHONPATH": str(tree), "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    for patch in patches:
        subprocess.run(["git", "apply", str(patch)], cwd=tree, env=environ, check=True, timeout=60)
    if any("+++ b/cpp/tensorflow/" in patch.read_text() for patch in patches):
        build_ops(tree, environ)
    elif any("+++ b/cpp/" in patch.read_text() for patch in patches):
        build_engine(tree, environ)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", finder]
    result = subprocess.run(
        command, cwd=tree, env=environ, capture_output=True, text=True, timeout=900, check=False
    )
    return result.returncode, result.stdout[-4000:] + result.stderr[-4000:]


def build_ops(tree: Path, environ: dict[str, str]) -> None:
    """Builds the op library of a tree, beside its engine."""
    folder, objects = tree / "cpp" / "tensorflow", []
    options = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", f"-DRC_HEADER_HASH={HEADER_HASH:#x}ull"]
    compiler = [*(["ccache"] if shutil.which("ccache") else []), "g++", f"-I{tree / 'cpp'}", *options]
    environ = {**environ, "CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}
    for source in sorted(folder.glob("*.cc")):
        if source.name != "framework_stub.cc":
            objects.append(str(tree / f"{source.stem}.o"))
            command = [*compiler, "-c", str(source), "-o", objects[-1]]
            subprocess.run(command, cwd=tree, env=environ, check=True, timeout=900)
    library = tree / "rdmacoll" / "lib" / "librdmacoll_tf.so"
    command = ["g++", "-shared", *objects, str(framework()), "-o", str(library)]
    subprocess.run(command, cwd=tree, check=True, timeout=300)


def build_engine(tree: Path, environ: dict[str, str]) -> None:
    """Builds the engine of a tree."""
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    environ = {**environ, "CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}
    # As deep as the folders of other builds: the compiler's cache compares relative paths.
    folder = str(tree / "build" / "release")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DRDMACOLL_LTO=OFF"]
    libraries = f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={tree / 'rdmacoll' / 'lib'}"
    for command in (
        ["cmake", "-S", str(tree), "-B", folder, *options, libraries],
        ["cmake", "--build", folder, "--parallel", str(cores()), "--target", "rdmacoll"],
    ):
        built = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=1800, check=False
        )
        assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("finder", sorted(set(map(finder_of, PATCHES))))
def test_without_a_planted_bug_its_test_passes(finder: str, tmp_path: Path) -> None:
    code, output = run_finder(finder, tmp_path)
    assert code == 0, output


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_is_found_by_its_test(patch: Path, tmp_path: Path) -> None:
    code, output = run_finder(finder_of(patch), tmp_path, patch)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    print(output)
