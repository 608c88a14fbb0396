"""Joins the world of its library, then answers requests from a socket until the socket closes."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable

from .job import Job, Library

_PR_SET_PDEATHSIG = 1
_WARM_UP_CALLS = 3


class Rank:
    """The requests to this rank, one method each. A method returns the answer."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._job: Job | None = None
        self._kept_jobs: dict[str, Job] = {}

    def make(self, *, work: dict[str, Any], turn: int, check: bool) -> dict[str, Any]:
        """Allocates memory and prepares the call of a work, or takes a kept one. check: compares the
        results for the values of this turn."""
        key = json.dumps(work)
        kept = self._kept_jobs.get(key)
        self._job = kept or self._library.make(work)
        if work.get("keep"):
            self._kept_jobs[key] = self._job
        wrong = self._job.check(turn) if check else 0
        self._job.clear()
        warm_up_calls = 0 if kept else getattr(self._job, "warm_up_calls", 0)
        for _ in range(max(_WARM_UP_CALLS, warm_up_calls)):
            self._job.call()
        return {"wrong": wrong}

    def burst(self, *, slices: int, calls: int) -> dict[str, Any]:
        """Times slices of calls. One call before them synchronizes the ranks."""
        assert self._job is not None
        call, each = self._job.call, getattr(self._job, "each", 1)
        before = getattr(self._job, "before", None)
        call()
        if before is None:
            seconds = [_seconds(call, calls) for _ in range(slices)]
        else:
            seconds = [_seconds_after(before, call, calls) for _ in range(slices)]
        return {"seconds": [slice_s / (calls * each) for slice_s in seconds], "each": each}

    def usage(self) -> dict[str, Any]:
        """The processor time of this process so far, in seconds, and its peak memory in bytes."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"cpu_s": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024}

    def drop(self) -> dict[str, Any]:
        """Frees the job's memory, unless it is kept. wrong: the number of wrong results after the timed
        calls."""
        assert self._job is not None
        wrong, self._job = self._job.after(), None
        return {"wrong": wrong}

    def rest(self, *, seconds: float) -> dict[str, Any]:
        """Sleeps, and returns the processor time that the library's own threads used meanwhile."""
        before = time.process_time()
        time.sleep(seconds)
        return {"cpu_s": time.process_time() - before}

    def memory(self) -> dict[str, Any]:
        """The memory of this process in bytes: now, and at its peak."""
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file.read().splitlines()[1:])
        now = {name: int(fields[name].split()[0]) * 1024 for name in ("Rss", "Pss")}
        return {**now, "peak": self.usage()["peak"]}


def _seconds(call: Callable[[], object], calls: int) -> float:
    """The seconds of so many calls, one after the other."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begin


def _seconds_after(before: Callable[[], object], call: Callable[[], object], calls: int) -> float:
    """The seconds of so many calls, without the work before each of them."""
    seconds = 0.0
    for _ in range(calls):
        before()
        begin = time.perf_counter()
        call()
        seconds += time.perf_counter() - begin
    return seconds


def _bind(rank: int, ranks: int) -> None:
    """Binds all threads of this process to one core if there are more ranks than cores, to the cores in
    turn. Intel MPI binds its ranks in this way. Without it, Linux may keep three of four ranks on one of
    two cores for a while."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        return
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})


def main() -> None:
    """Runs this rank."""
    begin = time.time()
    path, options = sys.argv[1], json.loads(sys.argv[2])
    # If the parent dies, nobody continues a stopped rank. So the rank is killed with its parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    library = importlib.import_module(f"{__package__}.{options['module']}").join(options)
    if options["bind"]:
        _bind(library.rank, library.ranks)
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    stream = line.makefile("rwb")

    def send(fields: dict[str, Any]) -> None:
        stream.write(json.dumps(fields).encode() + b"\n")
        stream.flush()

    package = getattr(sys.modules.get("rdmacoll"), "__file__", "")
    start_s = {"begin": begin, "joined": time.time(), **getattr(library, "start_s", {})}
    hello = {"rank": library.rank, "pid": os.getpid(), "facts": library.facts, "start_s": start_s}
    send({**hello, "package": package})
    rank = Rank(library)

    def obey() -> None:
        for request in stream:
            order = json.loads(request)
            try:
                send(getattr(rank, order.pop("do"))(**order))
            except Exception as error:
                send({"error": f"{type(error).__name__}: {error}"})

    serve = getattr(library, "serve", None)
    if serve is None:
        obey()
    else:  # `serve` needs the main thread, and returns when the workers have left
        threading.Thread(target=obey, daemon=True).start()
        serve()


if __name__ == "__main__":
    main()
