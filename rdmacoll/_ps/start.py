"""This process's part in asynchronous parameter servers: they meet within a start, in a world of their own.

Servers are its last ranks. Colocated, every process is both: worker i, and server i behind all workers.
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
from rdmacoll._base.ending import is_harmless, phrase_of
from rdmacoll._base.log import Log
from rdmacoll._ps.session import Session
from rdmacoll._start.carrier import Carrier, no_watch
from rdmacoll._start.launch import Launch
from rdmacoll._start.starting import agree
from rdmacoll.engine.errors import RankFailedError, RdmacollError

# Calls come back to Python this often: for signals, and where a process has two parts, for the other one.
_SLICE_MS = 100
_TURN_MS = 5


class _Stall:
    """Of a server: while its workers wait for one and the same, says so once."""

    def __init__(self, staleness: int, warning_s: float, warn: Callable[[str], None]) -> None:
        self._staleness, self._warning_s, self._warn = staleness, warning_s, warn
        self._what, self._since, self._is_said = ("", 0), 0.0, False

    def look(self, stats: Mapping[str, Any]) -> None:
        """At what the server counts, now and then."""
        now = time.monotonic()
        kind, _, name = stats["waiting_for"].partition(" ")
        # Whoever pushes moves the pace, and not what else is waited for.
        what = (stats["waiting_for"], stats["updates"] if kind == "pace" else 0)
        if what != self._what or not kind:
            self._what, self._since, self._is_said = what, now, False
        elif not self._is_said and now - self._since > self._warning_s:
            self._is_said = True
            for_what = {
                "values": f"worker 0 to give variable {name} its first values: it declares what all declare.",
                "checkpoint": f"the checkpoint {name}: they go on when it is done.",
                "pace": f"one that is more than {self._staleness} updates behind (staleness): they go on "
                "when it pushes, or leaves by rdmacoll.shutdown().",
            }[kind]
            self._warn(
                f"{stats['waiting']} of {stats['workers']} workers have waited for {self._warning_s:g} s for "
                f"{for_what}"
            )


class VariableServers:
    """What this process is: a worker with a session, a server, or both."""

    def __init__(self, library: Library, launch: Launch, values: Values) -> None:
        self._library = library
        self._me, self._ranks = launch.rank, launch.size
        is_colocated = values.text("RDMACOLL_SERVER_PLACEMENT") == "colocated"
        self._servers = launch.size if is_colocated else int(values.number("RDMACOLL_NUM_SERVERS"))
        self.workers = launch.size if is_colocated else launch.size - self._servers
        self._size = self.workers + self._servers
        text = values.text("RDMACOLL_PS_STALENESS")
        self._staleness = int(text) if text else -1
        self._stall = _Stall(self._staleness, values.number("RDMACOLL_STALL_WARNING_S"), self.warn)
        # The ranks there that are here, with their addresses in the library.
        ranks = [launch.rank, self.workers + launch.rank] if is_colocated else [launch.rank]
        self._parts = dict.fromkeys(ranks, 0)
        self.session: Session | None = None
        self._thread: threading.Thread | None = None
        self._ends_by = ""  # the error that ends this process, which the colocated server goes by
        self.stats: dict[str, Any] = {}  # of a server, at the last look

    def meet(
        self, engine: int, carrier: Carrier, watch: Callable[[], None], job: tuple[str, bytes], arguments: str
    ) -> None:
        """Connects with the others, where the engine listens, in steps that all take. `watch` sees who is
        gone."""

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
                carrier.check()
                watch()
                for rank, ps in list(waiting.items()):
                    if self._library.ps_start(ps, leaders, slice_ms):
                        del waiting[rank]
            return ""

        cards = _by_rank(agree(carrier, open_parts, watch))
        leaders = [int(leader) for leader in _by_rank(agree(carrier, find_nodes, watch))]
        agree(carrier, connect, watch)

    def begun(self) -> VariableServers:
        """Once the world stands: a worker may ask, and a colocated server serves beside it."""
        if self._me < self.workers:
            self.session = Session(self._library, self._parts.pop(self._me), self._me)
            if self._parts:
                self._thread = threading.Thread(target=self._serve_beside, name="rdmacoll-ps", daemon=True)
                threads.start(self._thread)
        return self

    def serve(self, engine: int, look: Callable[[], None] = no_watch) -> None:
        """The work of a server, until all workers have left or are lost; `look` is called meanwhile. Raises
        RankFailedError where another server is lost, as a worker says, which `engine` says in turn."""
        try:
            self._serve(look)
        except RankFailedError as error:
            if not self._library.engine_blame(engine, error):
                Log(rank=self._me).error(str(error))
            raise

    def _serve(self, look: Callable[[], None]) -> None:
        (ps,) = self._parts.values()
        is_done = False
        while not is_done and not self._ends_by:
            is_done = self._library.ps_serve(ps, _SLICE_MS)
            self.stats = self._library.ps_stats(ps)
            self._stall.look(self.stats)
            for sentence in self._library.ps_losses(ps):
                self.warn(sentence)
            look()

    def _serve_beside(self) -> None:
        cause = ""
        try:
            self._serve(no_watch)  # what ends its workers is said by them
        except RdmacollError as error:
            cause = phrase_of(error)
            if not isinstance(error, RankFailedError):
                self.warn(f"the parameter server of this rank ends: {error}")
        finally:
            self.free(self._ends_by or cause)

    def warn(self, text: str) -> None:
        """Says what concerns the servers, which go on."""
        Log(rank=self._me).warning(text)

    def end(self) -> None:
        """Whoever waits for servers gets ShutdownError: a signal wants to end this process."""
        if self.session is not None:
            self.session.end()

    def blame(self, engine: int) -> None:
        """Where this worker ends since it has lost a server, the others hear of that first; `engine` 0 has
        ended."""
        failure = self.session and self._library.ps_failure(self.session.address)
        if engine and isinstance(failure, RankFailedError) and failure.rank != self._me:
            self._library.engine_blame(engine, failure)

    def has_lost_all(self) -> bool:
        """Of a server: whether every worker is lost."""
        return bool(self.stats.get("lost") == self.workers)

    def close(self, engine: int, cause: str | None) -> bool:
        """The worker leaves, for this `cause`. Its colocated server stays until the others have left too, if
        this is no error. Whether no rank of the world is known to have failed; `engine` 0 has ended."""
        if self.session is not None:
            self.session.close()
        self._ends_by = "" if is_harmless(cause or "") else str(cause)
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
                self.warn(left_with(error.rank, why))
            return bool(is_parting) and is_harmless(why)
        return True

    def _wait_for_the_others(self, thread: threading.Thread) -> None:
        try:
            thread.join()
        except BaseException as interrupt:
            self._ends_by = type(interrupt).__name__
            thread.join()
            raise

    def free(self, cause: str = "") -> None:
        """Gives back what the library has, but for the session's; `cause`: the error by which a server ends
        before its workers, which they hear."""
        while self._parts:
            _, ps = self._parts.popitem()
            if ps and cause:
                self._library.ps_leave(ps, cause)
            if ps:
                self._library.ps_free(ps)


def left_with(rank: int | str, cause: str) -> str:
    """The words for a worker that has left by an error, while others go on."""
    return f"worker {rank} has left the job with an error ({cause})."


def variable_servers(library: Library, launch: Launch, values: Values) -> VariableServers | None:
    """Those that these settings ask for, which do not contradict each other; None: there are none."""
    is_synchronous = values.text("RDMACOLL_PS_SYNC") == "true"
    return None if is_synchronous else VariableServers(library, launch, values)


def _by_rank(answers: list[str]) -> list[str]:
    """What the steps gave, of all ranks there in their order."""
    merged = {int(rank): value for answer in answers for rank, value in json.loads(answer).items()}
    return [merged[rank] for rank in sorted(merged)]
