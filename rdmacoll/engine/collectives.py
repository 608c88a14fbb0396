"""Collective operations on numpy arrays. Further ones are in reductions.py, exchanges.py and
rooted_exchanges.py.

Every rank calls the same operations. With a process_set, every rank of that set does. "All ranks" are then
the ranks of the set, and an average divides by their number. root_rank is a rank of the world in either case.
Ranks match unnamed operations by their order. They match named ones by name, so their order may differ from
rank to rank.

Arrays in memory of a GPU are taken like numpy arrays: those of cupy, PyTorch, JAX and numba, and all with
`__dlpack__` or `__cuda_array_interface__`. New results are arrays of the same library. A call begins after
the present work of the CUDA stream `stream`, and later work of that stream finds the result. stream: one of
cupy or PyTorch, or a number as in DLPack (1: the legacy default stream, 2: the one of the thread, others:
handles). Without it, the library's current stream is used. `prepare_*` keeps the stream for all runs. A
stream that is given as a number must outlive the results of its calls: their memory is given back on it.
All arrays of a call are on one GPU. Other ranks may use host memory.

All operations raise these errors:
- NotInitializedError: this process is in no world
- MismatchError: ranks disagree about shape, dtype, operator or root
- RankFailedError: a rank is lost
- StalledError: some ranks never come
- ConfigError: this rank is not in the set, or an argument is wrong
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rdmacoll._abi import arguments, mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._abi.fast_calls import plain
from rdmacoll._calls import operands
from rdmacoll._calls.groups import Group, grouped_out_handle
from rdmacoll._calls.handles import Handle
from rdmacoll._calls.reduction_call import reduction_call
from rdmacoll._calls.refusals import Announced
from rdmacoll._calls.submission import Call, Operand, Operation, Submit, perform, run_operation
from rdmacoll._world.running_engine import Engine
from rdmacoll._world.world import current
from rdmacoll.engine.prepared import PreparedCall, check_prepared_arrays, prepared_into
from rdmacoll.operators import DTYPES, Average
from rdmacoll.process_set import ProcessSet, global_process_set, number_of


def _allreduce_call(
    engine: Engine,
    array: Any,
    op: int,
    name: str | None,
    out: Array | None,
    factors: tuple[float, float],
    process_set: int,
    stream: Any,
) -> Call:
    with Announced(engine, mirror.ALLREDUCE, name, process_set):
        source: Operand
        target: Operand
        if out is not None and out is array and stream is None and arguments.is_plain(array):
            source = target = out
        else:
            source, target = operands.source_and_target(array, out, stream)
        return reduction_call(mirror.ALLREDUCE, (source,), (target,), op, name, factors, process_set)


@plain
def allreduce(
    array: Any,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array:
    """The elementwise reduction of all ranks' arrays, the same bits on every rank.

    array: any shape of up to 8 dimensions; integers of 8 to 64 bits, float16, bfloat16 (ml_dtypes),
    float32, float64, or complex. op: Average (no integers), Sum, Min, Max or Product. Complex numbers take
    Average and Sum, bool takes Min and Max. Integer sums wrap around. NaN propagates in Min and Max.
    out: the array for the result, which may be `array` itself; without it a new array is made.
    The engine multiplies inputs by prescale_factor first and the result by postscale_factor last. It scales
    16-bit floats in float32 and rounds once.

    Raises ConfigError for a dtype, operator or `out` that does not fit, and the errors of this module.
    """
    engine = current()
    number = number_of(engine, process_set)
    call = _allreduce_call(engine, array, op, name, out, (prescale_factor, postscale_factor), number, stream)
    perform(engine, call)
    return operands.deliver(call.outputs[0], out)


def allreduce_async(
    array: Any,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `allreduce`, but returns at once: `wait()` gives the result."""
    engine = current()
    number = number_of(engine, process_set)
    call = _allreduce_call(engine, array, op, name, out, (prescale_factor, postscale_factor), number, stream)
    return Handle([Operation(engine, call)], lambda: operands.deliver(call.outputs[0], out))


def _grouped_allreduce(
    submit: Submit,
    arrays: Iterable[Any],
    op: int,
    name: str | None,
    out: Sequence[Array] | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    stream: Any,
) -> Handle:
    number = number_of(current(), process_set)

    def call(sources: list[Operand], targets: list[Operand], name: str | None) -> Call:
        return reduction_call(mirror.ALLREDUCE, sources, targets, op, name, factors, number)

    return grouped_out_handle(arrays, out, Group(mirror.ALLREDUCE, name, number, submit, stream), call)


def grouped_allreduce_async(
    arrays: Iterable[Any],
    op: int = Average,
    name: str | None = None,
    out: Sequence[Array] | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `grouped_allreduce`, but returns at once: `wait()` gives the list of results."""
    factors = prescale_factor, postscale_factor
    return _grouped_allreduce(Operation, arrays, op, name, out, factors, process_set, stream)


def grouped_allreduce(
    arrays: Iterable[Any],
    op: int = Average,
    name: str | None = None,
    out: Sequence[Array] | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> list[Array]:
    """The reduction of several arrays at once, cheaper than one call each.

    Arrays of one dtype are one operation: all of them are reduced, or none. Arrays of several dtypes are
    one operation for each dtype, and one may fail while another succeeds. out: arrays that share no memory
    with each other, nor with another position's array. Otherwise as `allreduce`.
    """
    factors = prescale_factor, postscale_factor
    results: list[Array] = _grouped_allreduce(
        run_operation, arrays, op, name, out, factors, process_set, stream
    ).wait()
    return results


def _broadcast_call(
    sources: Sequence[Operand],
    targets: Sequence[Operand],
    root_rank: int,
    name: str | None,
    engine: Engine,
    process_set: int,
) -> Call:
    return Call(
        mirror.BROADCAST,
        sources,
        targets,
        dtype=DTYPES.moved(sources[0].dtype),
        root=arguments.root(root_rank, engine.topology[1]),
        name=name,
        process_set=process_set,
    )


def _one_broadcast_call(
    engine: Engine,
    array: Any,
    root_rank: int,
    name: str | None,
    out: Array | None,
    process_set: ProcessSet,
    stream: Any,
) -> Call:
    number = number_of(engine, process_set)
    with Announced(engine, mirror.BROADCAST, name, number):
        source, target = operands.source_and_target(array, out, stream)
        return _broadcast_call((source,), (target,), root_rank, name, engine, number)


@plain
def broadcast(
    array: Any,
    root_rank: int,
    name: str | None = None,
    out: Array | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Array:
    """The root's array, on every rank.

    array: the values at the root, shape and dtype elsewhere; every fixed-size dtype, bool and complex too.
    out: the array for the result, which may be `array` itself; without it a new array is made.
    """
    engine = current()
    call = _one_broadcast_call(engine, array, root_rank, name, out, process_set, stream)
    perform(engine, call)
    return operands.deliver(call.outputs[0], out)


def broadcast_async(
    array: Any,
    root_rank: int,
    name: str | None = None,
    out: Array | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `broadcast`, but returns at once: `wait()` gives the result."""
    engine = current()
    call = _one_broadcast_call(engine, array, root_rank, name, out, process_set, stream)
    return Handle([Operation(engine, call)], lambda: operands.deliver(call.outputs[0], out))


def _grouped_broadcast(
    submit: Submit,
    arrays: Sequence[Any],
    root_rank: int,
    name: str | None,
    out: Sequence[Array] | None,
    process_set: ProcessSet,
    stream: Any,
) -> Handle:
    engine = current()
    number = number_of(engine, process_set)

    def call(sources: list[Operand], targets: list[Operand], name: str | None) -> Call:
        return _broadcast_call(sources, targets, root_rank, name, engine, number)

    return grouped_out_handle(arrays, out, Group(mirror.BROADCAST, name, number, submit, stream), call)


def grouped_broadcast_async(
    arrays: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    out: Sequence[Array] | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> Handle:
    """Like `grouped_broadcast`, but returns at once: `wait()` gives the list of results."""
    return _grouped_broadcast(Operation, arrays, root_rank, name, out, process_set, stream)


def grouped_broadcast(
    arrays: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    out: Sequence[Array] | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> list[Array]:
    """`broadcast` of several arrays at once, one operation for each dtype: cheaper than one call each.

    out: as for `grouped_allreduce`; `out=arrays` is in place.
    """
    results: list[Array] = _grouped_broadcast(
        run_operation, arrays, root_rank, name, out, process_set, stream
    ).wait()
    return results


def _barrier_call(engine: Engine, name: str | None, process_set: ProcessSet) -> Call:
    return Call(mirror.BARRIER, (), (), name=name, process_set=number_of(engine, process_set))


def barrier_async(name: str | None = None, *, process_set: ProcessSet = global_process_set) -> Handle:
    """Like `barrier`, but returns at once."""
    engine = current()
    return Handle([Operation(engine, _barrier_call(engine, name, process_set))], lambda: None)


@plain
def barrier(name: str | None = None, *, process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it."""
    engine = current()
    perform(engine, _barrier_call(engine, name, process_set))


def prepare_allreduce(
    array: Array,
    out: Array | None = None,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """An allreduce to be called many times on the same memory: `run = prepare_allreduce(a); run()`.

    array, out: C-contiguous numpy arrays, which the object keeps. Without `out` the result goes to a new
    array. Two threads may not call the object at once. Otherwise as `allreduce`.
    """
    engine = current()
    check_prepared_arrays(engine, "allreduce", name, process_set, stream, array=array, out=out)
    number = number_of(engine, process_set)
    call = _allreduce_call(engine, array, op, name, out, (prescale_factor, postscale_factor), number, stream)
    return prepared_into(engine, call, out)


def prepare_broadcast(
    array: Array,
    root_rank: int,
    name: str | None = None,
    out: Array | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    stream: Any = None,
) -> PreparedCall:
    """A broadcast to be called many times on the same memory, as with `prepare_allreduce`.

    `out=array` is in place. Otherwise as `broadcast`.
    """
    engine = current()
    check_prepared_arrays(engine, "broadcast", name, process_set, stream, array=array, out=out)
    call = _one_broadcast_call(engine, array, root_rank, name, out, process_set, stream)
    return prepared_into(engine, call, out)


def prepare_barrier(name: str | None = None, *, process_set: ProcessSet = global_process_set) -> PreparedCall:
    """A barrier to be called many times: `run = prepare_barrier(); run()`, which returns None."""
    engine = current()
    return PreparedCall(engine, _barrier_call(engine, name, process_set))


__all__ = [
    "Handle",
    "PreparedCall",
    "allreduce",
    "allreduce_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_broadcast",
    "grouped_broadcast_async",
    "prepare_allreduce",
    "prepare_barrier",
    "prepare_broadcast",
]
