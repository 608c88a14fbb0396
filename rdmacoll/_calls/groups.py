"""Groups of arrays: one operation for each dtype.

A group takes one sequence number, or one name, on every rank, whatever its dtypes. Later calls stay matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

from rdmacoll._abi import arguments
from rdmacoll._abi.arguments import Array
from rdmacoll._calls import operands
from rdmacoll._calls.handles import Handle
from rdmacoll._calls.refusals import Announced, announce
from rdmacoll._calls.results import Results, type_of
from rdmacoll._calls.submission import Call, Operand, Operation, Submit, submit_group
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.errors import ConfigError


def _by_dtype(sources: Sequence[Operand]) -> list[list[int]]:
    """The positions of each dtype, ordered by the dtypes' names. All ranks share this order."""
    positions: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        positions.setdefault(source.dtype.name, []).append(position)
    return [positions[dtype] for dtype in sorted(positions)]


def _at(arrays: Sequence[Operand], positions: Sequence[int]) -> list[Operand]:
    return [arrays[position] for position in positions]


class Group(NamedTuple):
    """The properties that all operations of one grouped call share."""

    kind: int
    name: str | None
    process_set: int
    submit: Submit
    stream: Any


def _submitted(engine: Engine, calls: Sequence[Call], group: Group) -> list[Operation]:
    if len(calls) > 1:
        return submit_group(engine, calls)
    if not calls:  # an empty group takes its number too, and ranks that have arrays learn the reason
        empty = ConfigError("the group has no arrays: give the same number of arrays on all ranks.")
        announce(engine, group.kind, (group.name,), group.process_set, empty)
    return [group.submit(engine, call) for call in calls]


def grouped_handle(
    arrays: Iterable[Any],
    source_of: Callable[[Any, Any], Operand],
    group: Group,
    call_of: Callable[[list[Operand], str | None], Call],
) -> Handle:
    """Starts `call_of(sources, name)` for the sources of each dtype, with the group's name.

    `source_of` takes an array and the group's stream.
    The handle's result is the list of the engine's results, in the order of `arrays`.
    """
    engine = current()
    with Announced(engine, group.kind, group.name, group.process_set):
        sources = [source_of(array, group.stream) for array in arrays]
        operands.check_group(sources)
        groups = _by_dtype(sources)
        calls = [call_of(_at(sources, positions), group.name) for positions in groups]
    operations = _submitted(engine, calls, group)

    def results() -> list[Array]:
        found: dict[int, Array] = {}
        for operation, positions in zip(operations, groups):
            allocated = Results(engine, operation)
            found.update(
                (position, allocated.array(index, type_of(sources[position])))
                for index, position in enumerate(positions)
            )
        return [found[position] for position in range(len(sources))]

    return Handle(operations, results)


def grouped_out_handle(
    arrays: Iterable[Any],
    out: Sequence[Array] | None,
    group: Group,
    call_of: Callable[[list[Operand], list[Operand], str | None], Call],
) -> Handle:
    """Like `grouped_handle`, with `call_of(sources, targets, name)`. Results go to `out` or to new arrays."""
    engine = current()
    with Announced(engine, group.kind, group.name, group.process_set):
        calls, targets, outs = _with_outputs(list(arrays), out, group, call_of)
    return Handle(
        _submitted(engine, calls, group),
        lambda: [operands.deliver(target, output) for target, output in zip(targets, outs)],
    )


def _with_outputs(
    arrays: list[Any],
    out: Sequence[Array] | None,
    group: Group,
    call_of: Callable[[list[Operand], list[Operand], str | None], Call],
) -> tuple[list[Call], list[Operand], Sequence[Array | None]]:
    """The calls, the arrays that the engine writes, and for each the caller's `out` or None."""
    if out is not None:
        out = list(out)
        if len(out) != len(arrays):
            raise ConfigError(f"{len(arrays)} arrays, but {len(out)} in out.")
        arguments.check_apart(arrays, out)
    outs: Sequence[Array | None] = [None] * len(arrays) if out is None else out
    pairs = [operands.source_and_target(array, output, group.stream) for array, output in zip(arrays, outs)]
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    operands.check_group(sources)
    operands.check_apart(sources, targets)
    calls = [
        call_of(_at(sources, positions), _at(targets, positions), group.name)
        for positions in _by_dtype(sources)
    ]
    return calls, targets, outs
