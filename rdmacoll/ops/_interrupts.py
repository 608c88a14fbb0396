"""Ctrl-C and SIGTERM while TensorFlow waits for a collective.

Python runs signal handlers in the main thread, between two of its own instructions; while that thread is
inside TensorFlow, and TensorFlow waits for another rank, they never run. So a thread of its own hears of
the signals, and when the main thread is stuck it leaves the world: what is pending fails, TensorFlow
returns, and Python runs its handler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from rdmacoll._base.log import Log
from rdmacoll._world import world

# How long the main thread may stay where it is. A handler of the program's own often only notes that the
# step that runs is to be the last, so the step gets as long as a promised second allows.
_GRACE_S = 0.3
_GRACE_OF_HANDLERS_S = 0.7
_RETURN_S = 2.0  # for TensorFlow to come back, once nothing is pending
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_python_waits: set[int] = set()  # threads


class Watch:
    """Listens to Python's own wake-up descriptor while a world stands. Made once for the op library."""

    def __init__(self, shared: Any) -> None:
        self._kernels = shared
        self._read = self._write = -1
        self._previous = -1  # the descriptor's previous owner: bytes are handed on to it
        os.register_at_fork(after_in_child=self._after_fork)

    def attach(self, engine: int) -> None:
        """A world begins, or ends (0). Only the main thread may set the descriptor."""
        if threading.current_thread() is not threading.main_thread():
            return
        if engine:
            self._start()
        else:
            self._stop()

    def _start(self) -> None:
        if self._write < 0:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            threading.Thread(target=self._listen, name="rdmacoll-signals", daemon=True).start()
        previous = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if previous != self._write:
            self._previous = previous

    def _stop(self) -> None:
        if self._write < 0:
            return
        current = signal.set_wakeup_fd(self._previous)
        if current != self._write:
            signal.set_wakeup_fd(current)  # somebody has taken our place

    def _after_fork(self) -> None:
        # The pipe is the parent's: a signal here is no signal there.
        with contextlib.suppress(ValueError):
            self._stop()

    def _listen(self) -> None:
        while received := os.read(self._read, 64):
            if self._previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._previous, received)
            for number in received:
                if number in _SIGNALS:
                    self._heed(signal.Signals(number))

    def _heed(self, number: signal.Signals) -> None:
        is_plain = signal.getsignal(number) is signal.default_int_handler
        place = _place()
        self._kernels.rc_tf_start_round()
        time.sleep(_GRACE_S if is_plain else _GRACE_OF_HANDLERS_S)
        is_waiting = self._kernels.rc_tf_waiting() > 0 or bool(_python_waits)
        if place is None or _place() != place or not is_waiting:
            return
        if not world.is_initialized():
            return
        cause = "KeyboardInterrupt" if is_plain else number.name
        text = f"{number.name} came while TensorFlow waits for other ranks: this rank leaves."
        Log(rank=world.rank()).warning(text)
        with _exceptions_made_without_python(f"ShutdownError: {text}"):
            world.leave(cause)
            deadline = time.monotonic() + _RETURN_S
            while _place() == place and time.monotonic() < deadline:
                time.sleep(0.01)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Around Python that TensorFlow calls in a thread of its own, while it waits for other ranks: as a kernel
    that waits."""
    thread = threading.get_ident()
    _python_waits.add(thread)
    try:
        yield
    finally:
        _python_waits.discard(thread)


@contextlib.contextmanager
def _exceptions_made_without_python(text: str) -> Iterator[None]:
    """While TensorFlow returns with what a kernel says of our end.

    Its exceptions are Python classes: their __init__ would be the first Python code to run in the main
    thread, so the handler would run in there, where pybind11 replaces what it raises by a RuntimeError.
    """
    code = tf.errors.ABORTED
    fields: dict[Any, dict[str, Any]] = {
        cls: {
            "_node_def": None,
            "_op": None,
            "_message": text,
            "_error_code": number,
            "_experimental_payloads": {},
        }  # errors of a kernel, and of Python that TensorFlow has called
        for cls, number in ((tf.errors.AbortedError, code), (tf.errors.UnknownError, tf.errors.UNKNOWN))
    }
    # Eager calls raise this one first. It is TensorFlow's own affair: where it is gone, the handler's
    # exception may arrive as a RuntimeError, and nothing else changes.
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.eager import core

        fields[core._NotOkStatusException] = {"message": text, "code": code, "payloads": {}}
    plain = {cls: cls.__init__ for cls in fields}
    for cls, values in fields.items():
        for name, value in values.items():
            setattr(cls, name, value)  # for instances without: the handler may let the program go on
        cls.__init__ = Exception.__init__
    try:
        yield
    finally:
        for cls, init in plain.items():
            cls.__init__ = init


def _place() -> tuple[Any, int] | None:
    """The place of the main thread: equal as long as it is in one and the same call."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (frame, frame.f_lasti)
