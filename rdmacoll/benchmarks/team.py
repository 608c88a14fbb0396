"""The ranks of one library: the parent starts them, sends them requests, stops them while others measure,
and ends them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdmacoll.benchmarks.libraries import HostLayout, LaunchContext, Library, commands
from rdmacoll.errors import RdmacollError

_PR_SET_PDEATHSIG = 1
_END_S = 10.0
_REQUEST_SHOWN = 200  # characters
_LIBC = ctypes.CDLL(None)


class TeamError(RdmacollError):
    """A library cannot go on. The text tells the reason."""


_END_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@contextlib.contextmanager
def _end_signals_blocked() -> Iterator[None]:
    """Blocks SIGINT and SIGTERM until this context ends. Python drops exceptions that signal handlers
    raise during a fork. An exception before a child is noted would leave the child behind."""
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def _begin_child() -> None:
    """Makes the child end with its parent: by SIGTERM, so that a launcher ends its ranks too."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)


def _free_ports(count: int, least: int) -> int:
    """The first of `count` consecutive ports, from `least` on, without a listener on 127.0.0.1. Raises
    TeamError."""
    for port in range(least, 60_000, count):
        with contextlib.ExitStack() as probes:
            try:
                for number in range(count):
                    probes.enter_context(socket.create_server(("127.0.0.1", port + number)))
            except OSError:
                continue
            return port
    raise TeamError("there is no free port on 127.0.0.1")


class _RankSocket:
    """The socket to one rank."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._text = b""

    def send(self, fields: Mapping[str, Any]) -> None:
        self._socket.sendall(json.dumps(fields).encode() + b"\n")

    def receive(self, until: float) -> dict[str, Any]:
        while b"\n" not in self._text:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._socket.close()


class Team:
    """The ranks of one library. The constructor starts them and leaves them stopped. Use it as a context
    manager. Raises TeamError or OSError."""

    # No two teams get the same ports, since this process cannot see listeners in the namespaces of other
    # hosts.
    _next_port = 20_000 + os.getpid() % 10_000

    def __init__(
        self, library: Library, layout: HostLayout, python: Path, folder: Path, timeout_s: float
    ) -> None:
        self.library = library
        self.layout = layout
        self.facts: dict[str, str] = {}
        self.starts: list[dict[str, float]] = []
        self.started_at = time.time()
        self._pids: list[int] = []
        self._sockets: list[_RankSocket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._output = folder / f"{library.name}.out"
        self._path = folder / f"{library.name}.socket"
        try:
            self._start(python, time.monotonic() + timeout_s)
        except BaseException:
            self.end()
            raise

    def _start(self, python: Path, until: float) -> None:
        port = _free_ports(self.layout.ranks, Team._next_port)
        Team._next_port = port + self.layout.ranks
        start = LaunchContext(python, self._path, port, os.geteuid() == 0)
        with socket.socket(socket.AF_UNIX) as listener, self._output.open("wb") as output:
            listener.bind(str(self._path))
            listener.listen(self.layout.ranks)
            for command in commands(self.library, self.layout, start):
                with _end_signals_blocked():
                    self._processes.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            # Python's -m looks into the current folder before PYTHONPATH. There may be
                            # another rdmacoll.
                            cwd=self._path.parent,
                            start_new_session=True,
                            preexec_fn=_begin_child,
                        )
                    )
            hellos = [self._hello(listener, until) for _ in range(self.layout.ranks)]
        order = sorted(range(self.layout.ranks), key=lambda number: hellos[number]["rank"])
        self._sockets = [self._sockets[number] for number in order]
        self._pids = [hellos[number]["pid"] for number in order]
        self.starts = [hellos[number]["start_s"] for number in order]
        self.facts = hellos[order[0]]["facts"]
        ranks = [hellos[number]["rank"] for number in order]
        if ranks != list(range(self.layout.ranks)):
            raise TeamError(
                f"{self.library.title}: {self.layout.ranks} ranks were started, but they report the ranks "
                f"{ranks}"
            )
        tree = self.library.tree
        packages = [hello["package"] for hello in hellos if hello["package"]]
        if tree is not None and any(tree not in Path(package).resolve().parents for package in packages):
            raise TeamError(f"{self.library.title}: its ranks have imported {packages[0]}, not {tree}")
        self.stop()

    def _hello(self, listener: socket.socket, until: float) -> dict[str, Any]:
        while not select.select([listener], [], [], 0.2)[0]:
            if any(process.poll() is not None for process in self._processes):
                raise TeamError(f"{self.library.title} did not start: {self._last_lines()}")
            if time.monotonic() > until:
                raise TeamError(f"{self.library.title} did not start in time: {self._last_lines()}")
        rank_socket = _RankSocket(listener.accept()[0])
        self._sockets.append(rank_socket)
        return rank_socket.receive(until)

    def _last_lines(self) -> str:
        text = self._output.read_text(errors="replace").strip()
        return " | ".join(line for line in text.split("\n")[-6:] if line.strip())[-1200:] or "no output"

    def query(self, request: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Sends one request to all ranks and returns their answers, by rank. timeout_s: the limit in
        seconds. Raises TeamError."""
        until = time.monotonic() + timeout_s
        answers = []
        try:
            for rank_socket in self._sockets:
                rank_socket.send(request)
            for rank, rank_socket in enumerate(self._sockets):
                answers.append(rank_socket.receive(until))
                if "error" in answers[-1]:
                    raise TeamError(f"{self.library.title}, rank {rank}: {answers[-1]['error']}")
        except TimeoutError:
            raise TeamError(
                f"{self.library.title}: rank {len(answers)} did not answer {_short(request)} within "
                f"{timeout_s:.0f} s: {self._last_lines()}"
            ) from None
        except OSError:
            raise TeamError(
                f"{self.library.title}: rank {len(answers)} is gone: {self._last_lines()}"
            ) from None
        return answers

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """Stops all threads of the ranks until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the ranks after `stop`."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Lets the ranks leave, and kills those that do not."""
        self.resume()
        for rank_socket in self._sockets:
            rank_socket.close()
        until = time.monotonic() + (_END_S if self._sockets else 0.0)
        for process in self._processes:
            try:
                process.wait(max(0.01, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(process)
        self._path.unlink(missing_ok=True)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()  # a launcher ends its ranks too
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _short(request: Mapping[str, Any]) -> str:
    """The request for an error message, shortened: the shapes of a model's variables would fill pages.

    >>> len(_short({"do": "make", "shapes": [[3, 3, 512, 512]] * 161}))
    203
    """
    text = str(dict(request))
    return text if len(text) <= _REQUEST_SHOWN else f"{text[:_REQUEST_SHOWN]}..."


def slowest(answers: Sequence[Mapping[str, Any]]) -> list[float]:
    """The seconds of each slice, at its slowest rank.

    >>> slowest([{"seconds": [1.0, 4.0]}, {"seconds": [2.0, 3.0]}])
    [2.0, 4.0]
    """
    return [max(slice_s) for slice_s in zip(*(answer["seconds"] for answer in answers))]
