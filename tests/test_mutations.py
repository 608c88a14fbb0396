"""Planted bugs. The simulator detects those of the engine, and tests detect the others."""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from suites import ROOT, cores

FOLDER = ROOT / "build" / "mutations"
TREE = FOLDER / "tree"
BUILD = TREE / "build" / "release"
# The sources that are copied and built.
SOURCES = (
    "CMakeLists.txt",
    "cpp",
    "rdmacoll",
    "tests/test_headers.cc",
    "tests/*.h",
    "tests/conformance",
    "tests/cuda_sim",
    "tests/sim",
    "tests/toy_transport",
    "tests/unit",
    "tests/verbs_sim",
)
# By kind of bug: the patched program, and the tests that run for a patch.
TESTS = {
    "rdma": ("conformance_tests", "Rdma*:*/verbs_*"),
    "shm": ("conformance_tests", "Shm*"),
    "ps": ("conformance_tests", "*/ParameterServer*"),
    "agreement": ("unit_tests", "AgreementOfRanks*:Decisions*:Plans*:TrialsOfSums*"),
    "late_reads": ("sim_tests", "*SuspendedRanks*"),
    "trials": ("sim_tests", "TrialsOfJobs*"),
    "messages": ("unit_tests", "Messages.with_one_wrong_field*"),
    "gate": ("unit_tests", "AgreementOfRanks.bears_*"),
    "schedules": ("unit_tests", "*EveryAlgorithm*"),
    "kernels": ("unit_tests", "CudaKernels*"),
    "cuda": ("unit_tests", "Cuda*:*/Cuda*-CudaKernels*"),
    "gpu_views": ("sim_tests", "*SharedGpus*"),
    "gpu": ("unit_tests", "GpuDirectWays*:GpuPolicy*:GpuSystem*:LoweredForNics*:Nvml*:Topology*"),
}
# For the engine: the library that the command line steps.
LIBRARY = "rdmacoll"
# A hang is a failure too. Most hanging tests fail on their own after a minute. A program prints a line when a
# test begins or ends. The limit is on its silence: all tests together take long on a busy machine, and that
# reveals no bug.
SILENCE_MAX_S = 300

# With this base the compiler cache also finds objects of other build folders.
ENVIRONMENT = {
    **os.environ,
    "CCACHE_BASEDIR": str(TREE),
    "CCACHE_NOHASHDIR": "1",
    "PYTHONPATH": str(TREE),
    # git applies patches to the copy, not to the repository around it.
    "GIT_CEILING_DIRECTORIES": str(FOLDER),
    "RDMACOLL_TEST_AGREEMENT_STEPS": "1000000",
}


def patches(kind: str) -> list[Path]:
    return sorted((ROOT / "tests" / "mutations" / kind).glob("*.patch"))


def title(patch: Path) -> str:
    return patch.read_text().splitlines()[0]


def seeds_of(patch: Path) -> int:
    """Returns the number of seeds within which the simulator must find the bug."""
    found = re.search(r"^Found within (\d+) seeds?\.$", patch.read_text(), re.MULTILINE)
    assert found, f"{patch.name} does not say within how many seeds it is found"
    return int(found[1])


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


def build(target: str) -> None:
    if not (BUILD / "CMakeCache.txt").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = ("-DRDMACOLL_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release")
        libraries = f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={TREE / 'rdmacoll' / 'lib'}"
        must("cmake", "-S", ".", "-B", BUILD, *generator, *options, libraries)
    must("cmake", "--build", BUILD, "--parallel", str(cores()), "--target", target)


def run_tests(kind: str) -> tuple[bool, str]:
    """Returns whether the tests pass, and the end of their output."""
    program, tests = TESTS[kind]
    # The first failure ends the program. Later ones of the same test may wait a minute each. Unit tests
    # intercept expected failures, which must not end them.
    end = "fail_fast" if program == "unit_tests" else "break_on_failure"
    command = [str(BUILD / program), f"--gtest_filter={tests}", f"--gtest_{end}"]
    output = FOLDER / "tests.log"
    with output.open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=TREE,
            env=ENVIRONMENT,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=functools.partial(resource.setrlimit, resource.RLIMIT_CORE, (0, 0)),
            start_new_session=True,
        )
    try:
        size, heard = 0, time.monotonic()
        while process.poll() is None:
            if output.stat().st_size > size:
                size, heard = output.stat().st_size, time.monotonic()
            elif time.monotonic() > heard + SILENCE_MAX_S:
                return False, f"no test ended within {SILENCE_MAX_S} s:\n{end_of(output)}"
            time.sleep(0.2)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, which may hang too
        process.wait()
    return process.returncode == 0, end_of(output)


def end_of(output: Path) -> str:
    return output.read_text(errors="replace")[-6000:]


def run_simulator(seeds: int) -> list[str]:
    """Returns the messages of the first failing seeds."""
    answer = FOLDER / "faults.json"
    answer.unlink(missing_ok=True)
    command = (sys.executable, "-m", "rdmacoll", "sim", "faults")
    result = call(*command, "--seeds", f"0:{seeds}", "--first", "--json", answer)
    assert answer.exists(), result.stderr[-6000:]
    found: list[str] = json.loads(answer.read_text())["findings"]
    return found


def is_kept(path: Path) -> bool:
    """Returns false for build products and for files that a run leaves."""
    return path.is_file() and "__pycache__" not in path.parts and path.parent.name != "lib"


def copy_sources() -> None:
    """Copies the sources. Unchanged files keep their time, so that little is rebuilt."""
    for source in (found for name in SOURCES for found in sorted(ROOT.glob(name))):
        wanted = [source] if source.is_file() else [path for path in source.rglob("*") if is_kept(path)]
        for path in wanted:
            target = TREE / path.relative_to(ROOT)
            if not target.exists() or target.read_bytes() != path.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if source.is_dir():
            for old in (TREE / source.relative_to(ROOT)).rglob("*"):
                if is_kept(old) and not (ROOT / old.relative_to(TREE)).exists():
                    old.unlink()


class Planted:
    """A built copy of the tree with a planted bug."""

    def __init__(self, patch: Path, target: str) -> None:
        self.patch, self.target = patch, target

    def __enter__(self) -> None:
        copy_sources()
        must("git", "apply", self.patch)
        build(self.target)

    def __exit__(self, *_: object) -> None:
        copy_sources()


@functools.cache
def run_without_bug(kind: str) -> tuple[bool, str]:
    """Returns whether the tests of a kind pass in a copy of the tree, and the end of their output."""
    copy_sources()
    build(TESTS[kind][0])
    return run_tests(kind)


@pytest.fixture(scope="module")
def simulated() -> None:
    """A copy of the tree in which the simulator finds no bug."""
    copy_sources()
    build(LIBRARY)
    found = run_simulator(max(seeds_of(patch) for patch in patches("engine")))
    assert not found, f"without any planted bug:\n{found[0]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "patch"),
    [pytest.param(kind, patch, id=f"{kind}-{patch.stem}") for kind in TESTS for patch in patches(kind)],
)
def test_a_planted_bug_is_seen_by_its_tests(kind: str, patch: Path) -> None:
    passes, text = run_without_bug(kind)
    assert passes, f"without any planted bug of {kind}:\n{text}"
    with Planted(patch, TESTS[kind][0]):
        passes, text = run_tests(kind)
    assert not passes, f"all tests pass with {title(patch)}"
    print(text)
    if text.rstrip().rpartition("\n")[2].startswith("[ RUN "):
        # The patch may do more than it says: a pointer that is null ends any test.
        warnings.warn(f"{patch.name}: its tests died or hung without a word", stacklevel=1)


@pytest.mark.slow
@pytest.mark.parametrize("patch", patches("engine"), ids=lambda patch: patch.stem)
@pytest.mark.usefixtures("simulated")
def test_a_planted_bug_of_the_engine_is_found_by_the_simulator(patch: Path) -> None:
    with Planted(patch, LIBRARY):
        found = run_simulator(seeds_of(patch))
    assert found, f"{seeds_of(patch)} seeds find nothing with {title(patch)}"
    print(f"{patch.stem}: {found[0]}")


def test_the_copy_has_what_its_tests_include() -> None:
    copied = {path for name in SOURCES for path in ROOT.glob(name)}
    missing = {
        f"{path.relative_to(ROOT)} includes {name}"
        for folder in ("conformance", "sim", "unit", "verbs_sim")
        for path in sorted((ROOT / "tests" / folder).iterdir())
        if path.is_file()
        for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)
        for header in (ROOT / "tests" / name,)
        if header.exists() and not copied & {header, header.parent}
    }
    assert not missing


def test_there_are_planted_bugs() -> None:
    assert len(patches("rdma")) >= 24
    assert len(patches("shm")) >= 4
    assert len(patches("late_reads")) >= 1
    assert len(patches("ps")) >= 11
    assert len(patches("agreement")) >= 5
    assert len(patches("trials")) >= 3
    assert len(patches("gate")) >= 6
    assert len(patches("schedules")) >= 1
    assert len(patches("kernels")) >= 6
    assert len(patches("cuda")) >= 12
    assert len(patches("gpu_views")) >= 8
    assert len(patches("engine")) >= 12
    for patch in patches("engine"):
        assert seeds_of(patch) <= 1000, patch.name
