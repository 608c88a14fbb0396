"""Starts commands that may pin little memory."""

from __future__ import annotations

from collections.abc import Sequence

# Root may pin any amount of memory unless it gives up this capability. Other users do not have it.
_WITHOUT_THE_RIGHT = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")


def limited(memlock: int, *, as_root: bool) -> Sequence[str]:
    """Returns the words before a command that limit its RLIMIT_MEMLOCK to `memlock` bytes.

    as_root: the caller is root, so the words also drop the capability to exceed the limit.
    """
    return ["prlimit", f"--memlock={memlock}:{memlock}", *(_WITHOUT_THE_RIGHT if as_root else ())]
