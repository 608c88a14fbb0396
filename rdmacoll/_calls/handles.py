"""Handles of operations in flight, which callers wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Callable

from rdmacoll._abi import arguments
from rdmacoll._calls.submission import Operation


class Handle:
    """An operation in flight, from one of the `*_async` functions.

    Leave the arrays given to it alone until `wait()` has returned. With arrays on a GPU, later work of the
    call's stream may then use them.
    """

    def __init__(self, operations: Sequence[Operation], result: Callable[[], Any]) -> None:
        self._operations = operations
        self._result: Callable[[], Any] | None = result
        # Several threads may come out of the first wait. One of them makes the result. Reentrant: a handler
        # of a signal may wait, too, while its thread makes the result. Then the first one that is kept stays.
        self._lock = threading.RLock()
        self._kept: dict[str, Any] = {}

    def wait(self, timeout_s: float | None = None) -> Any:
        """The result. Raises the operation's error, or TimeoutError if `timeout_s` seconds pass first.
        The caller may wait again. On a GPU the result is complete for later work of the call's stream, which
        must still exist. With stream=2 it is the stream of the thread that waits. If the engine allocates the
        result, as for `allgather_async`, that is the first such thread. Threads that wait at the same time
        get the same object."""
        if self._result is None:
            for operation in self._operations:
                operation.let_follow()
            return self._kept["result"]
        if timeout_s is not None:
            timeout_s = arguments.timeout(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for operation in self._operations:
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not operation.wait(remaining_s):
                raise TimeoutError(f"the operation did not end within {timeout_s:g} s.")
        with self._lock:
            make = self._result
            if make is not None:
                self._kept.setdefault("result", make())
                self._result = None
                # Threads in the loop above have their operation still.
                self._operations = [one for one in self._operations if not one.has_passed_results_on]
        return self._kept["result"]

    def done(self) -> bool:
        """Whether `wait()` would return or raise at once. Before the first `wait()`, the result is also
        complete for every stream then, and the arrays are free."""
        return self._result is None or all(operation.is_done() for operation in self._operations)
