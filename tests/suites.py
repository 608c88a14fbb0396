"""Builds and runs the C++ suites. Builds run one after another in the background, at the lowest priority,
from the first test on. Most Python tests leave a processor idle. Suites without deadlines then run there. The
others run after the Python tests: one at a time beside the guest, which has one processor, and then on all
processors.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Callable, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
# A build's folder under build/, and its cmake options, in the order of building.
OPTIONS = {
    "test": ("-DCMAKE_BUILD_TYPE=Release",),
    "sanitize": ("-DCMAKE_BUILD_TYPE=Release", "-DRDMACOLL_SANITIZE=address;undefined"),
    "threads": ("-DCMAKE_BUILD_TYPE=Release", "-DRDMACOLL_SANITIZE=thread"),
    "clang": ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER=clang++", "-DRDMACOLL_UNITY=ON"),
}
# Suites without deadlines, and suites with deadlines, the longest first.
PATIENT = ("sim", "verbs_sim", "unit")
PUNCTUAL = ("conformance", "multiprocess")
# Allowed skips of GoogleTest: name -> reason.
ALLOWED_SKIPS: dict[str, str] = {}
LIMIT_S = 1800  # limit of a silence in the output, long because of other load
# LeakSanitizer stops all threads at the end of a program, and can meet one that is just ending.
_CRASH_OF_SEARCH = "LeakSanitizer has encountered a fatal error"
_PASSED = re.compile(r"^\[ RUN      \] |^\[       OK \] |^\[-+\] |^$")


def cores() -> int:
    return len(os.sched_getaffinity(0))


def judge(suite: str, text: str) -> None:
    """Raises AssertionError if a suite ran no test, or skipped a test that may not be skipped."""
    assert re.search(r"[1-9]\d* tests? from", text), f"{suite}: no test ran\n{text[-12000:]}"
    skipped = set(re.findall(r"\[  SKIPPED \] ([\w./]+)", text))
    assert skipped <= set(ALLOWED_SKIPS), f"{suite}: skipped without leave: {skipped}"


def settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


class Builds:
    """Builds `folders`, and runs the suites of the folders in `to_run`. `wait` returns a folder's path when
    it is built. `wait_for_suites` returns when all suites of a folder have passed.
    """

    def __init__(self, folders: set[str], to_run: set[str], beside_guest: bool) -> None:
        self._results: dict[str, Future[Path]] = {name: Future() for name in OPTIONS if name in folders}
        suites = [
            (name, suite) for name in self._results if name in to_run for suite in (*PUNCTUAL, *PATIENT)
        ]
        self._passed: dict[tuple[str, str], Future[None]] = {one: Future() for one in suites}
        # Suites with deadlines need processors without other load.
        self._beside_guest = beside_guest
        self._is_calm, self._is_alone = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self, folder: str) -> Path:
        """Waits for the build. Raises AssertionError with the compiler's output."""
        return self._results[folder].result()

    def wait_for_suites(self, folder: str) -> None:
        """Waits for the suites. Raises AssertionError with the output of the first failed suite.
        Call when the guest has ended."""
        self._is_alone.set()
        for suite in (*PUNCTUAL, *PATIENT):
            self._passed[folder, suite].result()

    def let_punctual_run(self) -> None:
        """Call when no other test with deadlines will run, except in the guest."""
        self._is_calm.set()
        if not self._beside_guest:
            self._is_alone.set()

    def stop(self) -> None:
        """Ends running builds, with their compilers, and running suites."""
        with self._lock:
            self._stopped = True
            self._is_calm.set()
            self._is_alone.set()
            running = [process for process in self._processes if process.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process in running:
                process.wait()

    def _run(self) -> None:
        for folder, built in self._results.items():
            settle(built, partial(self._build, folder))
        for (folder, suite), passed in self._passed.items():
            if suite in PATIENT and not self._is_calm.is_set():
                settle(passed, partial(self._run_suite, folder, suite, "nice", "-n", "19"))
        # Suites with sanitizers take longest, and are built last.
        in_order = [(folder, suite) for folder in reversed(OPTIONS) for suite in (*PUNCTUAL, *PATIENT)]
        left = iter([one for one in in_order if one in self._passed and not self._passed[one].done()])
        begins = [self._is_calm, *[self._is_alone] * (cores() - 1)]
        with ThreadPoolExecutor(len(begins)) as pool:
            for begin in begins:
                pool.submit(self._run_rest, begin, left)

    def _run_rest(self, begin: threading.Event, left: Iterator[tuple[str, str]]) -> None:
        """Runs the suites that `left` yields, once `begin` is set. Threads share `left`."""
        begin.wait()
        for folder, suite in left:
            settle(self._passed[folder, suite], partial(self._run_suite, folder, suite))

    def _build(self, folder: str) -> Path:
        target = ROOT / "build" / folder
        if not (target / "CMakeCache.txt").exists():
            generator = ["-G", "Ninja"] if shutil.which("ninja") else []
            configure = ("cmake", "-S", ".", "-B", str(target), *generator)
            self._call(*configure, "-DRDMACOLL_TESTS=ON", *OPTIONS[folder])
        self._call("nice", "-n", "19", "cmake", "--build", str(target), "--parallel", str(cores()))
        return target

    def _run_suite(self, folder: str, suite: str, *before: str) -> None:
        program = str(self.wait(folder) / f"{suite}_tests")
        judge(suite, self._call(*before, program))

    def _call(self, *command: str, may_repeat: bool = True) -> str:
        """Returns the command's output without lines of passing tests. Fails if its exit code is not 0.
        Runs once more if the sanitizer's own search for leaks crashed: it says nothing of leaks then."""
        with self._lock:
            assert not self._stopped, "the run ended before the suites were built and run"
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"},
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            lines, is_late = _read(process)
        finally:
            with self._lock:
                self._processes.discard(process)
        text = "".join(line for line in lines if not _PASSED.match(line))
        assert not is_late, f"{' '.join(command)} printed nothing for {LIMIT_S} s\n{text[-12000:]}"
        if process.returncode != 0 and may_repeat and _CRASH_OF_SEARCH in text:
            return self._call(*command, may_repeat=False)
        assert process.returncode == 0, (
            f"{' '.join(command)}: exit code {process.returncode}\n{text[-12000:]}"
        )
        return text


def _read(process: subprocess.Popen[str]) -> tuple[list[str], bool]:
    """Returns the process's output until its end, and whether it was killed after LIMIT_S without output."""
    lines: list[str] = []
    heard = [time.monotonic()]
    has_ended, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        while not has_ended.wait(10):
            if time.monotonic() - heard[0] > LIMIT_S:
                is_late.set()
                os.killpg(process.pid, signal.SIGKILL)
                return

    threading.Thread(target=watch, daemon=True).start()
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        heard[0] = time.monotonic()
    has_ended.set()
    process.wait()
    return lines, is_late.is_set()
