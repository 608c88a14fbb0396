"""What a parameter server does between its start and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from rdmacoll._abi.library import Library
from rdmacoll._base.ending import Ending, Terminated, is_harmless, phrase_of, told_of_sigterm
from rdmacoll._base.log import Log
from rdmacoll._ps.start import VariableServers, left_with
from rdmacoll._start.carrier import no_watch
from rdmacoll.engine.errors import RankFailedError, RdmacollError

# It comes back from the library this often, so that Python's signal handlers (Ctrl-C) can run.
_SLICE_MS = 100
# The end of what the engine does not say itself.
_SO_IT_ENDS = " So this server ends."


def serve(
    library: Library,
    engine: int,
    servers: VariableServers | None,
    leave: Callable[[str], None],
    ending: Ending,
    look: Callable[[], None] | None,
) -> bool:
    """Does a server's work until all workers have left. Whether all have left well. `look` is called again
    and again meanwhile, and at the end. An error is first told to the world, by `leave`: nobody is to take
    the workers' end for the cause. Where nobody looks it is said here in one sentence, by which the process
    ends; else the caller says it.

    Sums what they push, and raises RankFailedError when the world fails meanwhile, or when a worker has left
    with an error. Asynchronous `servers` apply what is pushed, and the engine's own thread sums: these go on
    without a worker that fails, and raise the error when another server does, or all workers have.
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
        return False  # it has been said when the worker was lost
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
