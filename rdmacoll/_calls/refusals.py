"""Refusals: an operation that this rank's checks refuse still takes its place in the order.

The ranks that have submitted it get a MismatchError with the reason, and later operations stay matched. The
library announces its own refusals. This module is for the checks before the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from rdmacoll._abi import arguments, mirror
from rdmacoll._world.running_engine import Engine
from rdmacoll.errors import ConfigError, NotInitializedError

_MARK = "_rdmacoll_is_announced"


def is_announced(error: BaseException) -> bool:
    """Whether the other ranks have been told, or need not be told."""
    return hasattr(error, _MARK)


def mark_announced(error: BaseException) -> None:
    """Marks an error so that no later `announce` repeats it."""
    setattr(error, _MARK, True)


def announce(
    engine: Engine, kind: int, names: Sequence[str | None], process_set: int, error: BaseException
) -> None:
    """Tells the ranks of the set that `error` has refused operations of this kind with these names.

    Each None among the names takes one sequence number. A group has one name. Each error is announced once.
    """
    if is_announced(error) or engine.is_forked:
        return
    mark_announced(error)
    reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    try:
        with engine.held() as address:
            for name in names:
                _refuse(engine, address, kind, name, process_set, reason)
    except (ConfigError, NotInitializedError):
        pass  # an invalid name, or a world that has ended: no rank waits for the announcement


class Announced:
    """A context for the checks of one operation, which announces the exception that refuses it.

    Asynchronous calls use it, and a context made by contextlib would add a microsecond to each.
    """

    __slots__ = ("_engine", "_kind", "_name", "_process_set")

    def __init__(self, engine: Engine, kind: int, name: str | None, process_set: int) -> None:
        self._engine, self._kind, self._name, self._process_set = engine, kind, name, process_set

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            announce(self._engine, self._kind, (self._name,), self._process_set, error)


def _refuse(engine: Engine, address: int, kind: int, name: str | None, process_set: int, reason: str) -> None:
    name_buffer = None if name is None else ctypes.create_string_buffer(arguments.name(name).encode())
    name_address = 0 if name_buffer is None else ctypes.addressof(name_buffer)
    request = bytearray(mirror.REQUEST.size)
    fields = (kind, 0, 0, 0, 1.0, 1.0, name_address, *[0] * 9, process_set, *[0] * 4)
    mirror.REQUEST.pack_into(request, 0, *fields)
    struct_buffer = (ctypes.c_char * len(request)).from_buffer(request)
    engine.library.refuse(address, ctypes.addressof(struct_buffer), reason.encode("utf-8", "replace"))
