"""This process's part in asynchronous parameter servers. They meet within a start, in a world of their own.

Servers are the last ranks of that world. With colocated servers every process is both: worker i, and server
i, whose rank comes after those of all workers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from rdmacoll._abi.library import Library
from rdmacoll._abi.settings import Values
from rdmacoll._base import threads
from rdmacoll._base.exit_cause import error_phrase, is_harmless
from rdmacoll._base.log import Log
from rdmacoll._ps.session import Session
from rdmacoll._start.bootstrap_exchange import BootstrapExchange, no_watch
from rdmacoll._start.launch import Launch
from rdmacoll._start.start_steps import agree
from rdmacoll.errors import RankFailedError, RdmacollError

# Calls return to Python this often: for signals, and for the other part of a process with two parts.
_SLICE_MS = 100
_TURN_MS = 5


class _StallWarning:
    """On a server: logs one warning while its workers wait for the same thing."""

    def __init__(self, staleness: int, warning_s: float, warn: Callable[[str], None]) -> None:
        self._staleness, self._warning_s, self._warn = staleness, warning_s, warn
        self._waiting_for, self._since, self._is_reported = ("", 0), 0.0, False

    def poll(self, stats: Mapping[str, Any]) -> None:
        """Looks at the server's counters. Called repeatedly."""
        now = time.monotonic()
        kind, _, name = stats["waiting_for"].partition(" ")
        # A push moves the pace, but nothing else that workers wait for.
        waiting_for = (stats["waiting_for"], stats["updates"] if kind == "pace" else 0)
        if waiting_for != self._waiting_for or not kind:
            self._waiting_for, self._since, self._is_reported = waiting_for, now, False
        elif not self._is_reported and now - self._since > self._warning_s:
            self._is_reported = True
            awaited = {
                "values": f"worker 0 to give variable {name} its first values. Let worker 0 declare all "
                "variables that other workers declare.",
                "checkpoint": f"the checkpoint {name}. They continue when it is done.",
                "pace": f"a worker that is more than {self._staleness} updates behind (staleness). They "
                "continue when it pushes, or leaves by rdmacoll.shutdown().",
            }[kind]
            self._warn(
                f"{stats['waiting']} of {stats['workers']} workers have waited for {self._warning_s:g} s for "
                f"{awaited}"
            )


class VariableServers:
    """This process's parts: a worker with a session, a server, or both."""

    def __init__(self, library: Library, launch: Launch, values: Values) -> None:
        self._library = library
        self._rank, self._ranks = launch.rank, launch.size
        is_colocated = values.text("RDMACOLL_SERVER_PLACEMENT") == "colocated"
        self._servers = launch.size if is_colocated else int(values.number("RDMACOLL_NUM_SERVERS"))
        self.workers = launch.size if is_colocated else launch.size - self._servers
        self._size = self.workers + self._servers
        text = values.text("RDMACOLL_PS_STALENESS")
        self._staleness = int(text) if text else -1
        self._stall = _StallWarning(self._staleness, values.number("RDMACOLL_STALL_WARNING_S"), self.warn)
        # The ranks of that world in this process, with their addresses in the library.
        ranks = [launch.rank, self.workers + launch.rank] if is_colocated else [launch.rank]
        self._parts = dict.fromkeys(ranks, 0)
        self.session: Session | None = None
        self._thread: threading.Thread | None = None
        self._fatal_error = ""  # the error that ends this process, and the colocated server with it
        self.stats: dict[str, Any] = {}  # a server's counters, at the last look

    def meet(
        self,
        engine: int,
        exchange: BootstrapExchange,
        watch: Callable[[], None],
        job: tuple[str, bytes],
        arguments: str,
    ) -> None:
        """Connects with the other ranks at the engine's listener, in steps that all ranks take.

        `watch` raises the error of a rank that is gone.
        """

        def open_parts() -> str:
            opened = {}
            for rank in self._parts:
                self._parts[rank], opened[rank] = self._library.ps_open(
                    engine,
                    rank=rank,
                    size=self._size,
                    servers=self._servers,
                    staleness=self._staleness,
                    job=f"{job[0]} ps",
                    secret=job[1],
                    arguments=arguments,
                )
            return json.dumps(opened)

        def find_nodes() -> str:
            return json.dumps(
                {rank: str(self._library.ps_node(ps, cards)) for rank, ps in self._parts.items()}
            )

        def connect() -> str:
            slice_ms = _SLICE_MS if len(self._parts) == 1 else _TURN_MS
            waiting = dict(self._parts)
            while waiting:
                exchange.check()
                watch()
                for rank, ps in list(waiting.items()):
                    if self._library.ps_start(ps, leaders, slice_ms):
                        del waiting[rank]
            return ""

        cards = _by_rank(agree(exchange, open_parts, watch))
        leaders = [int(leader) for leader in _by_rank(agree(exchange, find_nodes, watch))]
        agree(exchange, connect, watch)

    def begin(self) -> VariableServers:
        """Called once the world stands: opens the worker's session, and starts a colocated server."""
        if self._rank < self.workers:
            self.session = Session(self._library, self._parts.pop(self._rank), self._rank)
            if self._parts:
                self._thread = threading.Thread(target=self._serve_beside, name="rdmacoll-ps", daemon=True)
                threads.start(self._thread)
        return self

    def serve(self, engine: int, poll: Callable[[], None] = no_watch) -> None:
        """Serves until all workers have left or are lost. `poll` is called repeatedly meanwhile.

        Raises RankFailedError when a worker reports that another server is lost, and makes the `engine`'s
        world fail by it.
        """
        try:
            self._serve(poll)
        except RankFailedError as error:
            if not self._library.engine_blame(engine, error):
                Log(rank=self._rank).error(str(error))
            raise

    def _serve(self, poll: Callable[[], None]) -> None:
        (ps,) = self._parts.values()
        is_done = False
        while not is_done and not self._fatal_error:
            is_done = self._library.ps_serve(ps, _SLICE_MS)
            self.stats = self._library.ps_stats(ps)
            self._stall.poll(self.stats)
            for sentence in self._library.ps_losses(ps):
                self.warn(sentence)
            poll()

    def _serve_beside(self) -> None:
        cause = ""
        try:
            self._serve(no_watch)  # workers report the errors that end them
        except RdmacollError as error:
            cause = error_phrase(error)
            if not isinstance(error, RankFailedError):
                self.warn(f"the parameter server of this rank ends: {error}")
        finally:
            self.free(self._fatal_error or cause)

    def warn(self, text: str) -> None:
        """Logs a warning about servers that go on."""
        Log(rank=self._rank).warning(text)

    def end(self) -> None:
        """Ends waits for servers with ShutdownError, when a signal is to end this process."""
        if self.session is not None:
            self.session.end()

    def blame(self, engine: int) -> None:
        """If this worker has lost a server, tells the other ranks before the worker ends.

        engine: 0 if it has ended.
        """
        failure = self.session and self._library.ps_failure(self.session.address)
        if engine and isinstance(failure, RankFailedError) and failure.rank != self._rank:
            self._library.engine_blame(engine, failure)

    def has_lost_all(self) -> bool:
        """On a server: whether every worker is lost."""
        return bool(self.stats.get("lost") == self.workers)

    def close(self, engine: int, cause: str | None) -> bool:
        """Makes the worker leave, for this `cause`. engine: 0 if it has ended.

        If the cause is no error, the colocated server stays until the other workers have left, too. Returns
        whether no rank of the world is known to have failed.
        """
        if self.session is not None:
            self.session.close()
        self._fatal_error = "" if is_harmless(cause or "") else str(cause)
        if self._thread is not None:
            self._wait_for_the_others(self._thread)
        try:
            if engine == 0:
                return False
            self._library.engine_start(engine, [0] * self._ranks, 0)
        except RankFailedError as error:
            _, is_parting, why = error.cause.partition("left the job: ")
            why = why.replace("it called shutdown()", "")
            if is_parting and self._thread is not None and not is_harmless(why):
                self.warn(left_with_error(error.rank, why))
            return bool(is_parting) and is_harmless(why)
        return True

    def _wait_for_the_others(self, thread: threading.Thread) -> None:
        try:
            thread.join()
        except BaseException as interrupt:
            self._fatal_error = type(interrupt).__name__
            thread.join()
            raise

    def free(self, cause: str = "") -> None:
        """Frees this process's parts, apart from the session.

        cause: the error by which a server ends before its workers. These hear it.
        """
        while self._parts:
            _, ps = self._parts.popitem()
            if ps and cause:
                self._library.ps_leave(ps, cause)
            if ps:
                self._library.ps_free(ps)


def left_with_error(rank: int | str, cause: str) -> str:
    """The message for a worker that has left with an error, while others go on."""
    return f"worker {rank} has left the job with an error ({cause})."


def variable_servers(library: Library, launch: Launch, values: Values) -> VariableServers | None:
    """The asynchronous servers that these valid settings request, or None."""
    is_synchronous = values.text("RDMACOLL_PS_SYNC") == "true"
    return None if is_synchronous else VariableServers(library, launch, values)


def _by_rank(answers: list[str]) -> list[str]:
    """The values of a step from all processes, merged and ordered by rank in the servers' world."""
    merged = {int(rank): value for answer in answers for rank, value in json.loads(answer).items()}
    return [merged[rank] for rank in sorted(merged)]
