"""The process set that ops are built for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Callable

from rdmacoll._world import world
from rdmacoll.engine.process_sets import process_sets
from rdmacoll.ops._gradient_kind import has_horovod_gradient, horovod_gradients
from rdmacoll.process_set import ProcessSet, global_process_set, number_of

_CURRENT: ContextVar[ProcessSet] = ContextVar("rdmacoll process set", default=global_process_set)


@contextlib.contextmanager
def in_process_set(process_set: ProcessSet) -> Iterator[None]:
    """Builds ops inside of the context for this set. Raises ConfigError if the set is not added."""
    number_of(world.current(), process_set)
    token = _CURRENT.set(process_set)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def in_set_of(op: Any) -> contextlib.AbstractContextManager[None]:
    """Like `in_process_set`, for the set of an existing op."""
    return in_process_set(process_sets()[op.get_attr("process_set")])


def current_set() -> ProcessSet:
    """The set that ops are built for now."""
    return _CURRENT.get()


def set_number() -> int:
    """The number of the current set, which is the ops' attribute."""
    return number_of(world.current(), current_set())


def gradient_in_set_of_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a gradient: the ops that it builds are for the process set of the op."""

    @functools.wraps(function)
    def wrapper(op: Any, *grads: Any) -> Any:
        with in_set_of(op):
            return function(op, *grads)

    return wrapper


def gradient_of_same_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `gradient_in_set_of_op`. If the op's gradient is Horovod's, so are those of the ops in it."""

    @functools.wraps(function)
    def wrapper(op: Any, *grads: Any) -> Any:
        with in_set_of(op), horovod_gradients(are_used=has_horovod_gradient(op)):
            return function(op, *grads)

    return wrapper
