"""Groups of arrays: one operation for each dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from rdmacoll.engine import arguments
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.refusals import announce, mark_announced, names_of_group
from rdmacoll.engine.results import results_of
from rdmacoll.engine.running import Engine
from rdmacoll.engine.submission import Array, Call, Handle, Operation, Start
from rdmacoll.engine.world import current


def _by_dtype(sources: Sequence[Array], name: str | None) -> Iterator[tuple[str | None, list[int]]]:
    """The operation's name and the positions of each dtype, in order of first appearance."""
    if name is not None:
        arguments.name(name)
    positions: dict[np.dtype[Any], list[int]] = {}
    for position, source in enumerate(sources):
        positions.setdefault(source.dtype, []).append(position)
    for dtype, places in positions.items():
        yield name if name is None or len(positions) == 1 else f"{name}/{dtype.name}", places


def _at(arrays: Sequence[Array], places: Sequence[int]) -> list[Array]:
    return [arrays[place] for place in places]


class Group(NamedTuple):
    """What the operations of one grouped call have in common."""

    kind: int
    name: str | None
    process_set: int
    start: Start


def _started(engine: Engine, calls: Sequence[Call], group: Group) -> list[Operation]:
    """Several go on together: ranks may have their dtypes in another order. Where one is refused, those
    behind it are, too."""
    operations: list[Operation] = []
    try:
        for call in calls:
            operations.append((group.start if len(calls) == 1 else Operation)(engine, call))
    except Exception as error:
        behind = [call.name for call in calls[len(operations) + 1 :]]
        announce(engine, group.kind, behind, group.process_set, error)
        mark_announced(error)
        raise
    return operations


def grouped_handle(
    arrays: Iterable[Any],
    source_of: Callable[[Any], Array],
    group: Group,
    call_of: Callable[[list[Array], str | None], Call],
) -> Handle:
    """Starts `call_of(the sources of a dtype, the operation's name)` for each dtype. The handle's result is
    the list of the engine's results, in the order of `arrays`."""
    engine = current()
    given: Sequence[Any] = ()
    try:
        given = list(arrays)
        sources = [source_of(array) for array in given]
        groups = list(_by_dtype(sources, group.name))
        calls = [call_of(_at(sources, places), title) for title, places in groups]
        operations = _started(engine, calls, group)
    except Exception as error:
        announce(engine, group.kind, names_of_group(given, group.name), group.process_set, error)
        raise

    def results() -> list[Array]:
        found: dict[int, Array] = {}
        for operation, (_, places) in zip(operations, groups):
            made = results_of(engine, operation)
            found.update(
                (place, made.array(index, sources[place].dtype)) for index, place in enumerate(places)
            )
        return [found[place] for place in range(len(sources))]

    return Handle(operations, results)


def placed_handle(
    arrays: Iterable[Any],
    out: Sequence[Array] | None,
    group: Group,
    call_of: Callable[[list[Array], list[Array], str | None], Call],
) -> Handle:
    """The same with `call_of(sources, targets, name)`, whose results go to `out` or to new arrays."""
    engine = current()
    given: list[Any] = []
    try:
        given = list(arrays)
        return _placed(engine, given, out, group, call_of)
    except Exception as error:
        announce(engine, group.kind, names_of_group(given, group.name), group.process_set, error)
        raise


def _placed(
    engine: Engine,
    arrays: list[Any],
    out: Sequence[Array] | None,
    group: Group,
    call_of: Callable[[list[Array], list[Array], str | None], Call],
) -> Handle:
    if out is not None:
        out = list(out)
        if len(out) != len(arrays):
            raise ConfigError(f"{len(arrays)} arrays, but {len(out)} in out.")
        arguments.check_apart(arrays, out)
    outs = [None] * len(arrays) if out is None else out
    pairs = [arguments.placed(array, where) for array, where in zip(arrays, outs)]
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    calls = [
        call_of(_at(sources, places), _at(targets, places), title)
        for title, places in _by_dtype(sources, group.name)
    ]
    return Handle(
        _started(engine, calls, group),
        lambda: [arguments.deliver(target, where) for target, where in zip(targets, outs)],
    )
