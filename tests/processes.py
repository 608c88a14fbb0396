"""The state of processes that tests look at from outside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process runs. Zombies do not: nobody may ever wait for them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def left_alive(pids: Sequence[int], within_s: float) -> list[int]:
    """The processes that still run after this time. Returns earlier if there are none."""
    end = time.monotonic() + within_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return left
