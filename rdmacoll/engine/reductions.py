"""Reductions on numpy arrays with different results on the ranks: reducescatter, reduce.

Dtypes, operators, scales and errors are those of `allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from rdmacoll._abi import arguments, mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._abi.fast_calls import plain
from rdmacoll._calls import operands
from rdmacoll._calls.groups import Group, grouped_handle
from rdmacoll._calls.handles import Handle
from rdmacoll._calls.reduction_call import reduction_call
from rdmacoll._calls.refusals import Announced
from rdmacoll._calls.results import engine_result_handle
from rdmacoll._calls.submission import Call, Operand, Operation, Submit, perform, run_operation
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.engine.prepared import PreparedCall, check_prepared_arrays, prepared_into, prepared_result
from rdmacoll.operators import Average
from rdmacoll.process_set import ProcessSet, global_process_set, number_of


def _cut_by_rows(array: Any, stream: Any) -> Operand:
    source = operands.source(array, stream)
    arguments.check_has_rows(source, "reducescatter")
    return source


def _grouped_reducescatter(
    submit: Submit,
    arrays: Sequence[Any],
    op: int,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    stream: Any,
) -> Handle:
    number = number_of(current(), process_set)

    def call(sources: list[Operand], name: str | None) -> Call:
        return reduction_call(mirror.REDUCESCATTER, sources, sources, op, name, factors, number)

    return grouped_handle(
        arrays, _cut_by_rows, Group(mirror.REDUCESCATTER, name, number, submit, stream), call
    )


def grouped_reducescatter_async(
    arrays: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `grouped_reducescatter`, but returns at once: `wait()` gives the list of results."""
    factors = prescale_factor, postscale_factor
    return _grouped_reducescatter(Operation, arrays, op, name, factors, process_set, stream)


def grouped_reducescatter(
    arrays: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> list[Array]:
    """`reducescatter` of several arrays at once, one operation for each dtype: cheaper than one call each."""
    factors = prescale_factor, postscale_factor
    results: list[Array] = _grouped_reducescatter(
        run_operation, arrays, op, name, factors, process_set, stream
    ).wait()
    return results


def _reducescatter_call(
    engine: Engine,
    array: Any,
    op: int,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    stream: Any,
) -> Call:
    number = number_of(engine, process_set)
    with Announced(engine, mirror.REDUCESCATTER, name, number):
        source = _cut_by_rows(array, stream)
        return reduction_call(mirror.REDUCESCATTER, (source,), (source,), op, name, factors, number)


def reducescatter_async(
    array: Any,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `reducescatter`, but returns at once: `wait()` gives the result."""
    engine = current()
    factors = prescale_factor, postscale_factor
    call = _reducescatter_call(engine, array, op, name, factors, process_set, stream)
    return engine_result_handle(engine, call, Operation)


@plain
def reducescatter(
    array: Any,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array:
    """This rank's rows of the reduction of all ranks' arrays.

    array: of one dimension or more, the same shape on every rank. The engine cuts it along the first
    dimension. All ranks get as many rows, and the first ranks get one of the remaining rows each. Example
    with two ranks: reducescatter([1, 2, 3], Sum) gives [2, 4] on rank 0 and [6] on rank 1.
    """
    engine = current()
    factors = prescale_factor, postscale_factor
    call = _reducescatter_call(engine, array, op, name, factors, process_set, stream)
    result: Array = engine_result_handle(engine, call, run_operation).wait()
    return result


def prepare_reducescatter(
    array: Array,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """A reducescatter to be called many times on the same memory, as with `prepare_allreduce`.

    The result is one array, which each run overwrites. Otherwise as `reducescatter`.
    """
    engine = current()
    check_prepared_arrays(engine, "reducescatter", name, process_set, stream, array=array)
    factors = prescale_factor, postscale_factor
    return prepared_result(engine, _reducescatter_call(engine, array, op, name, factors, process_set, stream))


def _reduce_call(
    engine: Engine,
    array: Any,
    root_rank: int,
    op: int,
    name: str | None,
    out: Array | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    stream: Any,
) -> tuple[Call, Callable[[], Array | None]]:
    """The call, and a function that returns the result once the call is done."""
    rank, size = engine.topology[:2]
    number = number_of(engine, process_set)
    with Announced(engine, mirror.REDUCE, name, number):
        root = arguments.root(root_rank, size)
        if rank == root:
            source, target = operands.source_and_target(array, out, stream)
        else:
            source = target = operands.source(array, stream)
        call = reduction_call(mirror.REDUCE, (source,), (target,), op, name, factors, number, root=root)
    return call, lambda: operands.deliver(target, out) if rank == root else None


@plain
def reduce(
    array: Any,
    root_rank: int,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array | None:
    """At the root, the elementwise reduction of all ranks' arrays. Elsewhere None.

    array: any shape of up to 8 dimensions, the same on every rank. out, used at the root: the array for the
    result, which may be `array` itself; without it a new array is made.
    """
    engine = current()
    factors = prescale_factor, postscale_factor
    call, result = _reduce_call(engine, array, root_rank, op, name, out, factors, process_set, stream)
    perform(engine, call)
    return result()


def reduce_async(
    array: Any,
    root_rank: int,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `reduce`, but returns at once: `wait()` gives the result."""
    engine = current()
    factors = prescale_factor, postscale_factor
    call, result = _reduce_call(engine, array, root_rank, op, name, out, factors, process_set, stream)
    return Handle([Operation(engine, call)], result)


def prepare_reduce(
    array: Array,
    root_rank: int,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """A reduce to be called many times on the same memory, as with `prepare_allreduce`.

    A run returns None on all ranks but the root. Otherwise as `reduce`.
    """
    engine = current()
    check_prepared_arrays(engine, "reduce", name, process_set, stream, array=array, out=out)
    factors = prescale_factor, postscale_factor
    call, _ = _reduce_call(engine, array, root_rank, op, name, out, factors, process_set, stream)
    if engine.topology[0] != root_rank:
        return PreparedCall(engine, call)
    return prepared_into(engine, call, out)


__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "prepare_reduce",
    "prepare_reducescatter",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
]
