"""Collectives on numpy arrays in which values move as they are: allgather, gather, scatter, alltoall.

They take every fixed-size dtype, bool and complex too. Their errors are those of `allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdmacoll.engine import arguments, library as abi
from rdmacoll.engine.arguments import Array
from rdmacoll.engine.groups import grouped_handle
from rdmacoll.engine.operators import DTYPES
from rdmacoll.engine.process_set import ProcessSet, global_process_set, number_of
from rdmacoll.engine.results import made_handle, results_of
from rdmacoll.engine.submission import Call, Handle, Operation
from rdmacoll.engine.world import current


def _with_rows(array: Any) -> Array:
    source = arguments.source(array)
    return source.reshape(1) if source.ndim == 0 else source


def allgather_async(
    array: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> Handle:
    """Like `allgather`, but returns at once: `wait()` gives the result."""
    engine = current()
    number = number_of(engine, process_set)
    source = _with_rows(array)
    call = Call(
        abi.ALLGATHER, (source,), (source,), dtype=DTYPES.moved(source.dtype), name=name, process_set=number
    )
    return made_handle(engine, call)


def allgather(array: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set) -> Array:
    """All ranks' arrays, one after the other along the first dimension, by rank.

    The first dimension may differ from rank to rank, and be 0; the others and the dtype may not. Scalars
    give an array of shape (size,). Of two ranks, allgather([1]) and allgather([2, 3]) give [1, 2, 3].
    """
    result: Array = allgather_async(array, name, process_set=process_set).wait()
    return result


def grouped_allgather_async(
    arrays: Sequence[Any], name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> Handle:
    """Like `grouped_allgather`, but returns at once: `wait()` gives the list of results."""

    number = number_of(current(), process_set)

    def call(sources: list[Array], name: str | None) -> Call:
        dtype = DTYPES.moved(sources[0].dtype)
        return Call(abi.ALLGATHER, sources, sources, dtype=dtype, name=name, process_set=number)

    return grouped_handle([_with_rows(array) for array in arrays], name, call)


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """`allgather` of several arrays at once, one operation for each dtype: cheaper than one call each."""
    results: list[Array] = grouped_allgather_async(arrays, name, process_set=process_set).wait()
    return results


def gather_async(
    array: Any, root_rank: int, name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> Handle:
    """Like `gather`, but returns at once: `wait()` gives the result."""
    engine = current()
    source = _with_rows(array)
    root = arguments.root(root_rank, engine.topology[1])
    call = Call(
        abi.GATHER,
        (source,),
        (source,),
        dtype=DTYPES.moved(source.dtype),
        root=root,
        name=name,
        process_set=number_of(engine, process_set),
    )
    operation = Operation(engine, call)

    def result() -> Array | None:
        gathered = results_of(engine, operation)
        return gathered.array(0, source.dtype) if engine.topology[0] == root else None

    return Handle([operation], result)


def gather(
    array: Any, root_rank: int, name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> Array | None:
    """At the root, all ranks' arrays, one after the other along the first dimension; elsewhere None.

    Shapes as for `allgather`.
    """
    result: Array | None = gather_async(array, root_rank, name, process_set=process_set).wait()
    return result


def scatter_async(
    array: Any,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `scatter`, but returns at once: `wait()` gives the result."""
    engine = current()
    source = arguments.source(array)
    arguments.check_has_rows(source, "scatter")
    root = arguments.root(root_rank, engine.topology[1])
    is_cut_here = splits is not None and engine.topology[0] == root
    call = Call(
        abi.SCATTER,
        (source,),
        (source,),
        dtype=DTYPES.moved(source.dtype),
        root=root,
        name=name,
        splits=arguments.splits(splits, process_set.size()) if is_cut_here else None,
        process_set=number_of(engine, process_set),
    )
    return made_handle(engine, call)


def scatter(
    array: Any,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """This rank's rows of the root's array.

    array: of one dimension or more; elsewhere than at the root only its dtype and the shape of a row
    count, so `np.empty((0, 3))` will do. splits, read at the root: how many rows each rank gets; without
    them all get as many, the first ranks one more where that does not come out even. Raises ConfigError as
    `alltoall`.
    """
    result: Array = scatter_async(array, root_rank, splits, name, process_set=process_set).wait()
    return result


def alltoall_async(
    array: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `alltoall`, but returns at once: `wait()` gives what `alltoall` returns."""
    engine = current()
    source = arguments.source(array)
    arguments.check_has_rows(source, "alltoall")
    call = Call(
        abi.ALLTOALL,
        (source,),
        (source,),
        dtype=DTYPES.moved(source.dtype),
        name=name,
        splits=None if splits is None else arguments.splits(splits, process_set.size()),
        process_set=number_of(engine, process_set),
    )
    operation = Operation(engine, call)

    def result() -> Array | tuple[Array, Array]:
        exchanged = results_of(engine, operation)
        received = exchanged.array(0, source.dtype)
        return received if splits is None else (received, exchanged.array(1, arguments.SPLITS))

    return Handle([operation], result)


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Every rank gives each rank some of its rows, and gets those meant for it, by rank.

    array: of one dimension or more; the first may differ from rank to rank. splits: how many rows each
    rank gets, together the first dimension; without them it is cut in equal parts, and must be a multiple
    of the number of ranks. With splits the result is a pair: the rows, and how many of them came from each
    rank (int64).

    Of two ranks, rank 0 calls alltoall([1, 2, 3], [1, 2]) and gets ([1], [1, 0]); rank 1 calls
    alltoall([4, 5], [0, 2]) and gets ([2, 3, 4, 5], [2, 2]).

    Raises ConfigError for splits that are not as many as ranks, or not together the first dimension.
    """
    result: Array | tuple[Array, Array] = alltoall_async(array, splits, name, process_set=process_set).wait()
    return result


__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "scatter",
    "scatter_async",
]
