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
from rdmacoll.errors import ConfigError

Reference = Callable[[], Any]


class _Claim:
    """The use of a name by a thread: the things that it names, and the threads that exist beside this one."""

    def __init__(self, thread: threading.Thread, objects: Sequence[Any]) -> None:
        self.title = thread.name
        self._thread = weakref.ref(thread)
        self._objects = [_reference(object_) for object_ in objects]
        others = (one for one in threading.enumerate() if one not in (thread, threading.main_thread()))
        self._concurrent_threads = [weakref.ref(one) for one in others]

    def is_of_thread(self, thread: threading.Thread) -> bool:
        return self._thread() is thread

    def names_same_objects(self, other: _Claim) -> bool:
        """Whether both are for the same things."""
        pairs = zip(self._objects, other._objects)
        return len(self._objects) == len(other._objects) and all(
            one() is not None and one() is another() for one, another in pairs
        )

    def is_concurrent_with(self, thread: threading.Thread) -> bool:
        """Whether ranks may run that thread before, after or while this name is used here."""
        return _is_alive(self._thread()) or any(one() is thread for one in self._concurrent_threads)

    def is_live(self) -> bool:
        """Whether a thread of this use, or beside it, may still use the name."""
        return _is_alive(self._thread()) or any(_is_alive(one()) for one in self._concurrent_threads)


class NameClaims:
    """The uses of each name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[str, list[_Claim]] = {}

    def claim(self, name: str, objects: Sequence[Any]) -> str | None:
        """Notes that this thread uses `name` for `objects`. Returns the title of another thread that uses
        it for other things at the same time, or None. A thread that has ended still counts if this thread
        existed beside it."""
        thread = threading.current_thread()
        own_claim = _Claim(thread, objects)
        with self._lock:
            others = [
                other
                for other in self._claims.get(name, ())
                if not other.is_of_thread(thread) and other.is_live()
            ]
            for other in others:
                if other.is_concurrent_with(thread) and not other.names_same_objects(own_claim):
                    return other.title
            self._claims[name] = [*others, own_claim]
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


def _reference(object_: Any) -> Reference:
    try:
        return weakref.ref(object_)
    except TypeError:
        return lambda: None  # equal to nothing


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
