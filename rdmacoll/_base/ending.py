"""How this process ends, in words: what the other ranks are told when they still submit."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Callable, NoReturn

# Before 3.12 Python tells nobody of a SystemExit that did not come through sys.exit.
_UNKNOWN = "its program ended: its data ended, or it raised SystemExit"
_LEFT = "it left after "
_REMARKS: list[str] = []  # at most one


# Of sys.monitoring: the numbers that are nobody's.
_TOOLS = (3, 4)


def is_harmless(cause: str) -> bool:
    """Whether a rank that leaves with these words has ended well, as far as it can be told.

    >>> is_harmless("SystemExit: 0"), is_harmless("ValueError: nan")
    (True, False)
    """
    return cause in ("", _UNKNOWN, "SystemExit: 0") or cause.startswith(_LEFT)


def remark(text: str) -> None:
    """What this process has done, which other ranks hear if it leaves in peace while they wait for it; ""
    takes it back."""
    _REMARKS[:] = [text] if text else []


def farewell() -> str:
    """The remark in a phrase; "" where there is none."""
    return f"{_LEFT}{_REMARKS[0]}" if _REMARKS else ""


def phrase_of(error: BaseException) -> str:
    """An exception in one phrase.

    >>> phrase_of(ValueError("nan")), phrase_of(KeyboardInterrupt())
    ('ValueError: nan', 'KeyboardInterrupt')
    """
    if isinstance(error, Terminated):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Terminated(SystemExit):
    """SIGTERM has come, from a batch system, a container's manager or a person. The exit status is that of a
    shell's child that the signal has ended."""

    def __init__(self) -> None:
        super().__init__("SIGTERM")
        self.code = 128 + signal.SIGTERM


@contextlib.contextmanager
def told_of_sigterm() -> Iterator[None]:
    """SIGTERM raises Terminated inside the block, so that other ranks hear the reason. A handler that the
    program has installed itself stays; signals reach Python's main thread only."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(_number: int, _frame: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Ending:
    """Remembers what ends the program: an exception that nobody catches, or `sys.exit`."""

    def __init__(self) -> None:
        self._cause = ""
        self._told: BaseException | None = None
        self._plain: Callable[[], BaseException | None] = lambda: None
        self.is_failure = False  # an exception, or an exit code other than 0
        self.is_exception = False  # one that nobody caught

    def forget(self) -> None:
        """A new world: what was caught before it is not its end."""
        self._cause = ""
        remark("")
        self.is_failure = self.is_exception = False

    def is_told(self, error: BaseException) -> None:
        """Of an error that ends the program: it has been said, and needs no traceback."""
        self._told = error

    def is_plain(self, error: BaseException) -> None:
        """Of an error whose sentence says everything: where it ends the program, a traceback of what is
        inside rdmacoll would only push the sentence off the screen."""
        self._plain = weakref.ref(error)  # its traceback holds what the start has opened

    def cause(self) -> str:
        """One phrase, with the exception's class where it is known."""
        return self._cause or farewell() or _UNKNOWN

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Hooks into sys.excepthook and sys.exit. `on_failure` is called at the end of a program that
        failed, before Python waits for its other threads: one of them may wait for other ranks."""
        self._watch_exceptions()
        self._watch_exit()
        self._watch_raised()

        def leave_early() -> None:
            if self.is_failure:
                on_failure()

        # atexit would be too late. Private, but concurrent.futures lives by it since Python 3.9.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(leave_early)

    def _watch_exceptions(self) -> None:
        previous = sys.excepthook

        def record(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            self._cause = phrase_of(value)
            self.is_failure = self.is_exception = True
            if value is self._plain() and value is not self._told and sys.stderr is not None:
                print(f"rdmacoll.{kind.__name__}: {value}", file=sys.stderr, flush=True)
            elif value is not self._told:
                previous(kind, value, trace)

        sys.excepthook = record

    def _watch_exit(self) -> None:
        previous = sys.exit

        def leave(status: Any = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread alone
                self._exits_with(status)
            previous(status)

        leave.__name__, leave.__doc__ = "exit", previous.__doc__
        sys.exit = leave

    def _exits_with(self, status: Any) -> None:
        code = 0 if status is None else status
        self._cause = f"SystemExit: {code}"
        self.is_failure = code != 0

    def _watch_raised(self) -> None:
        """From Python 3.12 on: a SystemExit that is raised by itself, and one that is caught on its way. Only
        who raises pays for it."""
        monitoring = getattr(sys, "monitoring", None)
        tool = next((one for one in _TOOLS if monitoring and monitoring.get_tool(one) is None), None)
        if monitoring is None or tool is None:
            return

        def raised(_code: Any, _offset: int, error: BaseException) -> None:
            if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
                self._exits_with(error.code)

        def handled(_code: Any, _offset: int, error: BaseException) -> None:
            if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
                self.forget()  # `finally` raises it anew

        monitoring.use_tool_id(tool, "rdmacoll")
        for event, hears in (("RAISE", raised), ("RERAISE", raised), ("EXCEPTION_HANDLED", handled)):
            number = getattr(monitoring.events, event)
            monitoring.register_callback(tool, number, hears)
            monitoring.set_events(tool, monitoring.get_events(tool) | number)
