"""The work of a parameter server between its start and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from rdmacoll._abi.library import Library
from rdmacoll._base.ending import Ending, Terminated, is_harmless, phrase_of, told_of_sigterm
from rdmacoll._base.log import Log
from rdmacoll._ps.start import VariableServers, left_with
from rdmacoll._start.carrier import no_watch
from rdmacoll.engine.errors import RankFailedError, RdmacollError

# The library returns this often, so that Python's signal handlers (Ctrl-C) can run.
_SLICE_MS = 100
# The end of messages that the engine does not write itself.
_SO_IT_ENDS = " So this server ends."


def serve(
    library: Library,
    engine: int,
    servers: VariableServers | None,
    leave: Callable[[str], None],
    ending: Ending,
    look: Callable[[], None] | None,
) -> bool:
    """Serves until all workers have left. Returns whether all have left without an error.

    look: if given, it is called repeatedly meanwhile, and at the end.

    Synchronous servers sum the pushed gradients. They raise RankFailedError when the world fails, or when a
    worker has left with an error. Asynchronous `servers` apply the pushed gradients, while the engine's own
    thread sums. They go on without a failed worker. They raise the error when another server fails, or all
    workers have.

    An error first goes to the world, by `leave`, so that no rank takes the workers' end for the cause. If
    `look` is None, this function then reports the error in one sentence. Otherwise the caller reports it.
    """
    cause = ""
    try:
        with told_of_sigterm():
            return _serve(library, engine, servers, look or no_watch)
    except BaseException as error:
        cause = phrase_of(error)
        leave(cause)
        log = Log(rank=library.engine_topology(engine)[0])
        if isinstance(error, Terminated):
            log.error(f"{cause}: this server was ended from outside, and its workers end with it.")
        elif look is None:
            _say(error, ending, log)
        raise
    finally:
        if servers is not None:
            servers.free(cause)


def _say(error: BaseException, ending: Ending, log: Log) -> None:
    is_here = isinstance(error, RdmacollError) and not isinstance(error, RankFailedError)
    if is_here or str(error).endswith(_SO_IT_ENDS):
        log.error(str(error))
    if isinstance(error, (KeyboardInterrupt, RdmacollError)):
        ending.is_told(error)


def _serve(library: Library, engine: int, servers: VariableServers | None, look: Callable[[], None]) -> bool:
    if servers is not None:
        servers.serve(engine, look)
    try:
        left = _serve_sums(library, engine, look)
    except RankFailedError as error:
        if servers is None or error.rank >= servers.workers or servers.has_lost_all():
            raise
        return False  # the loss of that worker was reported when it happened
    for rank, cause in left.items():
        if is_harmless(cause):
            continue
        what = left_with(rank, cause)
        if servers is None:
            raise RankFailedError(what + _SO_IT_ENDS, rank=int(rank), cause=cause)
        servers.warn(what)
    return all(map(is_harmless, left.values()))


def _serve_sums(library: Library, engine: int, look: Callable[[], None]) -> Mapping[str, str]:
    left = None
    while left is None:
        try:
            left = library.engine_serve(engine, _SLICE_MS)
        finally:
            look()
    return left
