"""Collectives that this rank refuses in Python, before their kernels run.

The other ranks of the set may have called the same collective. So the refused one keeps its number (in a
graph: its name), and the other ranks get the reason as their error. Without that, this rank's next collective
would be paired with the refused one of the other ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._abi import mirror
from rdmacoll._calls.refusals import announce, is_announced, mark_announced
from rdmacoll._world import world
from rdmacoll.errors import ConfigError, NotInitializedError, RdmacollError
from rdmacoll.ops._names import last_name, names_used, op_name
from rdmacoll.ops._process_sets import set_number

_REFUSED = "_rdmacoll_refused"


def note_refused(error: BaseException, name: str | None) -> None:
    """Notes in `error` an operation of a group that it refused before the operation was built."""
    setattr(error, _REFUSED, (name,))


def announce_empty_group(kind: str, name: str | None) -> None:
    """Announces a group without tensors, which takes its number or name, too. Ranks with tensors hear why
    they get no result."""
    if world.is_initialized():
        empty = ConfigError("the group has no tensors: give the same number of tensors on all ranks.")
        announce(world.current(), mirror.KINDS[kind], [op_name(name) or None], set_number(), empty)


def announce_refusal(
    function: Callable[..., Any], before: int, error: Exception, args: Any, kwargs: Any
) -> None:
    """Announces the operations that the call has refused by `error`, unless the engine has done so.

    before: `names_used()` before the call.
    """
    if is_announced(error) or isinstance(error, NotInitializedError) or not world.is_initialized():
        return
    refused: Sequence[str | None] = getattr(error, _REFUSED, ())
    try:
        number = set_number()
        if names_used() == before and not refused:
            refused = _names_of_call(function, args, kwargs)
        # The kernel has seen the last operation, unless TensorFlow refused it before.
        is_unseen = names_used() > before and not refused and not isinstance(error, RdmacollError)
        names = [last_name()] if is_unseen else []
        names += [op_name(name) for name in refused]
    except (ConfigError, TypeError):
        pass  # no process set, no name, or no such argument: nothing that other ranks could wait for
    else:
        kind = mirror.KINDS[_kind_name(function)]
        announce(world.current(), kind, [name or None for name in names], number, error)
    mark_announced(error)


def _kind_name(function: Callable[..., Any]) -> str:
    name = function.__name__.removeprefix("grouped_")
    return name.removesuffix("_variables").removesuffix("_global").removesuffix("_")


def _names_of_call(function: Callable[..., Any], args: Any, kwargs: Any) -> list[str | None]:
    """The names of the operations with which the call would have begun."""
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    name = arguments.get("name")
    if not isinstance(arguments.get("tensor"), tf.IndexedSlices) or arguments.get("sparse_as_dense") is True:
        return [name]
    names: list[str | None] = [None, None] if name is None else [f"{name}/indices", f"{name}/values"]
    # Eager operations run one by one, so the other ranks get no further than the refused one.
    return names[:1] if tf.executing_eagerly() else names
