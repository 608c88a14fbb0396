"""The C++ suites: built one after the other in the background, at the lowest priority, from the first test
on, since most Python tests leave a processor idle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A build's folder under build/, and what cmake is told for it, in the order of building.
OPTIONS = {
    "test": ("-DCMAKE_BUILD_TYPE=Release",),
    "sanitize": ("-DCMAKE_BUILD_TYPE=Release", "-DRDMACOLL_SANITIZE=address;undefined"),
    "threads": ("-DCMAKE_BUILD_TYPE=Release", "-DRDMACOLL_SANITIZE=thread"),
}
LIMIT_S = 1800


def cores() -> int:
    return len(os.sched_getaffinity(0))


class Builds:
    """Builds `folders`; `wait` gives a folder's path when it is there."""

    def __init__(self, folders: set[str]) -> None:
        self._results: dict[str, Future[Path]] = {name: Future() for name in OPTIONS if name in folders}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self, folder: str) -> Path:
        """Raises AssertionError with the compiler's words."""
        return self._results[folder].result(LIMIT_S * len(self._results))

    def stop(self) -> None:
        """Ends what is being built, with all its compilers."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGTERM)
                self._process.wait()

    def _run(self) -> None:
        for folder, result in self._results.items():
            try:
                result.set_result(self._build(folder))
            except BaseException as error:
                result.set_exception(error)

    def _build(self, folder: str) -> Path:
        target = ROOT / "build" / folder
        if not (target / "CMakeCache.txt").exists():
            generator = ["-G", "Ninja"] if shutil.which("ninja") else []
            configure = ("cmake", "-S", ".", "-B", str(target), *generator)
            self._call(*configure, "-DRDMACOLL_TESTS=ON", *OPTIONS[folder])
        self._call("cmake", "--build", str(target), "--parallel", str(cores()))
        return target

    def _call(self, *command: str) -> None:
        with self._lock:
            assert not self._stopped, "the run ended before the suites were built"
            process = self._process = subprocess.Popen(
                ["nice", "-n", "19", *command],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        try:
            text, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            raise AssertionError(f"{' '.join(command)} took more than {LIMIT_S} s") from None
        assert process.returncode == 0, (
            f"{' '.join(command)}: exit code {process.returncode}\n{text[-12000:]}"
        )
