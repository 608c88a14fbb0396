"""The command line of tests/rdma/guest.

The exit status is the command's own. It is 2 for wrong usage, and 124 if the command did not end within its
time. It is 125 if the guest died or could not start, so that the command has no exit status.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rdma import guest
from rdma.cache import GuestError, say
from rdma.machine import Options

USAGE, TIMED_OUT, NO_STATUS = 2, 124, 125


def main(arguments: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = _parser()
    own, command = _split(arguments)
    parsed = parser.parse_args(own)
    if not command and not parsed.prepare:
        parser.print_usage(sys.stderr)
        return USAGE
    # A shell script starts background processes with SIGINT ignored. A guest must end on SIGINT all the same.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        if parsed.prepare:
            guest.prepare(parsed.kernel, parsed.jobs)
            return 0
        result = guest.run(command, _options(parsed), sys.stdout.buffer, sys.stderr.buffer)
    except guest.RefusedError as error:
        say(str(error))
        return USAGE
    except guest.TimedOutError as error:
        say(str(error))
        return TIMED_OUT
    except GuestError as error:
        say(str(error))
        return NO_STATUS
    except KeyboardInterrupt:
        say("interrupted")
        return 128 + signal.SIGINT
    return result.code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the words into our options and the command.

    The command begins after `--`, or at the first word that is no option of ours.
    """
    words = list(arguments)
    position = 0
    while position < len(words) and words[position].startswith("-"):
        if words[position] == "--":
            return words[:position], words[position + 1 :]
        takes_value = words[position] not in ("-h", "--help", "--prepare") and "=" not in words[position]
        position += 2 if takes_value else 1
    return words[:position], words[position:]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="guest",
        usage="tests/rdma/guest [OPTIONS] [--] COMMAND...",
        description="Runs a command in a guest with soft-RoCE devices. Files are the host's, read-only.",
        allow_abbrev=False,
    )
    parser.add_argument("--kernel", choices=("auto", *guest.KINDS), default="auto")
    parser.add_argument(
        "--hosts", type=int, default=2, help="devices rxe1, rxe2, ... at 10.9.0.1, 10.9.0.2, ..."
    )
    parser.add_argument("--memory", default="2G", help="of the guest")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="for boot and command together"
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="passed as well")
    parser.add_argument(
        "--writable", action="append", default=[], metavar="FOLDER", help="what is written stays"
    )
    parser.add_argument("--console", metavar="FILE", help="keeps the kernel's messages")
    parser.add_argument("--prepare", action="store_true", help="only builds what runs need, into the cache")
    parser.add_argument("--jobs", type=int, help="compilers at once, for the build of the kernel")
    return parser


def _options(parsed: argparse.Namespace) -> Options:
    extra = {}
    for item in parsed.env:
        name, equals, value = item.partition("=")
        extra[name] = value if equals else os.environ.get(name, "")
    return Options(
        kernel=parsed.kernel,
        hosts=parsed.hosts,
        memory=parsed.memory,
        timeout_s=parsed.timeout,
        environment=extra,
        writable=[Path(folder) for folder in parsed.writable],
        console=Path(parsed.console) if parsed.console else None,
    )
