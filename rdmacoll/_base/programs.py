"""Runs programs that start further ones, as compilers and installers do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


class OutOfTimeError(Exception):
    """The program did not end in time, and was ended with all that it had started. output: what they had
    printed."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self.output = output


def run_program(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. stdout: what it and the programs that it started print, errors too.

    If it has not ended after limit_s, or if this process is interrupted or asked to end (SIGTERM), all
    these programs are ended. Raises OutOfTimeError after limit_s, and OSError if the program cannot be
    started. Call it in the main thread.
    """
    known: list[subprocess.Popen[str]] = []  # the program, once a signal can end it
    early: list[int] = []  # signals that came before

    def leave(number: int, _: object = None) -> None:
        if not known:
            early.append(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            sys.exit(128 + number)

    # A signal to the group of this process does not reach the program's.
    taken = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        taken.append(signal.SIGINT)
    before = [(number, signal.signal(number, leave)) for number in taken]
    try:
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                known.append(process)
                if early:
                    leave(early[0])
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                _end(process)
                raise OutOfTimeError(process.communicate()[0]) from None
            except BaseException:
                _end(process)
                raise
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    return subprocess.CompletedProcess(command, process.returncode, output)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all have ended


def last_lines(output: str) -> str:
    """The last eight lines that say something, as one.

    >>> last_lines("a\\nb\\n\\nc\\n")
    'a b c'
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " ".join(lines[-8:])
