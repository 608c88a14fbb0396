"""Collectives on numpy arrays that move values unchanged to or from a root: gather, scatter.

They take every fixed-size dtype, bool and complex too. Their errors are those of `allreduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdmacoll._abi import arguments, mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._abi.fast_calls import plain
from rdmacoll._calls import operands
from rdmacoll._calls.handles import Handle
from rdmacoll._calls.refusals import Announced
from rdmacoll._calls.results import PreparedResults, Results, engine_result_handle, type_of
from rdmacoll._calls.submission import Call, Operation, Submit, run_operation
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.engine.exchanges import with_rows
from rdmacoll.engine.prepared import PreparedCall, check_prepared_arrays, prepared_result
from rdmacoll.operators import DTYPES
from rdmacoll.process_set import ProcessSet, global_process_set, number_of


def _gather_call(
    engine: Engine, array: Any, root_rank: int, name: str | None, process_set: ProcessSet, stream: Any
) -> Call:
    number = number_of(engine, process_set)
    with Announced(engine, mirror.GATHER, name, number):
        source = with_rows(array, stream)
        return Call(
            mirror.GATHER,
            (source,),
            (source,),
            dtype=DTYPES.moved(source.dtype),
            root=arguments.root(root_rank, engine.topology[1]),
            name=name,
            process_set=number,
        )


def _gathered(engine: Engine, call: Call, results: Results | PreparedResults) -> Array | None:
    return results.array(0, type_of(call.inputs[0])) if engine.topology[0] == call.root else None


def _gather(engine: Engine, call: Call, submit: Submit) -> Handle:
    operation = submit(engine, call)
    return Handle([operation], lambda: _gathered(engine, call, Results(engine, operation)))


def gather_async(
    array: Any,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `gather`, but returns at once: `wait()` gives the result."""
    engine = current()
    return _gather(engine, _gather_call(engine, array, root_rank, name, process_set, stream), Operation)


@plain
def gather(
    array: Any,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array | None:
    """At the root, all ranks' arrays, one after the other along the first dimension. Elsewhere None.

    Shapes as for `allgather`.
    """
    engine = current()
    call = _gather_call(engine, array, root_rank, name, process_set, stream)
    result: Array | None = _gather(engine, call, run_operation).wait()
    return result


def prepare_gather(
    array: Array,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """A gather to be called many times on the same memory, as with `prepare_allgather`.

    A run returns None on all ranks but the root. Otherwise as `gather`.
    """
    engine = current()
    check_prepared_arrays(engine, "gather", name, process_set, stream, array=array)
    call = _gather_call(engine, array, root_rank, name, process_set, stream)
    return PreparedCall(engine, call, results=lambda results_of_run: _gathered(engine, call, results_of_run))


def _scatter_call(
    engine: Engine,
    array: Any,
    root_rank: int,
    splits: Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
    stream: Any,
) -> Call:
    number = number_of(engine, process_set)
    with Announced(engine, mirror.SCATTER, name, number):
        source = operands.source(array, stream)
        arguments.check_has_rows(source, "scatter")
        root = arguments.root(root_rank, engine.topology[1])
        has_splits_at_root = splits is not None and engine.topology[0] == root
        return Call(
            mirror.SCATTER,
            (source,),
            (source,),
            dtype=DTYPES.moved(source.dtype),
            root=root,
            name=name,
            splits=arguments.splits(splits, process_set.size()) if has_splits_at_root else None,
            process_set=number,
        )


def scatter_async(
    array: Any,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `scatter`, but returns at once: `wait()` gives the result."""
    engine = current()
    call = _scatter_call(engine, array, root_rank, splits, name, process_set, stream)
    return engine_result_handle(engine, call, Operation)


@plain
def scatter(
    array: Any,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array:
    """This rank's rows of the root's array.

    array: of one dimension or more. On ranks other than the root only its dtype and the shape of a row
    count, so `np.empty((0, 3))` is enough. splits, read at the root: the number of rows for each rank.
    Without splits all ranks get as many rows, and the first ranks get one of the remaining rows each.
    Raises ConfigError as `alltoall` does.
    """
    engine = current()
    call = _scatter_call(engine, array, root_rank, splits, name, process_set, stream)
    result: Array = engine_result_handle(engine, call, run_operation).wait()
    return result


def prepare_scatter(
    array: Array,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """A scatter to be called many times on the same memory, like `prepare_allgather`, else as `scatter`."""
    engine = current()
    check_prepared_arrays(engine, "scatter", name, process_set, stream, array=array)
    return prepared_result(engine, _scatter_call(engine, array, root_rank, splits, name, process_set, stream))


__all__ = [
    "gather",
    "gather_async",
    "prepare_gather",
    "prepare_scatter",
    "scatter",
    "scatter_async",
]
