"""Kills or stops a rank at one step of its start. The others report their error.

Arguments: the rank, the step (a method of the library, or "init"), and "killed", "killed after it" or
"stays".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from ranks import report

import rdmacoll
from rdmacoll._abi.library import Library
from rdmacoll._start.bootstrap import described_rank

STAY_S = 40.0


def end_at(step: str, how: str) -> None:
    """Replaces the step with the end of this process."""
    plain = getattr(Library, step)

    def ends(*arguments: Any, **named: Any) -> Any:
        while how == "killed after it" and not plain(*arguments, **named):
            pass
        report({"at": time.time(), "pid": os.getpid()}, rank=described_rank())
        if how == "stays":
            time.sleep(STAY_S)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Library, step, ends)


def tell_when_in(step: str) -> None:
    """Reports this process's id when it reaches the step."""
    plain = getattr(Library, step)

    def tells(*arguments: Any, **named: Any) -> Any:
        setattr(Library, step, plain)
        report({"pid": os.getpid()}, rank=described_rank())
        return plain(*arguments, **named)

    setattr(Library, step, tells)


def main() -> None:
    """Starts this rank and reports the result."""
    ended, step, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    step = "readable_settings" if step == "init" else step  # the first library call of init()
    (end_at(step, how) if described_rank() == ended else tell_when_in(step))
    try:
        rdmacoll.init()
    except (rdmacoll.RdmacollError, KeyboardInterrupt) as error:
        fields = {name: getattr(error, name, None) for name in ("rank", "host", "cause")}
        reported = {"class": type(error).__name__, "text": str(error), "at": time.time(), "pid": os.getpid()}
        report({**reported, **fields}, rank=described_rank())
        raise


main()
