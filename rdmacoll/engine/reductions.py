"""Reductions on numpy arrays whose result is not everybody's: reducescatter, reduce.

Dtypes, operators, scales and errors are those of `allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdmacoll.engine import arguments, library as abi
from rdmacoll.engine.arguments import Array
from rdmacoll.engine.groups import grouped_handle
from rdmacoll.engine.operators import DTYPES, Average
from rdmacoll.engine.process_set import ProcessSet, global_process_set, number_of
from rdmacoll.engine.results import results_of
from rdmacoll.engine.submission import Call, Handle, Operation, perform
from rdmacoll.engine.world import Engine, current


def _reducescatter_call(
    sources: list[Array],
    op: int,
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
) -> Call:
    for source in sources:
        arguments.check_has_rows(source, "reducescatter")
    dtype = sources[0].dtype
    prescale, postscale = arguments.scales(dtype, prescale_factor, postscale_factor)
    return Call(
        abi.REDUCESCATTER,
        sources,
        sources,
        dtype=DTYPES.reduced(dtype, op),
        op=op,
        prescale=prescale,
        postscale=postscale,
        name=name,
        process_set=process_set,
    )


def grouped_reducescatter_async(
    arrays: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `grouped_reducescatter`, but returns at once: `wait()` gives the list of results."""
    number = number_of(current(), process_set)

    def call(sources: list[Array], name: str | None) -> Call:
        return _reducescatter_call(sources, op, name, prescale_factor, postscale_factor, number)

    return grouped_handle([arguments.source(array) for array in arrays], name, call)


def grouped_reducescatter(
    arrays: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`reducescatter` of several arrays at once, one operation for each dtype: cheaper than one call each."""
    results: list[Array] = grouped_reducescatter_async(
        arrays,
        op,
        name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    ).wait()
    return results


def reducescatter_async(
    array: Any,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `reducescatter`, but returns at once: `wait()` gives the result."""
    engine = current()
    source = arguments.source(array)
    number = number_of(engine, process_set)
    call = _reducescatter_call([source], op, name, prescale_factor, postscale_factor, number)
    operation = Operation(engine, call)
    return Handle([operation], lambda: results_of(engine, operation).array(0, source.dtype))


def reducescatter(
    array: Any,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """This rank's rows of the reduction of all ranks' arrays.

    array: of one dimension or more, the same shape on every rank. It is cut along the first dimension: all
    ranks get as many rows, the first ones one more where that does not come out even. Of two ranks that
    call reducescatter([1, 2, 3], Sum), rank 0 gets [2, 4] and rank 1 [6].
    """
    result: Array = reducescatter_async(
        array,
        op,
        name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    ).wait()
    return result


def _reduce_call(
    engine: Engine,
    array: Any,
    root_rank: int,
    op: int,
    name: str | None,
    out: Array | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
) -> Call:
    rank, size = engine.topology[:2]
    root = arguments.root(root_rank, size)
    source = arguments.source(array)
    target = arguments.target(source, out, array=array) if rank == root else source
    prescale, postscale = arguments.scales(source.dtype, prescale_factor, postscale_factor)
    return Call(
        abi.REDUCE,
        (target if target is array else source,),
        (target,),
        dtype=DTYPES.reduced(source.dtype, op),
        op=op,
        root=root,
        prescale=prescale,
        postscale=postscale,
        name=name,
        process_set=process_set,
    )


def _at_root(engine: Engine, call: Call, out: Array | None) -> Array | None:
    return arguments.deliver(call.outputs[0], out) if engine.topology[0] == call.root else None


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
) -> Array | None:
    """At the root, the elementwise reduction of all ranks' arrays; elsewhere None.

    array: any shape of up to 8 dimensions, the same on every rank. out, used at the root: where the result
    goes, which may be `array` itself; without it a new array.
    """
    engine = current()
    number = number_of(engine, process_set)
    call = _reduce_call(engine, array, root_rank, op, name, out, prescale_factor, postscale_factor, number)
    perform(engine, call)
    return _at_root(engine, call, out)


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
) -> Handle:
    """Like `reduce`, but returns at once: `wait()` gives the result."""
    engine = current()
    number = number_of(engine, process_set)
    call = _reduce_call(engine, array, root_rank, op, name, out, prescale_factor, postscale_factor, number)
    return Handle([Operation(engine, call)], lambda: _at_root(engine, call, out))


__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
]
