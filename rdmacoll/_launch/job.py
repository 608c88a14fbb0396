"""A job: agents on its hosts, the start of its ranks, their output and their ends."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import selectors
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdmacoll._launch import agent
from rdmacoll._launch.failure import Ended, first_failure, lines_of, message_about, missing_in_init
from rdmacoll._launch.host_link import (
    Frame,
    HostLink,
    local_command,
    python_path,
    remote_command,
    try_command,
)
from rdmacoll._launch.hosts import LOCAL_NAMES, Host, Slot, is_local
from rdmacoll._launch.membership import Limits
from rdmacoll._launch.output import Output
from rdmacoll._start.launch import join_address
from rdmacoll._start.secret import SECRET_BYTES
from rdmacoll.errors import ConfigError

START_TIMEOUT_S = 30.0
# A rank that others name as lost gets so long to end by itself, so that its own exit code is seen.
_CAUSE_S = 3.0
_LATE_S = 3.0
_LOST = 255  # the exit code of a rank whose host was lost, as ssh has it
# Variables that belong to a host or to a login. Remote ranks have their own.
_OF_HOST = (
    *("HOME", "USER", "LOGNAME", "MAIL", "SHELL", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR"),
    *("DISPLAY", "XAUTHORITY", "TERM_SESSION_ID"),
)
_OF_HOST_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")


@dataclass(frozen=True)
class ElasticOptions:
    """The sizes of an elastic job, and its hosts. discovery: the command that prints the hosts.
    slots_per_host: of hosts that it prints without a number."""

    limits: Limits
    hosts: Sequence[Host]
    discovery: str | None = None
    slots_per_host: int | None = None


@dataclass(frozen=True)
class JobOptions:
    """The places of a job's ranks, and their program."""

    command: Sequence[str]
    slots: Sequence[Slot]
    environ: Mapping[str, str]  # the launcher's own variables
    variables: Mapping[str, str] = field(default_factory=dict)  # settings of all ranks
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    start_timeout_s: float = START_TIMEOUT_S
    output_folder: str | None = None
    has_timestamps: bool = False
    is_verbose: bool = False
    function: bytes | None = None  # for ranks that call a function
    elastic: ElasticOptions | None = None  # an elastic job has no `slots`
    secret: str = field(default_factory=lambda: secrets.token_hex(SECRET_BYTES), repr=False)


@dataclass(frozen=True)
class JobResult:
    """The end of a job. exit_code: 0, or that of the rank that failed first. first: this rank. results: of
    ranks that called a function. numbers: the keys of the last world's ranks, in order."""

    ended: Mapping[int, Ended]
    first: Ended | None
    message: str
    results: Mapping[int, bytes]
    exit_code: int
    numbers: Sequence[int]


def say(text: str) -> None:
    """Prints a line of the launcher itself."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # the job goes on without a reader
            sys.stderr.write(f"rdmacoll run: {text}\n")
            sys.stderr.flush()


class Job:
    """Runs a job once. Call from one thread; an exception of a signal handler ends all ranks."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._links: dict[str, HostLink] = {}
        self._selector = selectors.DefaultSelector()
        self._name = f"run-{secrets.token_hex(8)}"
        self._host_of = {slot.rank: slot.host for slot in options.slots}
        self._output = Output(
            len(options.slots), folder=options.output_folder, has_timestamps=options.has_timestamps
        )
        self._ended: dict[int, Ended] = {}
        self._results: dict[int, bytes] = {}
        self._inits: Counter[int] = Counter()  # calls of init() by rank
        self._first: Ended | None = None
        self._is_started, self._failed_at, self._ends_by = False, float("inf"), float("inf")

    def run(self) -> JobResult:
        """Starts the ranks, and waits for their end. Raises ConfigError if a host cannot be reached.

        After the first failure the other ranks are ended. On any exception all ranks are ended first.
        """
        try:
            self._lead()
        except BaseException:
            self._end_all()
            raise
        finally:
            self._close_links()
            self._selector.close()
            self._output.close()
        return JobResult(
            self._ended, self._first, self._message(), self._results, self._exit_code(), self._numbers()
        )

    def _lead(self) -> None:
        self._connect()
        self._start()
        while len(self._ended) < len(self._options.slots) and time.monotonic() < self._ends_by:
            self._pump(self._wait_s())
            self._judge()

    def _close_links(self) -> None:
        """Lets the agents end what their ranks have left, and waits for them."""
        for link in self._links.values():
            link.hang_up()
        end = time.monotonic() + agent.GRACE_S + _LATE_S
        for link in self._links.values():
            # An ssh that has no connection yet does not notice that its input has ended.
            link.close(end - time.monotonic() if link.hello else 0.0)
        agent.remove_leftovers()

    def _connect(self) -> None:
        options = self._options
        for host in dict.fromkeys(self._host_of.values()):
            self._link(host)
        end = time.monotonic() + options.start_timeout_s
        while missing := [link.host for link in self._links.values() if not link.hello]:
            if time.monotonic() > end:
                raise ConfigError(
                    f"{', '.join(missing)} did not answer within {options.start_timeout_s:g} s: try "
                    f'"{self._try_ssh(missing[0])}", or give a larger --start-timeout.'
                )
            self._pump(end - time.monotonic())

    def _link(self, host: str) -> None:
        """Starts the agent of a host."""
        options = self._options
        command = local_command(python_path())
        if not is_local(host):
            command = remote_command(
                host,
                python_path(),
                port=options.ssh_port,
                identity_file=options.ssh_identity_file,
                connect_s=options.start_timeout_s,
            )
        if options.is_verbose:
            say(f"starts {host}: {shlex.join(command)}")
        link = self._links[host] = HostLink(host, command)
        for fd, has_frames in link.streams().items():
            self._selector.register(fd, selectors.EVENT_READ, (link, has_frames))

    def _start(self) -> None:
        options = self._options
        first = self._links[self._host_of[0]]
        address = rendezvous_of(first, int((first.hello or {})["port"]), list(self._links.values()))
        if options.is_verbose:
            say(f"rank 0 listens at {address}; variables of all ranks: {dict(options.variables)}")
        for host, link in self._links.items():
            slots = [slot for slot in options.slots if slot.host == host]
            ranks = {slot.rank: variables_of(slot, address, self._name) for slot in slots}
            link.send(agent.START, self._order(link, ranks))
        self._is_started = True

    def _order(self, link: HostLink, ranks: Mapping[int, Mapping[str, str]]) -> dict[str, Any]:
        """The order to the agent of a host. ranks: the variables of each rank, beside those of all."""
        options = self._options
        own = {**options.variables, "PYTHONUNBUFFERED": "1"}
        order: dict[str, Any] = {
            "command": list(options.command),
            "folder": os.getcwd(),
            "variables": {**(self._exported() if link.is_remote() else {}), **own},
            "ranks": [[rank, dict(variables)] for rank, variables in ranks.items()],
            "secret": options.secret,
        }
        if options.function is not None:
            order["function"] = base64.b64encode(options.function).decode()
        return order

    def _exported(self) -> dict[str, str]:
        """The launcher's variables for remote ranks. They travel over the agent's standard input."""
        return {
            name: value
            for name, value in self._options.environ.items()
            if name not in _OF_HOST and not name.startswith(_OF_HOST_PREFIXES)
        }

    def _wait_s(self) -> float:
        return min(
            max(0.0, min(self._failed_at + _CAUSE_S, self._ends_by) - time.monotonic()),
            60.0,
        )

    def _pump(self, timeout_s: float) -> None:
        """Waits for frames and messages of agents, and handles them."""
        for link in self._links.values():
            if link.has_unsent() and link.input() not in self._selector.get_map():
                self._selector.register(link.input(), selectors.EVENT_WRITE, (link, False))
        for key, events in self._selector.select(max(0.0, timeout_s)):
            link, has_frames = key.data
            if key.fd not in self._selector.get_map():  # the link was lost by a frame before
                continue
            if events & selectors.EVENT_WRITE:
                link.flush()
                if not link.has_unsent():
                    self._selector.unregister(key.fd)
            elif has_frames:
                for frame in link.read_frames(key.fd):
                    self._handle(link, frame)
                if not link.is_open:
                    self._selector.unregister(key.fd)
                    self._lose(link)
            elif not self._show_messages(link, key.fd):
                self._selector.unregister(key.fd)

    @staticmethod
    def _show_messages(link: HostLink, fd: int) -> bool:
        """Prints lines of ssh or of the agent. Returns whether there may be more."""
        lines, is_open = link.read_messages(fd)
        for line in lines:
            say(f"{link.host}: {line}")
        return is_open

    def _handle(self, link: HostLink, frame: Frame) -> None:
        if frame.kind == agent.HELLO:
            link.hello = json.loads(frame.payload)
        elif frame.kind == agent.NOTE:
            say(f"{link.host}: {frame.payload.decode(errors='replace')}")
        elif self._host_of.get(frame.rank) != link.host or frame.rank in self._ended:
            return
        elif frame.kind == agent.RESULT:
            self._results[frame.rank] = frame.payload
        elif frame.kind == agent.EXIT:
            self._output.finish(frame.rank)
            facts = json.loads(frame.payload)
            self._ended[frame.rank] = Ended(
                frame.rank,
                link.host,
                int(facts["code"]),
                int(facts["pid"]),
                str(facts.get("cause", "")),
                bool(facts.get("has_processes")),
            )
        elif frame.kind == agent.INIT:
            self._inits[frame.rank] += 1
        elif frame.kind in (agent.STDOUT, agent.STDERR):
            self._output.write(frame.rank, frame.kind, frame.payload)

    def _lose(self, link: HostLink) -> None:
        """Handles the end of an agent: its ranks are lost."""
        reason = link.last_words()
        if not self._is_started:
            raise ConfigError(f"cannot start ranks on {link.host}: {reason}.{self._cure_of_ssh(link)}")
        self._lose_ranks(link.host, reason)

    def _lose_ranks(self, lost: str, reason: str) -> list[int]:
        """Notes the end of a host's ranks. Returns those that were alive."""
        found = [rank for rank, host in self._host_of.items() if host == lost and rank not in self._ended]
        for rank in found:
            self._output.finish(rank)
            self._ended[rank] = Ended(rank, lost, _LOST, cause=f"the host was lost ({reason})")
        return found

    def _cure_of_ssh(self, link: HostLink) -> str:
        if not link.is_remote():
            return ""
        return f' Try "{self._try_ssh(link.host)}": it must work without a password.'

    def _try_ssh(self, host: str) -> str:
        options = self._options
        return try_command(host, port=options.ssh_port, identity_file=options.ssh_identity_file)

    def _judge(self) -> None:
        """Finds, after a failure, the rank that failed first, and ends the others."""
        if self._first is not None:
            return
        if missing := missing_in_init(self._ended, self._inits):
            self._ended[missing.rank] = missing
        if all(end.code == 0 for end in self._ended.values()):
            return
        now = time.monotonic()
        self._failed_at = min(self._failed_at, now)
        errors = {rank: self._output.tail(rank, agent.STDERR) for rank in self._ended}
        first, is_final = first_failure(self._ended, errors)
        # A rank may name a rank of another job.
        is_final = is_final or len(self._ended) == len(self._host_of)
        if is_final or now >= self._failed_at + _CAUSE_S:
            self._first, self._failed_at = first, float("inf")
            self._send_all(agent.END)
            self._ends_by = now + agent.GRACE_S + _LATE_S

    def _end_all(self) -> None:
        """Ends all ranks. A further exception, as of a second Ctrl-C, kills them."""
        self._send_all(agent.END)
        try:
            self._drain(agent.GRACE_S + _LATE_S)
        except BaseException:
            self._send_all(agent.KILL)
            self._drain(_LATE_S)

    def _drain(self, within_s: float) -> None:
        end = time.monotonic() + within_s
        while self._is_started and len(self._ended) < len(self._host_of) and time.monotonic() < end:
            self._pump(end - time.monotonic())

    def _send_all(self, kind: bytes) -> None:
        for link in self._links.values():
            link.send(kind)

    def _numbers(self) -> list[int]:
        return sorted(self._host_of)

    def _exit_code(self) -> int:
        return 0 if self._first is None else self._first.exit_code()

    def _message(self) -> str:
        if self._first is None:
            return ""
        return message_about(self._first, len(self._host_of), self._last_lines(self._first.rank))

    def _last_lines(self, rank: int) -> list[str]:
        return lines_of(self._output.tail(rank, agent.STDERR), self._output.tail(rank, agent.STDOUT))


def variables_of(slot: Slot, rendezvous: str, name: str) -> dict[str, str]:
    """The variables of a rank's place in a world. name: of this world."""
    return {
        "RDMACOLL_RANK": str(slot.rank),
        "RDMACOLL_SIZE": str(slot.size),
        "RDMACOLL_RENDEZVOUS": rendezvous,
        "RDMACOLL_JOB_ID": name,
        **slot.variables(),
    }


def rendezvous_of(first: HostLink, port: int, links: Sequence[HostLink]) -> str:
    """The address of rank 0, as the other hosts of `links` reach it. first: its host. port: free there."""
    remote = [link for link in links if link.is_remote()]
    if not remote:
        return join_address("127.0.0.1", port)
    if first.is_remote():
        return join_address(first.host if _is_known(first.host) else first.ssh_address(2), port)
    return join_address(
        first.host if first.host not in LOCAL_NAMES else remote[0].ssh_address(0) or socket.gethostname(),
        port,
    )


def _is_known(host: str) -> bool:
    """Whether the resolver has an address of the host that others can reach. ssh may know other names."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return not str(found[0][4][0]).startswith("127.") and found[0][4][0] != "::1"
