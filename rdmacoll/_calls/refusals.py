"""Refusals: an operation that this rank's checks refuse has its place in the order all the same.

The ranks that have submitted it get a MismatchError with the reason, and what follows stays matched. The
library announces what it refuses itself; this is for the checks before it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from rdmacoll._abi import arguments, mirror
from rdmacoll._world.running import Engine
from rdmacoll.engine.errors import ConfigError, NotInitializedError

_MARK = "_rdmacoll_is_announced"


def is_announced(error: BaseException) -> bool:
    """Whether the other ranks have been told, or need not be."""
    return hasattr(error, _MARK)


def mark_announced(error: BaseException) -> None:
    """Nobody announces it again."""
    setattr(error, _MARK, True)


def announce(
    engine: Engine, kind: int, names: Sequence[str | None], process_set: int, error: BaseException
) -> None:
    """Tells the ranks of the set that `error` has refused operations of this kind with these names, of which
    each None takes one number. A group has one name. Only once for each error."""
    if is_announced(error) or engine.is_forked:
        return
    mark_announced(error)
    reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    try:
        with engine.held() as address:
            for name in names:
                _refuse(engine, address, kind, name, process_set, reason)
    except (ConfigError, NotInitializedError):
        pass  # a name that is none, or a world that has ended: there is nobody to tell


def _refuse(engine: Engine, address: int, kind: int, name: str | None, process_set: int, reason: str) -> None:
    title = None if name is None else ctypes.create_string_buffer(arguments.name(name).encode())
    titled = 0 if title is None else ctypes.addressof(title)
    request = bytearray(mirror.REQUEST.size)
    fields = (mirror.REQUEST.size, kind, 0, 0, 0, 1.0, 1.0, titled, 0, 0, 0, 0, 0, 0, 0, 0, 0, process_set)
    mirror.REQUEST.pack_into(request, 0, *fields, 0, 0)
    whole = (ctypes.c_char * len(request)).from_buffer(request)
    engine.library.refuse(address, ctypes.addressof(whole), reason.encode("utf-8", "replace"))
