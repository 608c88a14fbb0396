"""Does something once for all threads of the process."""

from __future__ import annotations

import functools
import threading
from typing import Callable, TypeVar

_T = TypeVar("_T")


def once(function: Callable[[], _T]) -> Callable[[], _T]:
    """`function`, run once for all threads: further calls wait for its end, and return the same result.
    After an exception the next call runs it again.

    `functools.lru_cache` lets two threads run it at the same time.
    """
    lock = threading.RLock()
    results: list[_T] = []

    @functools.wraps(function)
    def run() -> _T:
        if not results:
            with lock:
                if not results:
                    results.append(function())
        return results[0]

    return run
