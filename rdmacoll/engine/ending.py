"""How this process ends, in words: what the other ranks are told when they still submit."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, Callable, NoReturn

# Python tells nobody of a SystemExit that did not come through sys.exit.
_UNKNOWN = "its program ended: its data ended, or it raised SystemExit"


def is_harmless(cause: str) -> bool:
    """Whether a rank that leaves with these words has ended well, as far as it can be told.

    >>> is_harmless("SystemExit: 0"), is_harmless("ValueError: nan")
    (True, False)
    """
    return cause in ("", _UNKNOWN, "SystemExit: 0")


def phrase_of(error: BaseException) -> str:
    """An exception in one phrase.

    >>> phrase_of(ValueError("nan")), phrase_of(KeyboardInterrupt())
    ('ValueError: nan', 'KeyboardInterrupt')
    """
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Ending:
    """Remembers what ends the program: an exception that nobody catches, or `sys.exit`."""

    def __init__(self) -> None:
        self._cause = ""
        self.is_failure = False  # an exception, or an exit code other than 0
        self.is_exception = False  # one that nobody caught

    def forget(self) -> None:
        """A new world: what was caught before it is not its end."""
        self._cause = ""
        self.is_failure = self.is_exception = False

    def cause(self) -> str:
        """One phrase, with the exception's class where it is known."""
        return self._cause or _UNKNOWN

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Hooks into sys.excepthook and sys.exit. `on_failure` is called at the end of a program that
        failed, before Python waits for its other threads: one of them may wait for other ranks."""
        self._watch_exceptions()
        self._watch_exit()

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
            previous(kind, value, trace)

        sys.excepthook = record

    def _watch_exit(self) -> None:
        previous = sys.exit

        def leave(status: Any = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread alone
                code = 0 if status is None else status
                self._cause = f"SystemExit: {code}"
                self.is_failure = code != 0
            previous(status)

        leave.__name__, leave.__doc__ = "exit", previous.__doc__
        sys.exit = leave
