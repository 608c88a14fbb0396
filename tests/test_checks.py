"""The checks of a change beside the Python tests; each is a part of `make test`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from suites import ROOT, cores

SUITES = ("unit", "conformance", "multiprocess", "sim", "verbs_sim")  # the longest first
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
    text = result.stderr + result.stdout  # what failed last: a report shows an end of it
    assert result.returncode == 0, (
        f"{' '.join(map(str, command))}: exit code {result.returncode}\n{text[-12000:]}"
    )
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


def run_suite(program: Path, env: dict[str, str] | None) -> int:
    """Runs a suite; a skipped test needs leave. Returns how many ran."""
    text = check(program, "--gtest_brief=1", env=env)
    skipped = re.findall(r"\[  SKIPPED \] ([\w./]+)", text)
    assert set(skipped) <= set(ALLOWED_GTEST_SKIPS), f"skipped without leave: {skipped}"
    return int(re.findall(r"(\d+) tests? from", text)[-1])


def run_suites(folder: Path, env: dict[str, str] | None = None) -> None:
    """Runs all suites, as many at once as there are cores."""
    with ThreadPoolExecutor(cores()) as pool:
        for ran in pool.map(lambda suite: run_suite(folder / f"{suite}_tests", env), SUITES):
            assert ran > 0, "a suite without a test"


@pytest.mark.needs_build("test")
def test_cpp_suites_pass(builds) -> None:
    run_suites(builds.wait("test"))


@pytest.mark.needs_build("sanitize")
def test_cpp_suites_pass_with_address_and_undefined_sanitizers(builds) -> None:
    run_suites(builds.wait("sanitize"), {"UBSAN_OPTIONS": "print_stacktrace=1"})


@pytest.mark.slow
@pytest.mark.needs_build("threads")
def test_cpp_suites_pass_with_the_thread_sanitizer(builds) -> None:
    run_suites(builds.wait("threads"))
