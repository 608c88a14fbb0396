"""What a parameter server does between its start and its end."""

from __future__ import annotations

from rdmacoll.engine.ending import is_harmless
from rdmacoll.engine.errors import RankFailedError
from rdmacoll.engine.library import Library

# It comes back from the library this often, so that Python's signal handlers (Ctrl-C) can run.
_SLICE_MS = 100


def serve(library: Library, engine: int) -> None:
    """Sums what the workers push, until all of them have left.

    Raises RankFailedError when the world fails meanwhile, or when a worker has left with an error.
    """
    left = None
    while left is None:
        left = library.engine_serve(engine, _SLICE_MS)
    for rank, cause in left.items():
        if not is_harmless(cause):
            raise RankFailedError(
                f"worker {rank} has left the job with an error ({cause}), so this server ends.",
                rank=int(rank),
                cause=cause,
            )
