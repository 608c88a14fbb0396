"""Groups of arrays: one operation for each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from rdmacoll.engine import arguments
from rdmacoll.engine.results import results_of
from rdmacoll.engine.submission import Array, Call, Handle, Operation
from rdmacoll.engine.world import current


def grouped_handle(
    sources: Sequence[Array], name: str | None, call_of: Callable[[list[Array], str | None], Call]
) -> Handle:
    """Submits `call_of(the arrays of a dtype, the operation's name)` for each dtype, in order of first
    appearance. The handle's result is the list of the engine's results, in the order of `sources`."""
    if name is not None:
        arguments.name(name)
    positions: dict[np.dtype[Any], list[int]] = {}
    for position, source in enumerate(sources):
        positions.setdefault(source.dtype, []).append(position)
    engine = current()
    calls = [
        call_of(
            [sources[position] for position in places],
            name if name is None or len(positions) == 1 else f"{name}/{dtype.name}",
        )
        for dtype, places in positions.items()
    ]
    operations = [Operation(engine, call) for call in calls]

    def results() -> list[Array]:
        found: dict[int, Array] = {}
        for operation, (dtype, places) in zip(operations, positions.items()):
            made = results_of(engine, operation)
            found.update((position, made.array(index, dtype)) for index, position in enumerate(places))
        return [found[position] for position in range(len(sources))]

    return Handle(operations, results)
