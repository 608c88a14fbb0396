"""Checks of a change beside the Python tests. Each is a part of `make test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suites import ROOT


def check(*command: str | Path) -> None:
    """Runs a command in the tree's root. On failure the command's output is the message."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        errors="replace",
    )
    text = result.stderr + result.stdout  # stdout last, since a report shows only the end
    assert result.returncode == 0, (
        f"{' '.join(map(str, command))}: exit code {result.returncode}\n{text[-12000:]}"
    )


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


@pytest.mark.needs_build("test", and_run=True)
def test_cpp_suites_pass(builds) -> None:
    builds.wait_for_suites("test")


@pytest.mark.needs_build("sanitize", and_run=True)
def test_cpp_suites_pass_with_address_and_undefined_sanitizers(builds) -> None:
    builds.wait_for_suites("sanitize")


@pytest.mark.needs_build("test")
def test_a_filter_that_names_no_test_is_an_error(builds) -> None:
    builds.wait("test")
    command = ["make", "suite", "SUITE=sim", "FILTER=Nothing*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode != 0
    assert "no test of sim is called Nothing*" in done.stdout


def check_longer(program: Path, tests: str, variable: str, count: int, timeout_s: int) -> None:
    """Runs tests of a C++ suite, with an environment variable that sets how much they do."""
    command = (str(program), "--gtest_brief=1", f"--gtest_filter={tests}")
    environ = {**os.environ, variable: str(count)}
    found = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.needs_build("test")
def test_a_million_small_transfers_wait_for_a_slow_receiver(builds) -> None:
    program = builds.wait("test") / "conformance_tests"
    check_longer(program, "*waits_for_a_receiver*", "RDMACOLL_TEST_AHEAD", 1_000_000, 1800)


@pytest.mark.slow
@pytest.mark.needs_build("test")
def test_a_hundred_thousand_wrong_control_messages_harm_nobody(builds) -> None:
    program = builds.wait("test") / "unit_tests"
    check_longer(program, "*one_wrong_field*", "RDMACOLL_TEST_MUTATIONS", 100_000, 7200)


@pytest.mark.slow
@pytest.mark.needs_build("test")
def test_ranks_bear_a_million_wrong_messages_of_the_agreement(builds) -> None:
    program = builds.wait("test") / "unit_tests"
    check_longer(program, "AgreementOfRanks.bears_*", "RDMACOLL_TEST_WRONG_MESSAGES", 1_000_000, 3600)


@pytest.mark.slow
@pytest.mark.needs_build("test")
def test_schedules_are_right_and_well_chosen_in_all_large_worlds(builds) -> None:
    program = builds.wait("test") / "unit_tests"
    check_longer(program, "*EveryAlgorithm*:*Chosen*", "RDMACOLL_TEST_ALL_LARGE_WORLDS", 1, 1800)


@pytest.mark.slow
@pytest.mark.needs_build("test")
def test_1000_worlds_over_the_direct_way_leave_nothing_behind(builds) -> None:
    program = builds.wait("test") / "multiprocess_tests"
    check_longer(program, "GpuDirectEnd.of_many_worlds*", "RDMACOLL_TEST_GPU_WORLDS", 1000, 1200)


@pytest.mark.slow
@pytest.mark.needs_build("test")
def test_ranks_agree_in_ten_million_random_events(builds) -> None:
    program = builds.wait("test") / "unit_tests"
    check_longer(program, "AgreementOfRanks*", "RDMACOLL_TEST_AGREEMENT_STEPS", 10_000_000, 1800)


@pytest.mark.slow
@pytest.mark.needs_build("threads", and_run=True)
def test_cpp_suites_pass_with_the_thread_sanitizer(builds) -> None:
    builds.wait_for_suites("threads")


# Nothing is built where there is no clang.
builds_with_clang = (
    pytest.mark.needs_build("clang", and_run=True)
    if shutil.which("clang++")
    else pytest.mark.skip(reason="needs clang")
)


@pytest.mark.slow
@builds_with_clang
def test_cpp_suites_pass_if_clang_compiles_them(builds) -> None:
    builds.wait_for_suites("clang")
