"""The work of a parameter server between its start and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from rdmacoll._abi.library import Library
from rdmacoll._base.exit_cause import ExitCause, Terminated, error_phrase, is_harmless, sigterm_raises
from rdmacoll._base.log import Log
from rdmacoll._ps.variable_servers import VariableServers, left_with_error
from rdmacoll._start.bootstrap_exchange import no_watch
from rdmacoll.errors import RankFailedError, RdmacollError

# The library returns this often, so that Python's signal handlers (Ctrl-C) can run.
_SLICE_MS = 100
# The end of messages that the engine does not write itself.
_SERVER_ENDS = " So this server ends."


def serve(
    library: Library,
    engine: int,
    servers: VariableServers | None,
    leave: Callable[[str], None],
    exit_cause: ExitCause,
    poll: Callable[[], None] | None,
) -> bool:
    """Serves until all workers have left. Returns whether all have left without an error.

    poll: if given, it is called repeatedly meanwhile, and at the end.

    Synchronous servers sum the pushed gradients. They raise RankFailedError when the world fails, or when a
    worker has left with an error. Asynchronous `servers` apply the pushed gradients, while the engine's own
    thread sums. They go on without a failed worker. They raise the error when another server fails, or all
    workers have.

    An error first goes to the world, by `leave`, so that no rank takes the workers' end for the cause. If
    `poll` is None, this function then reports the error in one sentence. Otherwise the caller reports it.
    """
    cause = ""
    try:
        with sigterm_raises():
            return _serve(library, engine, servers, poll or no_watch)
    except BaseException as error:
        cause = error_phrase(error)
        leave(cause)
        log = Log(rank=library.engine_topology(engine)[0])
        if isinstance(error, Terminated):
            log.error(f"{cause}: another program ended this server, and its workers end with it.")
        elif poll is None:
            _report(error, exit_cause, log)
        raise
    finally:
        if servers is not None:
            servers.free(cause)


def _report(error: BaseException, exit_cause: ExitCause, log: Log) -> None:
    is_local = isinstance(error, RdmacollError) and not isinstance(error, RankFailedError)
    if is_local or str(error).endswith(_SERVER_ENDS):
        log.error(str(error))
    if isinstance(error, (KeyboardInterrupt, RdmacollError)):
        exit_cause.mark_reported(error)


def _serve(library: Library, engine: int, servers: VariableServers | None, poll: Callable[[], None]) -> bool:
    if servers is not None:
        servers.serve(engine, poll)
    try:
        left = _serve_sums(library, engine, poll)
    except RankFailedError as error:
        if servers is None or error.rank >= servers.workers or servers.has_lost_all():
            raise
        return False  # the loss of that worker was reported when it happened
    for rank, cause in left.items():
        if is_harmless(cause):
            continue
        loss = left_with_error(rank, cause)
        if servers is None:
            raise RankFailedError(loss + _SERVER_ENDS, rank=int(rank), cause=cause)
        servers.warn(loss)
    return all(map(is_harmless, left.values()))


def _serve_sums(library: Library, engine: int, poll: Callable[[], None]) -> Mapping[str, str]:
    left = None
    while left is None:
        try:
            left = library.engine_serve(engine, _SLICE_MS)
        finally:
            poll()
    return left
