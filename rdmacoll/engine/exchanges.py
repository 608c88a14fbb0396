"""Collectives on numpy arrays that move values unchanged: allgather, alltoall. gather and scatter, which have
a root, are in rooted_exchanges.py.

They take every fixed-size dtype, bool and complex too. Their errors are those of `allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdmacoll._abi import arguments, mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._abi.fast_calls import plain
from rdmacoll._calls import operands
from rdmacoll._calls.groups import Group, grouped_handle
from rdmacoll._calls.handles import Handle
from rdmacoll._calls.refusals import Announced
from rdmacoll._calls.results import PreparedResults, Results, engine_result_handle, type_of
from rdmacoll._calls.submission import Call, Operand, Operation, Submit, run_operation
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.engine.prepared import PreparedCall, check_prepared_arrays, prepared_result
from rdmacoll.operators import DTYPES
from rdmacoll.process_set import ProcessSet, global_process_set, number_of


def with_rows(array: Any, stream: Any) -> Operand:
    """The array to read, with one row if it is a scalar."""
    source = operands.source(array, stream)
    return source.reshape(1) if source.ndim == 0 else source


def _allgather_call(
    engine: Engine, array: Any, name: str | None, process_set: ProcessSet, stream: Any
) -> Call:
    number = number_of(engine, process_set)
    with Announced(engine, mirror.ALLGATHER, name, number):
        return _gathering_call((with_rows(array, stream),), name, number)


def _gathering_call(sources: Sequence[Operand], name: str | None, process_set: int) -> Call:
    dtype = DTYPES.moved(sources[0].dtype)
    return Call(mirror.ALLGATHER, sources, sources, dtype=dtype, name=name, process_set=process_set)


def allgather_async(
    array: Any,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `allgather`, but returns at once: `wait()` gives the result."""
    engine = current()
    return engine_result_handle(engine, _allgather_call(engine, array, name, process_set, stream), Operation)


@plain
def allgather(
    array: Any,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array:
    """All ranks' arrays, one after the other along the first dimension, by rank.

    The first dimension may differ from rank to rank, and be 0. The other dimensions and the dtype may not.
    Scalars give an array of shape (size,). Example with two ranks: allgather([1]) on rank 0 and
    allgather([2, 3]) on rank 1 both give [1, 2, 3].
    """
    engine = current()
    call = _allgather_call(engine, array, name, process_set, stream)
    result: Array = engine_result_handle(engine, call, run_operation).wait()
    return result


def prepare_allgather(
    array: Array,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """An allgather to be called many times on the same memory: `run = prepare_allgather(a); run()`.

    array: a C-contiguous numpy array, which the object keeps. The result is one array, which each run
    overwrites. It is a new array when another rank changes its number of rows. Two threads may not call the
    object at once. Otherwise as `allgather`.
    """
    engine = current()
    check_prepared_arrays(engine, "allgather", name, process_set, stream, array=array)
    return prepared_result(engine, _allgather_call(engine, array, name, process_set, stream))


def _grouped_allgather(
    submit: Submit, arrays: Sequence[Any], name: str | None, process_set: ProcessSet, stream: Any
) -> Handle:
    number = number_of(current(), process_set)

    def call(sources: list[Operand], name: str | None) -> Call:
        return _gathering_call(sources, name, number)

    return grouped_handle(arrays, with_rows, Group(mirror.ALLGATHER, name, number, submit, stream), call)


def grouped_allgather_async(
    arrays: Sequence[Any],
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `grouped_allgather`, but returns at once: `wait()` gives the list of results."""
    return _grouped_allgather(Operation, arrays, name, process_set, stream)


def grouped_allgather(
    arrays: Sequence[Any],
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> list[Array]:
    """`allgather` of several arrays at once, one operation for each dtype: cheaper than one call each."""
    results: list[Array] = _grouped_allgather(run_operation, arrays, name, process_set, stream).wait()
    return results


def _alltoall_call(
    engine: Engine,
    array: Any,
    splits: Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
    stream: Any,
) -> Call:
    number = number_of(engine, process_set)
    with Announced(engine, mirror.ALLTOALL, name, number):
        source = operands.source(array, stream)
        arguments.check_has_rows(source, "alltoall")
        return Call(
            mirror.ALLTOALL,
            (source,),
            (source,),
            dtype=DTYPES.moved(source.dtype),
            name=name,
            splits=None if splits is None else arguments.splits(splits, process_set.size()),
            process_set=number,
        )


def _exchanged(call: Call, results: Results | PreparedResults) -> Array | tuple[Array, Array]:
    received = results.array(0, type_of(call.inputs[0]))
    return received if call.splits is None else (received, results.array(1, arguments.SPLITS))


def _alltoall(engine: Engine, call: Call, submit: Submit) -> Handle:
    operation = submit(engine, call)
    return Handle([operation], lambda: _exchanged(call, Results(engine, operation)))


def alltoall_async(
    array: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `alltoall`, but returns at once: `wait()` gives what `alltoall` returns."""
    engine = current()
    return _alltoall(engine, _alltoall_call(engine, array, splits, name, process_set, stream), Operation)


@plain
def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array | tuple[Array, Array]:
    """Every rank sends some of its rows to each rank, and gets the rows meant for it, by rank.

    array: of one dimension or more; the first may differ from rank to rank. splits: the number of rows for
    each rank; their sum is the first dimension. Without splits the array is cut in equal parts, and the first
    dimension must be a multiple of the number of ranks. With splits the result is a pair: the rows, and the
    number of rows from each rank (int64).

    Example with two ranks: rank 0 calls alltoall([1, 2, 3], [1, 2]) and gets ([1], [1, 0]); rank 1 calls
    alltoall([4, 5], [0, 2]) and gets ([2, 3, 4, 5], [2, 2]).

    Raises ConfigError when splits are not one for each rank, or their sum is not the first dimension.
    """
    engine = current()
    call = _alltoall_call(engine, array, splits, name, process_set, stream)
    result: Array | tuple[Array, Array] = _alltoall(engine, call, run_operation).wait()
    return result


def prepare_alltoall(
    array: Array,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """An alltoall to be called many times on the same memory, as with `prepare_allgather`.

    The object keeps the splits. With splits each run returns the same pair of arrays. Otherwise as
    `alltoall`.
    """
    engine = current()
    check_prepared_arrays(engine, "alltoall", name, process_set, stream, array=array)
    call = _alltoall_call(engine, array, splits, name, process_set, stream)
    return PreparedCall(engine, call, results=lambda results_of_run: _exchanged(call, results_of_run))


__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "prepare_allgather",
    "prepare_alltoall",
]
