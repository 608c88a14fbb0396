"""The rank that failed first, and the message about it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_BLAMED = re.compile(r"RankFailedError: rank (\d+)\b")
_TRACEBACK = "Traceback (most recent call last):"
_LINES_SHOWN, _FIRST_SHOWN = 50, 15
_LINES_WITHOUT_TRACEBACK = 10


@dataclass(frozen=True)
class Ended:
    """The end of a rank. code: its exit code, or the negative number of the signal that ended it."""

    rank: int
    host: str
    code: int
    pid: int = 0
    cause: str = ""  # if it was not started, if its host was lost, or if others wait for it
    has_processes: bool = False  # processes that it has started go on

    def exit_code(self) -> int:
        """The exit code of the whole job if this rank failed first.

        >>> Ended(1, "node2", -9).exit_code(), Ended(1, "node2", 3).exit_code()
        (137, 3)
        """
        return 128 - self.code if self.code < 0 else self.code

    def place(self) -> str:
        """Its host, and its process if it was started.

        >>> Ended(1, "node2", 3, pid=4711).place(), Ended(1, "node2", 127).place()
        ('node2, pid 4711', 'node2')
        """
        return f"{self.host}, pid {self.pid}" if self.pid else self.host

    def reason(self) -> str:
        """The reason in a few words.

        >>> Ended(1, "node2", -9).reason(), Ended(1, "node2", 3).reason()
        ('killed by SIGKILL', 'exit code 3')
        """
        if self.cause:
            return self.cause
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


def missing_in_init(ended: Mapping[int, Ended], inits: Mapping[int, int]) -> Ended | None:
    """The rank that has ended well while another one waits for it in `init`, or None. inits: the number of
    calls of each rank.

    >>> found = missing_in_init({1: Ended(1, "node2", 0)}, {0: 1})
    >>> found.reason()
    'exit code 0 without the init() in which rank 0 waits for it. Let all ranks call init(), or none'
    >>> missing_in_init({1: Ended(1, "node2", 0)}, {0: 1, 1: 1})
    >>> missing_in_init({1: Ended(1, "node2", 0, has_processes=True)}, {0: 1})
    """
    for end in ended.values():
        own = inits.get(end.rank, 0)
        waiting = [rank for rank, count in inits.items() if rank not in ended and count > own]
        if waiting and end.code == 0 and not end.has_processes:
            cause = (
                f"exit code 0 without the init() in which rank {min(waiting)} waits for it. "
                "Let all ranks call init(), or none"
            )
            return replace(end, code=1, cause=cause)
    return None


def blamed_rank(errors: Sequence[str]) -> int | None:
    """The rank that a rank's last lines name as lost, or None.

    >>> blamed_rank(["rdmacoll.errors.RankFailedError: rank 3 (node7, pid 4711) left: ValueError."])
    3
    """
    for line in reversed(errors):
        found = _BLAMED.search(line)
        if found:
            return int(found[1])
    return None


def first_failure(
    ended: Mapping[int, Ended], errors: Mapping[int, Sequence[str]]
) -> tuple[Ended | None, bool]:
    """The rank that failed first, and whether that is final. `ended` is in the order of the ends.

    A rank that has failed in Python takes a while to end, and others may end before it. Their errors name it.
    """
    first = next((end for end in ended.values() if end.code != 0), None)
    seen: set[int] = set()
    while first is not None and first.rank not in seen:
        seen.add(first.rank)
        other = blamed_rank(errors.get(first.rank, ()))
        if other is None:
            break
        if other not in ended:
            return first, False
        if ended[other].code == 0 or other in seen:
            break
        first = ended[other]
    return first, True


def lines_of(errors: Sequence[str], output: Sequence[str]) -> list[str]:
    """The lines to show of a failed rank: from its last traceback on, or its last lines."""
    starts = [number for number, line in enumerate(errors) if line.startswith(_TRACEBACK)]
    if not starts:
        return list((errors or output)[-_LINES_WITHOUT_TRACEBACK:])
    start = starts[-1]
    # The traceback of an exception that was raised while another was handled begins with the first one.
    while len(starts) > 1 and errors[start - 2 : start - 1] and "exception" in errors[start - 2]:
        starts.pop()
        start = starts[-1]
    lines = list(errors[start:])
    if len(lines) <= _LINES_SHOWN:
        return lines
    rest = _LINES_SHOWN - _FIRST_SHOWN
    return [*lines[:_FIRST_SHOWN], f"... {len(lines) - _LINES_SHOWN} lines ...", *lines[-rest:]]


def message_about(first: Ended, size: int, lines: Sequence[str]) -> str:
    """The last lines on the screen after a failure."""
    others = "" if size == 1 else ", and the other ranks were ended"
    head = (
        f"rdmacoll run: rank {first.rank} of {size} ({first.place()}) failed first: {first.reason()}{others}."
    )
    return with_last_lines(head, lines)


def with_last_lines(head: str, lines: Sequence[str]) -> str:
    """A message about a failed rank, with the last lines that it has printed.

    >>> with_last_lines("rank 1 failed.", ["ValueError"]), with_last_lines("rank 1 failed.", [])
    ('rank 1 failed. Its last lines:\\n  ValueError', 'rank 1 failed.')
    """
    shown = "".join(f"\n  {line}" for line in lines)
    return f"{head}{' Its last lines:' if lines else ''}{shown}"
