"""How this process ends, as a phrase for other ranks that still submit operations."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Callable, NoReturn

# Before 3.12 Python reports a SystemExit only if it comes through sys.exit.
_UNKNOWN = "its program ended: its data ended, or it raised SystemExit"
_LEFT_AFTER = "it left after "
_LAST_ACTION: list[str] = []  # at most one


# TensorFlow's error of a graph begins with the places in the program that built the failed op, up to a
# hundred lines, and ends with the reason. The details of an error of rdmacoll repeat its sentence.
_PLACES = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces unavailable>|^ *File \".*\", line \d+, in .*$"
    r"|\{\{function_node .*?\}\}|\[\[[A-Za-z][\w/.-]*\]\]|\[Op:\S+?\](?: name: )?|\[rdmacoll \{.*\}\]",
    re.MULTILINE,
)
# The error of a Python function in a graph has its exception, its traceback, and the exception again.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(.*)")
_NODE = re.compile(r"\[\[\{\{node (.*?)\}\}\]\]")

# Tool numbers of sys.monitoring without a predefined use.
_TOOLS = (3, 4)


def is_harmless(cause: str) -> bool:
    """Whether a rank with this cause has ended without an error, as far as this is known.

    >>> is_harmless("SystemExit: 0"), is_harmless("ValueError: nan")
    (True, False)
    """
    return cause in ("", _UNKNOWN, "SystemExit: 0") or cause.startswith(_LEFT_AFTER)


def note_last_action(text: str) -> None:
    """Notes the last thing that this process has done, as text. "" removes the note.

    If this rank leaves without an error while other ranks wait for it, their message has this text.
    """
    _LAST_ACTION[:] = [text] if text else []


def last_action() -> str:
    """The noted last action as a phrase; "" without one."""
    return f"{_LEFT_AFTER}{_LAST_ACTION[0]}" if _LAST_ACTION else ""


def error_phrase(error: BaseException) -> str:
    """An exception in one phrase.

    >>> error_phrase(ValueError("nan")), error_phrase(KeyboardInterrupt())
    ('ValueError: nan', 'KeyboardInterrupt')
    """
    if isinstance(error, Terminated):
        return str(error)
    text = reason_in(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason_in(text: str) -> str:
    """The text of an exception on one line, without the places in the program that TensorFlow adds.

    >>> reason_in('Graph execution error:\\n\\nDetected at node a defined at (most recent call last):\\n'
    ...     '  File "train.py", line 3, in <module>\\n\\nindices[2] = 9 is not in [0, 5)\\n'
    ...     '\\t [[{{node a}}]] [Op:__inference_step_9]')
    'indices[2] = 9 is not in [0, 5) (node a)'
    """
    text = _TRACEBACK.sub(_end_of_traceback, text)
    return " ".join(_NODE.sub(r"(node \1)", _PLACES.sub("", text)).split())


def _end_of_traceback(found: re.Match[str]) -> str:
    """The exception at the end of a traceback; "" if the text before has it already."""
    return "" if found[1] in found.string[: found.start()] else found[1]


class Terminated(SystemExit):
    """SIGTERM has come, from a batch system, a container's manager or a person.

    The exit status is the one that a shell shows for a child that SIGTERM has ended.
    """

    def __init__(self) -> None:
        super().__init__("SIGTERM")
        self.code = 128 + signal.SIGTERM


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Makes SIGTERM raise Terminated inside the block, so that other ranks hear the reason.

    A handler that the program itself has installed stays. Only Python's main thread handles signals.
    """
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


class ExitCause:
    """Records the end of the program: an uncaught exception, or `sys.exit`."""

    def __init__(self) -> None:
        self._cause = ""
        self._reported: BaseException | None = None
        self._without_traceback: Callable[[], BaseException | None] = lambda: None
        self.is_failure = False  # an exception, or an exit code other than 0
        self.is_exception = False  # an uncaught exception

    def reset(self) -> None:
        """Clears the record for a new world. An earlier exception is not the cause of its end."""
        self._cause = ""
        note_last_action("")
        self.is_failure = self.is_exception = False

    def mark_reported(self, error: BaseException) -> None:
        """Marks an error that ends the program as already reported. It gets no traceback."""
        self._reported = error

    def hide_traceback(self, error: BaseException) -> None:
        """Marks an error whose message says everything.

        If it ends the program, it gets no traceback. A traceback inside rdmacoll would hide the message.
        """
        self._without_traceback = weakref.ref(
            error
        )  # weak, since its traceback holds objects that the start has opened

    def cause(self) -> str:
        """One phrase, with the exception's class if it is known."""
        return self._cause or last_action() or _UNKNOWN

    def install_hooks(self, on_failure: Callable[[], None]) -> None:
        """Hooks into sys.excepthook and sys.exit.

        Calls `on_failure` at the end of a program that failed, before Python waits for its other threads. One
        of these may wait for other ranks.
        """
        self._hook_exceptions()
        self._hook_exit()
        self._hook_raised()

        def leave_on_failure() -> None:
            if self.is_failure:
                on_failure()

        # atexit would be too late. This function is private, but concurrent.futures uses it since Python 3.9.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(leave_on_failure)

    def _hook_exceptions(self) -> None:
        previous = sys.excepthook

        def record(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            self._cause = error_phrase(value)
            self.is_failure = self.is_exception = True
            if value is self._without_traceback() and value is not self._reported and sys.stderr is not None:
                print(f"rdmacoll.{kind.__name__}: {value}", file=sys.stderr, flush=True)
            elif value is not self._reported:
                previous(kind, value, trace)

        sys.excepthook = record

    def _hook_exit(self) -> None:
        previous = sys.exit

        def leave(status: Any = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():  # another thread ends only itself
                self._record_exit(status)
            previous(status)

        leave.__name__, leave.__doc__ = "exit", previous.__doc__
        sys.exit = leave

    def _record_exit(self, status: Any) -> None:
        code = 0 if status is None else status
        self._cause = f"SystemExit: {code}"
        self.is_failure = code != 0

    def _hook_raised(self) -> None:
        """From Python 3.12 on: records a `raise SystemExit`, and forgets one that is caught.

        Only raising costs time.
        """
        monitoring = getattr(sys, "monitoring", None)
        tool = next((one for one in _TOOLS if monitoring and monitoring.get_tool(one) is None), None)
        if monitoring is None or tool is None:
            return

        def raised(_code: Any, _offset: int, error: BaseException) -> None:
            if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
                self._record_exit(error.code)

        def handled(_code: Any, _offset: int, error: BaseException) -> None:
            if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
                self.reset()  # a `finally` block raises it again

        monitoring.use_tool_id(tool, "rdmacoll")
        for event, handler in (("RAISE", raised), ("RERAISE", raised), ("EXCEPTION_HANDLED", handled)):
            number = getattr(monitoring.events, event)
            monitoring.register_callback(tool, number, handler)
            monitoring.set_events(tool, monitoring.get_events(tool) | number)
