"""Builds programs for several ranks. Each rank reports the error that ended it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ranks import Run

# Runs `body` and reports the error that ended it.
FRAME = """
import os, sys, time, signal
import numpy as np, rdmacoll
from rdmacoll import engine
from ranks import report
rdmacoll.init({init})
me, size = rdmacoll.rank(), rdmacoll.size()
report({{"pid": os.getpid()}})
engine.barrier()
begin = time.monotonic()
try:
{body}
    outcome = {{"error": None}}
except rdmacoll.RdmacollError as error:
    outcome = {{"error": type(error).__name__, "text": str(error), "attributes": vars(error)}}
outcome.update(seconds=time.monotonic() - begin, at=time.time(), pid=os.getpid(), done=True)
report(outcome)
{after}
"""


def program(body: str, *, init: str = "", after: str = "") -> str:
    """Returns a program: every rank runs `body`, reports, and then runs `after`."""
    indented = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return FRAME.format(body=indented, init=init, after=after)


def refused_start(init: str = "") -> str:
    """Returns a program: each rank calls `init`, and reports the sentence that refuses it."""
    return f"""
import os, rdmacoll
from ranks import report
try:
    rdmacoll.init({init})
except rdmacoll.RdmacollError as error:
    report(str(error), rank=int(os.environ["RDMACOLL_RANK"]))
"""


def turns_of_a_thread_during(call: str) -> str:
    """A part of a body. Rank 1 begins `call`, a collective, a second late. A thread of each other rank must
    have turns meanwhile, so the waiting thread must not keep the interpreter's lock."""
    return f"""
import threading
turns, ends = [0], threading.Event()
def count():
    while not ends.wait(0.001):
        turns[0] += 1
thread = threading.Thread(target=count)
thread.start()
if me == 1:
    time.sleep(1)
before = turns[0]
{call}
meanwhile = turns[0] - before
ends.set()
thread.join()
assert me == 1 or meanwhile > 20, f"the thread had {{meanwhile}} turns: the waiting thread kept the lock"
"""


def wait_done(started: Run, ranks: Iterable[int], within_s: float) -> list[dict[str, Any]]:
    """Returns the final reports of these ranks. Fails if they do not come within `within_s` seconds."""
    ranks = list(ranks)
    end = time.monotonic() + within_s
    while True:
        found = [started.reported(rank) or {} for rank in ranks]
        if all(entry.get("done") for entry in found):
            return found
        assert time.monotonic() < end, f"not all of {ranks} ended: {found}\n{started.finish(0.1).text()}"
        time.sleep(0.02)
