"""Shared parts of all tests: allowed skips, and the duration of each part."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))

from suites import Builds  # noqa: E402

# As in the Makefile: one compiler cache for every build folder.
os.environ.setdefault("CCACHE_BASEDIR", str(TESTS.parent))
os.environ.setdefault("CCACHE_NOHASHDIR", "1")
# Equal choices on every machine, and no file in the home of the user.
os.environ.setdefault("RDMACOLL_PROFILE", "off")

# A test may be skipped for these reasons only; any other skip is a failure.
ALLOWED_SKIPS = {
    "needs clang": "g++ compiles for all other tests",
    "needs root": "network namespaces can be made by root alone",
    "needs no RDMA device": "a test of what is said where there is none",
    "needs Debian's pyverbs": "a machine with RDMA devices need not be one of Debian's",
    "needs Open MPI 4": "each launcher has its own option by which it goes on without a process",
    "forbids CUDA IPC": "a sandbox need not let processes share memory of a GPU",
    "needs click and rich": "tests of arrays on a GPU run where numpy and pytest alone are installed",
    "needs Python 3.12": "older ones tell of no exception that nobody catches, if it is SystemExit",
}


def pytest_configure() -> None:
    """A terminated run cleans up like an interrupted one: no rank outlives it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    # A shell that starts pytest in the background ignores SIGINT for pytest and its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


BUILDS: pytest.StashKey[Builds] = pytest.StashKey()


def lateness(item: pytest.Item) -> int:
    """Sort key that puts unfinished builds last: first the guest's kernel, then the suites. The suites use
    the processor that tests in the guest leave idle.
    """
    if item.get_closest_marker("rdma"):
        return 1
    return 2 if item.get_closest_marker("needs_build") else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lateness)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if lateness(item) > 0 and BUILDS in item.config.stash:
        item.config.stash[BUILDS].let_punctual_run()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins to build the C++ suites that the selected tests need, and to run those that can start early."""
    marks = [mark for item in session.items for mark in item.iter_markers("needs_build")]
    if marks and not session.config.option.collectonly:
        folders = {folder for mark in marks for folder in mark.args}
        to_run = {folder for mark in marks if mark.kwargs.get("and_run") for folder in mark.args}
        beside_guest = any(item.get_closest_marker("rdma") for item in session.items)
        session.config.stash[BUILDS] = Builds(folders, to_run, beside_guest)


def pytest_unconfigure(config: pytest.Config) -> None:
    if BUILDS in config.stash:
        config.stash[BUILDS].stop()


@pytest.fixture(scope="session")
def builds(pytestconfig: pytest.Config) -> Builds:
    return pytestconfig.stash[BUILDS]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Programs that tests start on ranks are no test modules."""
    inside = TESTS in collection_path.parents and collection_path.suffix == ".py"
    return True if inside and not collection_path.name.startswith("test_") else None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Turns a skip that is not allowed into a failure."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"skipped without leave: {reason}"


def _part(nodeid: str) -> str:
    path = nodeid.split("::", 1)[0]
    if path == "tests/test_checks.py":
        return nodeid.split("::", 1)[1].removeprefix("test_")
    return path


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints how long each part took."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration") and hasattr(report, "nodeid"):
                seconds[_part(report.nodeid)] += report.duration
    terminalreporter.section("duration of each part")
    for part, duration in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{duration:8.1f} s  {part}")
