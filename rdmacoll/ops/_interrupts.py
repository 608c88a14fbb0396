"""Ctrl-C and SIGTERM while TensorFlow waits for a collective.

Python runs signal handlers in the main thread, between two of its own instructions. They do not run while
that thread is inside TensorFlow, and TensorFlow waits for another rank. So a separate thread receives the
signals. If the main thread is stuck, the separate thread leaves the world. Then pending operations fail,
TensorFlow returns, and Python runs its handler.
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

# The time that the main thread may stay at one place. A handler of the program often only notes that the
# current step is the last one. So the step gets as much time as the promised second allows.
_GRACE_S = 0.3
_GRACE_OF_HANDLERS_S = 0.7
_RETURN_S = 2.0  # for TensorFlow to return after pending operations have failed
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_python_waits: set[int] = set()  # threads


class SignalWatcher:
    """Listens to Python's wake-up descriptor while a world exists. The op library creates one."""

    def __init__(self, shared: Any) -> None:
        self._kernels = shared
        self._read = self._write = -1
        self._previous = -1  # the descriptor's previous owner, which gets the bytes as well
        os.register_at_fork(after_in_child=self._after_fork)

    def attach(self, engine: int) -> None:
        """Call when a world begins, or ends (engine 0). Only the main thread may set the descriptor."""
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
            signal.set_wakeup_fd(current)  # another owner has replaced our descriptor

    def _after_fork(self) -> None:
        # The pipe belongs to the parent: a signal of the child must not reach it.
        with contextlib.suppress(ValueError):
            self._stop()

    def _listen(self) -> None:
        while received := os.read(self._read, 64):
            if self._previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._previous, received)
            for number in received:
                if number in _SIGNALS:
                    self._handle_signal(signal.Signals(number))

    def _handle_signal(self, number: signal.Signals) -> None:
        is_default_handler = signal.getsignal(number) is signal.default_int_handler
        position = _main_thread_position()
        self._kernels.rc_tf_start_round()
        time.sleep(_GRACE_S if is_default_handler else _GRACE_OF_HANDLERS_S)
        is_waiting = self._kernels.rc_tf_waiting() > 0 or bool(_python_waits)
        if position is None or _main_thread_position() != position or not is_waiting:
            return
        if not world.is_initialized():
            return
        cause = "KeyboardInterrupt" if is_default_handler else number.name
        text = f"{number.name} came while TensorFlow waits for other ranks: this rank leaves."
        Log(rank=world.rank()).warning(text)
        with _exceptions_without_init(f"ShutdownError: {text}"):
            world.leave(cause)
            deadline = time.monotonic() + _RETURN_S
            while _main_thread_position() == position and time.monotonic() < deadline:
                time.sleep(0.01)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Use it around Python code that TensorFlow calls in a thread of its own, and that waits for other
    ranks. Such a thread counts as a kernel that waits."""
    thread = threading.get_ident()
    _python_waits.add(thread)
    try:
        yield
    finally:
        _python_waits.discard(thread)


@contextlib.contextmanager
def _exceptions_without_init(text: str) -> Iterator[None]:
    """Meanwhile TensorFlow raises its exceptions without running Python code. `text`: their message.

    Use it while a kernel ends with an error because this rank ends. TensorFlow's exceptions are Python
    classes, whose __init__ would be the first Python code in the main thread. The signal handler would run
    inside it, and pybind11 would replace the handler's exception by a RuntimeError.
    """
    code = tf.errors.UNKNOWN  # set by kernels, and by Python that TensorFlow has called
    fields: dict[Any, dict[str, Any]] = {
        tf.errors.UnknownError: {
            "_node_def": None,
            "_op": None,
            "_message": text,
            "_error_code": code,
            "_experimental_payloads": {},
        }
    }
    # Eager calls raise this class first. It is internal to TensorFlow. If it is missing, the handler's
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


def _main_thread_position() -> tuple[Any, int] | None:
    """The place of the main thread. It stays equal as long as the thread is in one call."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (frame, frame.f_lasti)
