"""Runs seeds of the simulator on all processors, in processes of their own. A seed that crashes its
process or does not end becomes a finding."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import click

from rdmacoll.cli.report import is_rank_0

KINDS = ("hangs", "wrong_sums", "unnamed_errors", "lost_wakeups", "crashes")
WORKER = ["-m", "rdmacoll.cli.seed_worker"]
_SEEDS_AT_ONCE = 20
_PROGRESS_S = 5.0
# A seed takes milliseconds of processor time (measured). A seed that reaches CPU_LIMIT_S is in an endless
# loop. A seed that uses no processor time and does not end is blocked: _WALL_LIMIT_S ends it.
CPU_LIMIT_S = 60
_WALL_LIMIT_S = 1800.0


def add(total: dict[str, Any], fields: dict[str, Any]) -> None:
    """Adds the numbers and lists of one part to those of the whole.

    >>> total = {"seeds": 1}
    >>> add(total, {"seeds": 2, "failing_seeds": [7]}); total
    {'seeds': 3, 'failing_seeds': [7]}
    """
    for key, value in fields.items():
        if key not in total or isinstance(value, (str, bool)):
            total[key] = value
        elif isinstance(value, (int, float, list)):
            total[key] = total[key] + value


class _Worker:
    """A process that runs seeds on request. It is started again after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until close())

    def run(self, begin: int, end: int) -> dict[str, Any]:
        found = self._request(begin, end)
        if found is not None:
            return found
        if end - begin == 1:
            return self._crash(begin)
        self.stop()
        total: dict[str, Any] = {}
        for seed in range(begin, end):
            add(total, self._request(seed, seed + 1) or self._crash(seed))
        return total

    def _request(self, begin: int, end: int) -> dict[str, Any] | None:
        """The result of the seeds; None if the process crashed or does not answer."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{begin} {end}\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], _WALL_LIMIT_S)[0]:
                line = process.stdout.readline()
                if line.endswith("\n"):
                    fields: dict[str, Any] = json.loads(line)
                    return {**fields, "crashes": 0}
        except BrokenPipeError:
            pass
        return None

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        return subprocess.Popen(
            [sys.executable, *WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def _crash(self, seed: int) -> dict[str, Any]:
        code = self.stop()
        self._errors.seek(0)
        error_text = self._errors.read()[-2000:].strip()
        if code == -signal.SIGXCPU:
            error_text = f"it did not end within {CPU_LIMIT_S} s of processor time"
        return {
            **dict.fromkeys(KINDS, 0),
            "seeds": 1,
            "crashes": 1,
            "failing_seeds": [seed],
            "findings": [f"seed {seed}: breaks: {error_text or f'exit code {code}'}"],
        }

    def stop(self) -> int:
        """Ends the process and returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # the process may be about to end by itself, with a status that tells the reason
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        return process.returncode

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
        self.stop()
        self._errors.close()


def survey(begin: int, end: int, *, stops_at_first: bool = False) -> dict[str, Any]:
    """Runs the seeds from `begin` to `end`, exclusive, and returns the sums of their results. Rank 0
    prints the progress. stops_at_first: ends after the first failing seed."""
    parts: queue.SimpleQueue[range] = queue.SimpleQueue()
    for first in range(begin, end, _SEEDS_AT_ONCE):
        parts.put(range(first, min(end, first + _SEEDS_AT_ONCE)))
    answers: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
    is_over = threading.Event()
    workers = [_Worker() for _ in range(min(parts.qsize(), len(os.sched_getaffinity(0))))]

    def serve(worker: _Worker) -> None:
        try:
            while not is_over.is_set():
                part = parts.get_nowait()
                answers.put(worker.run(part.start, part.stop))
        except queue.Empty:
            pass
        except BaseException as error:
            if not is_over.is_set():
                answers.put(error)

    threads = [threading.Thread(target=serve, args=[worker], daemon=True) for worker in workers]
    began = time.monotonic()
    total: dict[str, Any] = {"seeds": 0, **dict.fromkeys(KINDS, 0), "failing_seeds": [], "findings": []}
    try:
        for thread in threads:
            thread.start()
        _collect(total, answers, end - begin, began, stops_at_first)
    finally:
        is_over.set()
        for worker in workers:
            worker.close()
        for thread in threads:
            thread.join(10)
    order = sorted(range(len(total["failing_seeds"])), key=lambda at: total["failing_seeds"][at])
    for key in ("failing_seeds", "findings"):
        total[key] = [total[key][at] for at in order]
    return {**total, "seconds": time.monotonic() - began, "processes": len(workers)}


def _collect(
    total: dict[str, Any],
    answers: queue.SimpleQueue[dict[str, Any] | BaseException],
    requested: int,
    began: float,
    stops_at_first: bool,
) -> None:
    reported_at = began
    while total["seeds"] < requested and not (stops_at_first and total["failing_seeds"]):
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        add(total, answer)
        now = time.monotonic()
        if now - reported_at < _PROGRESS_S or not is_rank_0():
            continue
        reported_at = now
        done, failing = total["seeds"], len(total["failing_seeds"])
        click.echo(
            f"{done} of {requested} seeds, {done / (now - began):.0f} a second, {failing} failing", err=True
        )
