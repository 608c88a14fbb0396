"""Collectives that this rank refuses before their kernels have seen them.

A refused collective takes its number, or in a graph its name, all the same. The ranks of its set that call it
get the reason: else the next collective would meet the refused one of another rank.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._abi import mirror
from rdmacoll._calls.refusals import announce, is_announced, mark_announced
from rdmacoll._world import world
from rdmacoll.engine.errors import ConfigError, NotInitializedError, RdmacollError

_KINDS = {
    "allreduce": mirror.ALLREDUCE,
    "broadcast": mirror.BROADCAST,
    "allgather": mirror.ALLGATHER,
    "barrier": mirror.BARRIER,
    "reducescatter": mirror.REDUCESCATTER,
    "alltoall": mirror.ALLTOALL,
    "reduce": mirror.REDUCE,
    "gather": mirror.GATHER,
    "scatter": mirror.SCATTER,
}
_GROUP = "_rdmacoll_group"


class _Taken(threading.local):
    """How many names this thread has given to ops, and the last one."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""


_TAKEN = _Taken()


def note_taken(name: str) -> str:
    """An op is about to be built, or to run, under this name, which is returned."""
    _TAKEN.count += 1
    _TAKEN.last = name
    return name


def note_group(error: BaseException, refused: Sequence[str | None], behind: Sequence[str | None]) -> None:
    """Notes in `error` a group's operations: any that it refused before it had a name, and those behind."""
    setattr(error, _GROUP, (tuple(refused), tuple(behind)))


def taken() -> int:
    """For `tell`: before the call of a collective."""
    return _TAKEN.count


def tell(function: Callable[..., Any], before: int, error: Exception, args: Any, kwargs: Any) -> None:
    """Announces what the call has refused by `error`, unless the engine has done so."""
    if is_announced(error) or isinstance(error, NotInitializedError) or not world.is_initialized():
        return
    from rdmacoll.ops._names import op_name
    from rdmacoll.ops._process_sets import set_number

    refused: Sequence[str | None]
    refused, behind = getattr(error, _GROUP, ((), ()))
    try:
        number = set_number()
        if _TAKEN.count == before and not refused:
            every = _names_of_call(function, args, kwargs)
            refused, behind = every[:1], every[1:]
        # The kernel has seen the last one, unless TensorFlow refused it before.
        is_unseen = _TAKEN.count > before and not refused and not isinstance(error, RdmacollError)
        names = [_TAKEN.last] if is_unseen else []
        # Eager operations come one by one: the others get no further than to the refused one.
        names += [op_name(name) for name in (refused if tf.executing_eagerly() else (*refused, *behind))]
    except (ConfigError, TypeError):
        pass  # no process set, no name, or no such argument: nothing that other ranks could wait for
    else:
        kind = _KINDS[_kind_name(function)]
        announce(world.current(), kind, [name or None for name in names], number, error)
    mark_announced(error)


def _kind_name(function: Callable[..., Any]) -> str:
    name = function.__name__.removeprefix("grouped_")
    return name.removesuffix("_variables").removesuffix("_global").removesuffix("_")


def _names_of_call(function: Callable[..., Any], args: Any, kwargs: Any) -> list[str | None]:
    """One for each operation that the call would have made."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    name = given.get("name")
    if isinstance(given.get("tensor"), tf.IndexedSlices) and given.get("sparse_as_dense") is not True:
        return [None, None] if name is None else [f"{name}/indices", f"{name}/values"]
    group = given.get("tensors", given.get("variables"))
    if not isinstance(group, (list, tuple)):
        return [name]
    dtypes: dict[str, None] = {}
    for value in group:
        try:
            dtypes[tf.convert_to_tensor(value).dtype.base_dtype.name] = None
        except Exception:  # the one that was refused, perhaps
            continue
    if len(dtypes) < 2 or name is None:
        return [name] * max(1, len(dtypes))
    return [f"{name}.{dtype}" for dtype in dtypes]
