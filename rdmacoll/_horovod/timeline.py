"""Timelines: the operations of rank 0 with their times, in a file of Chrome's trace format."""

from __future__ import annotations

import os
import threading
from typing import Any

from rdmacoll._base.external_values import path_of
from rdmacoll._world import world

_ONE_AT_A_TIME = threading.Lock()


def start_timeline(file_path: Any, mark_cycles: bool = False) -> None:
    """Writes the operations that end from now on to `file_path`: a JSON list of Chrome's trace format.

    Rank 0 writes, and other ranks do nothing. An operation has two spans with Horovod's names:
    NEGOTIATE_ALLREDUCE, the wait for other ranks, and ALLREDUCE, the operation itself. A timeline that is
    written already is completed first; if it has the same path, it goes on. mark_cycles has no effect, since
    there are no cycles.

    Raises ValueError before `init`, and on rank 0 for a file that cannot be written.
    """
    del mark_cycles
    path = path_of("file_path", file_path)
    _write_to(os.fsencode(path))


def stop_timeline() -> None:
    """Completes the file of the timeline. Without a timeline it does nothing. `shutdown` does the same.

    Raises ValueError before `init`.
    """
    _write_to(b"")


def _write_to(path: bytes) -> None:
    engine = world.current()
    with _ONE_AT_A_TIME, engine.held() as address:
        if engine.topology[0] == 0 and not engine.is_server:
            engine.library.engine_timeline(address, path)
