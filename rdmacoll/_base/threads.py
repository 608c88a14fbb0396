"""Starts threads. A limit of the system may refuse them."""

from __future__ import annotations

import resource
import threading
import traceback
from pathlib import Path

from rdmacoll.errors import ConfigError, RdmacollError


def start(thread: threading.Thread) -> threading.Thread:
    """Starts the thread, and returns it. Raises ConfigError with the limit and the cure if it is refused."""
    try:
        thread.start()
    except RuntimeError as error:
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limit = "" if most == resource.RLIM_INFINITY else f" this user may have {most} processes and threads"
        raise ConfigError(
            f"cannot start the thread {thread.name}: {error};{limit or ' a limit is reached'} (RLIMIT_NPROC, "
            "or pids.max of the container). Raise it by `ulimit -u` in the script that starts the ranks, or "
            "by docker run --pids-limit, or lower the threads of other libraries (OMP_NUM_THREADS=1)."
        ) from None
    return thread


def fault(name: str, error: Exception) -> RdmacollError:
    """The error for a thread of the start that met an unexpected exception."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return RdmacollError(
        f"the thread {name} failed: {type(error).__name__}: {error} ({Path(last.filename).name}, line "
        f"{last.lineno}). This is a fault of rdmacoll: please report it with this sentence."
    )


def check() -> None:
    """Raises ConfigError if no thread can be started now, before other ranks wait for this one."""
    start(threading.Thread(target=lambda: None, name="rdmacoll-check", daemon=True)).join()
