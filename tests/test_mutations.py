"""Planted bugs: the tests of the RDMA transport see every one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from suites import ROOT, cores

PATCHES = sorted((ROOT / "tests" / "mutations").glob("*.patch"))
FOLDER = ROOT / "build" / "mutations"
TREE = FOLDER / "tree"
# What is copied, and what is built of it.
SOURCES = (
    "CMakeLists.txt",
    "cpp",
    "tests/test_headers.cc",
    "tests/conformance",
    "tests/unit/no_descriptors.h",
    "tests/verbs_sim",
)
PROGRAM = "conformance_tests"
TESTS = "Rdma*:*/verbs_*"
# A hang is a failure too, and most say so themselves after a minute.
RUN_TIMEOUT_S = 300

# With this base the cache of the compiler finds what was built elsewhere.
ENVIRONMENT = {
    **os.environ,
    "CCACHE_BASEDIR": str(TREE),
    "CCACHE_NOHASHDIR": "1",
    # Patches are for the copy, not for the repository around it.
    "GIT_CEILING_DIRECTORIES": str(FOLDER),
}


def call(*command: str | Path, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=TREE,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
    )


def must(*command: str | Path) -> None:
    result = call(*command)
    assert result.returncode == 0, (
        f"{' '.join(map(str, command))}:\n{(result.stdout + result.stderr)[-6000:]}"
    )


def build() -> None:
    folder = TREE / "build" / "release"
    if not (folder / "CMakeCache.txt").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        must(
            "cmake", "-S", ".", "-B", folder, *generator, "-DRDMACOLL_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"
        )
    must("cmake", "--build", folder, "--parallel", str(cores()), "--target", PROGRAM)


def run() -> tuple[bool, str]:
    """Whether the tests pass, and the end of what they print."""
    program = TREE / "build" / "release" / PROGRAM
    try:
        result = call(
            program,
            f"--gtest_filter={TESTS}",
            "--gtest_brief=1",
            "--gtest_fail_fast",
            timeout_s=RUN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False, f"not done after {RUN_TIMEOUT_S} s"
    return result.returncode == 0, (result.stdout + result.stderr)[-6000:]


def copy_sources() -> None:
    """Files that are equal keep their time, so that little is built again."""
    for name in SOURCES:
        source = ROOT / name
        wanted = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        for path in wanted:
            target = TREE / path.relative_to(ROOT)
            if not target.exists() or target.read_bytes() != path.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if source.is_dir():
            for old in (TREE / name).rglob("*"):
                if old.is_file() and not (ROOT / old.relative_to(TREE)).exists():
                    old.unlink()


@pytest.fixture(scope="module")
def tree() -> None:
    """A copy of the tree whose tests pass as it is."""
    copy_sources()
    build()
    passes, text = run()
    assert passes, f"without any planted bug:\n{text}"


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
@pytest.mark.usefixtures("tree")
def test_planted_bug_is_seen(patch: Path) -> None:
    copy_sources()
    try:
        must("git", "apply", patch)
        build()
        passes, _ = run()
    finally:
        copy_sources()
    assert not passes, f"all tests pass with {patch.read_text().splitlines()[0]}"


def test_there_are_planted_bugs() -> None:
    assert len(PATCHES) >= 5
