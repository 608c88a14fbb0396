"""ArrayKeeper: keeps arrays as long as a GPU may use them, although their calls have returned."""

from __future__ import annotations

import queue
import threading
import time
from typing import Callable

# The time between two looks. It grows while no work ends.
_INTERVALS_S = 0.002, 0.05
_END_LIMIT_S = 5.0


class ArrayKeeper:
    """Handles of work, and the arrays that it uses, until the work is done.

    A thread lets go of them. The caller's thread does not, since the end of an array may call the CUDA
    driver, which waits for kernels when it frees memory. Any thread may call all methods. Garbage collection
    may end an operation in the middle of one of them, which then calls another.
    """

    def __init__(self, is_done: Callable[[int], object], free: Callable[[int], object]) -> None:
        """is_done, free: of a handle."""
        self._is_done, self._free = is_done, free
        self._lock = threading.RLock()
        self._kept: list[tuple[int, object]] = []
        self._has_ended = False
        # Wakes the thread. Garbage collection in the middle of `put` may put, too. An Event would hang then.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_started = False

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, handle: int, arrays: object) -> None:
        """Takes the handle, and frees it when its work is done. After `end` it frees it at once."""
        with self._lock:
            if self._has_ended:
                self._free(handle)
                return
            self._kept.append((handle, arrays))
            is_first, self._is_started = not self._is_started, True
        self._news.put(None)
        if is_first:  # without the lock, which garbage collection in the new thread may need
            thread = threading.Thread(target=self._run, name="rdmacoll arrays", daemon=True)
            thread.start()
            self._thread = thread

    def is_done(self) -> bool:
        """Whether all work is done."""
        with self._lock:
            return all(self._is_done(handle) for handle, _ in list(self._kept))

    def end(self) -> None:
        """Frees all handles. Call it when no work is left."""
        with self._lock:
            self._has_ended = True
            kept, self._kept = self._kept, []
            for handle, _ in kept:
                self._free(handle)
        self._news.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_LIMIT_S)  # the end of an array may wait for a kernel

    def _run(self) -> None:
        interval_s = _INTERVALS_S[0]
        while not self._has_ended:
            if not self._kept:
                self._news.get()
            for _ in range(self._news.qsize()):
                self._news.get()
            time.sleep(interval_s)
            interval_s = _INTERVALS_S[0] if self._let_go() else min(2 * interval_s, _INTERVALS_S[1])

    def _let_go(self) -> bool:
        """Returns whether some work was done."""
        done = []  # the arrays end when this function returns, without the lock
        with self._lock:
            for _ in range(len(self._kept)):
                handle, arrays = self._kept.pop(0)
                if self._is_done(handle):
                    self._free(handle)
                    done.append(arrays)
                else:
                    self._kept.append((handle, arrays))
        return len(done) > 0
