"""The checks of a change beside the Python tests; each is a part of `make test`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUITES = ("unit", "sim", "verbs_sim", "conformance", "multiprocess")
# GoogleTest's own skips that are allowed: name -> why.
ALLOWED_GTEST_SKIPS: dict[str, str] = {}


def check(*command: str | Path, timeout_s: float = 900, env: dict[str, str] | None = None) -> str:
    """Runs a command in the tree's root; its output is the failure's message."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        errors="replace",
        env={**os.environ, **(env or {})},
    )
    text = (result.stdout + result.stderr)[-12000:]
    assert result.returncode == 0, f"{' '.join(map(str, command))}: exit code {result.returncode}\n{text}"
    return text


def cpp_files() -> list[Path]:
    folders = [ROOT / "cpp", ROOT / "tests", ROOT / "benchmarks"]
    return sorted(f for d in folders for pattern in ("*.cc", "*.h") for f in d.rglob(pattern))


def test_ruff_is_clean() -> None:
    check(sys.executable, "-m", "ruff", "check", ".")


def test_python_is_formatted() -> None:
    check(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_mypy_strict_is_clean() -> None:
    check(sys.executable, "-m", "mypy")


def test_cpp_is_formatted() -> None:
    check("clang-format", "--dry-run", "-Werror", *cpp_files())


def build(folder: str, *options: str) -> Path:
    """Builds the C++ suites in build/<folder>."""
    target = ROOT / "build" / folder
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    if not (target / "CMakeCache.txt").exists():
        check("cmake", "-S", ".", "-B", target, *generator, "-DRDMACOLL_TESTS=ON", *options)
    jobs = str(len(os.sched_getaffinity(0)))
    check("cmake", "--build", target, "--parallel", jobs, timeout_s=1800)
    return target


def run_suites(target: Path, env: dict[str, str] | None = None) -> None:
    """Runs every suite that there are sources for; a skipped test needs leave."""
    ran = 0
    for suite in SUITES:
        if not list((ROOT / "tests" / suite).glob("*.cc")):
            continue
        text = check(target / f"{suite}_tests", "--gtest_brief=1", env=env)
        ran += int(re.findall(r"(\d+) tests? from", text)[-1])
        skipped = re.findall(r"\[  SKIPPED \] ([\w./]+)", text)
        assert set(skipped) <= set(ALLOWED_GTEST_SKIPS), f"skipped without leave: {skipped}"
    assert ran > 0, "no C++ test ran"


def test_cpp_suites_pass() -> None:
    run_suites(build("test", "-DCMAKE_BUILD_TYPE=Release"))


def test_cpp_suites_pass_with_address_and_undefined_sanitizers() -> None:
    target = build("sanitize", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DRDMACOLL_SANITIZE=address;undefined")
    run_suites(target, {"UBSAN_OPTIONS": "print_stacktrace=1"})


@pytest.mark.slow
def test_cpp_suites_pass_with_the_thread_sanitizer() -> None:
    target = build("threads", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DRDMACOLL_SANITIZE=thread")
    run_suites(target)
