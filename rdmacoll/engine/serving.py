"""What a parameter server does between its start and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from rdmacoll.engine.carrier import no_watch
from rdmacoll.engine.ending import is_harmless, phrase_of
from rdmacoll.engine.errors import RankFailedError
from rdmacoll.engine.library import Library
from rdmacoll.engine.ps_start import VariableServers, left_with

# It comes back from the library this often, so that Python's signal handlers (Ctrl-C) can run.
_SLICE_MS = 100


def serve(
    library: Library,
    engine: int,
    servers: VariableServers | None,
    leave: Callable[[str], None],
    look: Callable[[], None] = no_watch,
) -> bool:
    """Does a server's work until all workers have left. Whether all have left well. `look` is called again
    and again meanwhile, and at the end. An error is first told to the world, by `leave`: nobody is to take
    the workers' end for the cause.

    Sums what they push, and raises RankFailedError when the world fails meanwhile, or when a worker has left
    with an error. Asynchronous `servers` apply what is pushed, and the engine's own thread sums: these go on
    without a worker that fails, and raise the error when another server does.
    """
    cause = ""
    try:
        return _serve(library, engine, servers, look)
    except BaseException as error:
        cause = phrase_of(error)
        leave(cause)
        raise
    finally:
        if servers is not None:
            servers.free(cause)


def _serve(library: Library, engine: int, servers: VariableServers | None, look: Callable[[], None]) -> bool:
    if servers is not None:
        servers.serve(look)
    try:
        left = _serve_sums(library, engine, look)
    except RankFailedError as error:
        if servers is None or error.rank >= servers.workers:
            raise
        return False  # it has been said when the worker was lost
    for rank, cause in left.items():
        if is_harmless(cause):
            continue
        what = left_with(rank, cause)
        if servers is None:
            raise RankFailedError(f"{what} So this server ends.", rank=int(rank), cause=cause)
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
