"""Collective operations on numpy arrays; further ones in reductions.py and exchanges.py.

Every rank calls the same operations; with a process_set, every rank of that set, and then "all ranks" are its
ranks: an average divides by their number. root_rank is a rank of the world all the same. Unnamed operations
are matched by their order; named ones by name, so their order may differ from rank to rank. All of them raise
NotInitializedError without a world, MismatchError when ranks disagree about shape, dtype, operator or root,
RankFailedError when a rank is lost, StalledError when some ranks never come, and ConfigError on a rank that
is not in the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rdmacoll.engine import arguments, library as abi
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import DTYPES, Average
from rdmacoll.engine.prepared import PreparedAllreduce
from rdmacoll.engine.process_set import ProcessSet, global_process_set, number_of
from rdmacoll.engine.submission import Array, Call, Handle, Operation, perform
from rdmacoll.engine.world import Engine, current


def _allreduce_call(
    array: Any,
    op: int,
    name: str | None,
    out: Array | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
) -> Call:
    if out is not None and out is array and arguments.is_plain(array):
        source = target = out
    else:
        source = arguments.source(array)
        target = arguments.target(source, out, array=array)
        if target is array:
            source = target
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        prescale_factor, postscale_factor = arguments.scales(source.dtype, prescale_factor, postscale_factor)
    return Call(
        abi.ALLREDUCE,
        (source,),
        (target,),
        dtype=DTYPES.reduced(source.dtype, op),
        op=op,
        prescale=prescale_factor,
        postscale=postscale_factor,
        name=name,
        process_set=process_set,
    )


def allreduce(
    array: Any,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The elementwise reduction of all ranks' arrays, the same bits on every rank.

    array: any shape of up to 8 dimensions; uint8, int8, int32, int64, float16, bfloat16 (ml_dtypes),
    float32 or float64. op: Average (floats only), Sum, Min, Max or Product; integer sums wrap around, NaN
    propagates in Min and Max. out: where the result goes, which may be `array` itself; without it a new
    array. Inputs are multiplied by prescale_factor first, the result by postscale_factor last.

    Raises ConfigError for a dtype, operator or `out` that does not fit, and the errors of this module.
    """
    engine = current()
    number = number_of(engine, process_set)
    call = _allreduce_call(array, op, name, out, prescale_factor, postscale_factor, number)
    perform(engine, call)
    return arguments.deliver(call.outputs[0], out)


def allreduce_async(
    array: Any,
    op: int = Average,
    name: str | None = None,
    out: Array | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `allreduce`, but returns at once: `wait()` gives the result."""
    engine = current()
    number = number_of(engine, process_set)
    call = _allreduce_call(array, op, name, out, prescale_factor, postscale_factor, number)
    return Handle([Operation(engine, call)], lambda: arguments.deliver(call.outputs[0], out))


def _grouped_calls(
    arrays: Sequence[Any],
    op: int,
    name: str | None,
    outs: Sequence[Array] | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: int,
) -> tuple[list[Call], list[Array]]:
    """One call per dtype, in order of first appearance, and the targets in the arrays' order."""
    if outs is not None and len(outs) != len(arrays):
        raise ConfigError(f"{len(arrays)} arrays, but {len(outs)} in out.")
    if outs is not None:
        arguments.check_apart(arrays, outs)
    if name is not None:
        arguments.name(name)
    groups: dict[np.dtype[Any], tuple[list[Array], list[Array]]] = {}
    targets = []
    for position, array in enumerate(arrays):
        out = None if outs is None else outs[position]
        source = arguments.source(array)
        target = arguments.target(source, out, array=array)
        inputs, outputs = groups.setdefault(source.dtype, ([], []))
        inputs.append(target if target is array else source)
        outputs.append(target)
        targets.append(target)
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        for dtype in groups:
            prescale_factor, postscale_factor = arguments.scales(dtype, prescale_factor, postscale_factor)
    calls = []
    for dtype, (inputs, outputs) in groups.items():
        call = Call(
            abi.ALLREDUCE,
            inputs,
            outputs,
            dtype=DTYPES.reduced(dtype, op),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            name=name if name is None or len(groups) == 1 else f"{name}/{dtype.name}",
            process_set=process_set,
        )
        calls.append(call)
    return calls, targets


def grouped_allreduce_async(
    arrays: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    out: Sequence[Array] | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `grouped_allreduce`, but returns at once: `wait()` gives the list of results."""
    engine = current()
    number = number_of(engine, process_set)
    calls, targets = _grouped_calls(arrays, op, name, out, prescale_factor, postscale_factor, number)

    def results() -> list[Array]:
        return [
            arguments.deliver(target, None if out is None else out[position])
            for position, target in enumerate(targets)
        ]

    return Handle([Operation(engine, call) for call in calls], results)


def grouped_allreduce(
    arrays: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    out: Sequence[Array] | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """The reduction of several arrays at once, cheaper than one call each.

    Arrays of one dtype are one operation: all of them are reduced, or none. Those of several dtypes are
    one for each dtype, and one may fail where another is done. out: arrays that share no memory with
    each other, nor with another position's array. Otherwise as `allreduce`.
    """
    handle = grouped_allreduce_async(
        arrays,
        op,
        name,
        out,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )
    results: list[Array] = handle.wait()
    return results


def _broadcast_call(
    engine: Engine, array: Any, root_rank: int, name: str | None, out: Array | None, process_set: ProcessSet
) -> Call:
    source = arguments.source(array)
    target = arguments.target(source, out, array=array)
    return Call(
        abi.BROADCAST,
        (target if target is array else source,),
        (target,),
        dtype=DTYPES.moved(source.dtype),
        root=arguments.root(root_rank, engine.topology[1]),
        name=name,
        process_set=number_of(engine, process_set),
    )


def broadcast(
    array: Any,
    root_rank: int,
    name: str | None = None,
    out: Array | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The root's array, on every rank.

    array: the values at the root, shape and dtype elsewhere; every fixed-size dtype, bool and complex too.
    out: where the result goes, which may be `array` itself; without it a new array.
    """
    engine = current()
    call = _broadcast_call(engine, array, root_rank, name, out, process_set)
    perform(engine, call)
    return arguments.deliver(call.outputs[0], out)


def broadcast_async(
    array: Any,
    root_rank: int,
    name: str | None = None,
    out: Array | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Like `broadcast`, but returns at once: `wait()` gives the result."""
    engine = current()
    call = _broadcast_call(engine, array, root_rank, name, out, process_set)
    return Handle([Operation(engine, call)], lambda: arguments.deliver(call.outputs[0], out))


def barrier_async(name: str | None = None, *, process_set: ProcessSet = global_process_set) -> Handle:
    """Like `barrier`, but returns at once."""
    engine = current()
    call = Call(abi.BARRIER, (), (), name=name, process_set=number_of(engine, process_set))
    return Handle([Operation(engine, call)], lambda: None)


def barrier(name: str | None = None, *, process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it."""
    barrier_async(name, process_set=process_set).wait()


def prepare_allreduce(
    array: Array,
    out: Array | None = None,
    op: int = Average,
    name: str | None = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> PreparedAllreduce:
    """An allreduce to be called many times on the same memory: `run = prepare_allreduce(a); run()`.

    array, out: C-contiguous numpy arrays, kept; without `out` the result goes to a new array. The object
    may not be called from two threads at once. Otherwise as `allreduce`.
    """
    for label, given in (("array", array), ("out", out)):
        if given is not None and (
            not isinstance(given, np.ndarray) or not given.flags.c_contiguous or not given.dtype.isnative
        ):
            raise ConfigError(
                f"prepare_allreduce keeps the memory of {label}: it must be a C-contiguous numpy array."
            )
    engine = current()
    number = number_of(engine, process_set)
    call = _allreduce_call(array, op, name, out, prescale_factor, postscale_factor, number)
    if out is not None and call.outputs[0] is not out:
        raise ConfigError("array and out overlap without being the same memory.")
    return PreparedAllreduce(engine, call)


__all__ = [
    "Handle",
    "PreparedAllreduce",
    "allreduce",
    "allreduce_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "prepare_allreduce",
]
