"""The checks of a change beside the Python tests; each is a part of `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from suites import ENVIRONMENT, PUNCTUAL, ROOT, Builds, cores, judge


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


def run_suites(builds: Builds, folder: str) -> None:
    """Runs the suites that keep deadlines, as many at once as there are cores; the others run already."""
    target = builds.wait(folder)

    def run(suite: str) -> None:
        judge(suite, check(target / f"{suite}_tests", "--gtest_brief=1", env=ENVIRONMENT))

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(run, PUNCTUAL))
    builds.wait_for_patient(folder)


@pytest.mark.needs_build("test", and_run=True)
def test_cpp_suites_pass(builds) -> None:
    run_suites(builds, "test")


@pytest.mark.needs_build("sanitize", and_run=True)
def test_cpp_suites_pass_with_address_and_undefined_sanitizers(builds) -> None:
    run_suites(builds, "sanitize")


@pytest.mark.slow
@pytest.mark.needs_build("threads", and_run=True)
def test_cpp_suites_pass_with_the_thread_sanitizer(builds) -> None:
    run_suites(builds, "threads")
