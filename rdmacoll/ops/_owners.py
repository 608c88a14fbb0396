"""Names that two threads of a process use at the same time.

Ranks match collectives by name. One thread runs its collectives in the order of the program, which ranks
share, so a name may mean several things in turn. Two threads have no common order: a name that they share
must mean one thing, or a rank could take one model's gradients for another's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, Callable, NoReturn

from rdmacoll._calls.refusals import mark_announced
from rdmacoll._world import world
from rdmacoll.engine.errors import ConfigError

Reference = Callable[[], Any]


class _Use:
    """The use of a name by a thread: the things that it names, and the threads that exist beside this one."""

    def __init__(self, thread: threading.Thread, things: Sequence[Any]) -> None:
        self.title = thread.name
        self._thread = weakref.ref(thread)
        self._things = [_reference(thing) for thing in things]
        others = (one for one in threading.enumerate() if one not in (thread, threading.main_thread()))
        self._beside = [weakref.ref(one) for one in others]

    def is_by(self, thread: threading.Thread) -> bool:
        return self._thread() is thread

    def is_for(self, other: _Use) -> bool:
        """Whether both are for the same things."""
        pairs = zip(self._things, other._things)
        return len(self._things) == len(other._things) and all(
            one() is not None and one() is another() for one, another in pairs
        )

    def is_beside(self, thread: threading.Thread) -> bool:
        """Whether ranks may run that thread before, after or while this name is used here."""
        return _is_alive(self._thread()) or any(one() is thread for one in self._beside)

    def matters(self) -> bool:
        """Whether a thread of this use, or beside it, may still use the name."""
        return _is_alive(self._thread()) or any(_is_alive(one()) for one in self._beside)


class Owners:
    """The uses of each name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[str, list[_Use]] = {}

    def claim(self, name: str, things: Sequence[Any]) -> str | None:
        """Notes that this thread uses `name` for `things`. Returns the title of another thread that uses
        it for other things at the same time, or None. A thread that has ended still counts if this thread
        existed beside it."""
        me = threading.current_thread()
        mine = _Use(me, things)
        with self._lock:
            others = [use for use in self._uses.get(name, ()) if not use.is_by(me) and use.matters()]
            for use in others:
                if use.is_beside(me) and not use.is_for(mine):
                    return use.title
            self._uses[name] = [*others, mine]
        return None


def refuse(sentence: str) -> NoReturn:
    """Raises ConfigError, and ends the world with it: other ranks may meet the wrong thread already."""
    world.leave(f"ConfigError: {sentence}")
    error = ConfigError(sentence)
    mark_announced(error)
    raise error


def threads_text(other: str) -> str:
    """Both threads, for a sentence."""
    return f"two threads ({other!r} and {threading.current_thread().name!r})"


def _reference(thing: Any) -> Reference:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: None  # equal to nothing


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
