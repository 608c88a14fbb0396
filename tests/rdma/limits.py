"""Starts commands that may pin little memory."""

from __future__ import annotations

from collections.abc import Sequence

# Root may pin what it likes, unless it gives up the right to; nobody else has that.
_WITHOUT_THE_RIGHT = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")


def limited(memlock: int, *, as_root: bool) -> Sequence[str]:
    """What stands before a command whose RLIMIT_MEMLOCK is to be so many bytes.

    A user may lower limits, too: only who starts as root needs root for it.
    """
    return ["prlimit", f"--memlock={memlock}:{memlock}", *(_WITHOUT_THE_RIGHT if as_root else ())]
