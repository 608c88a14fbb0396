"""The way of a call of Horovod's collectives into rdmacoll's ops."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from rdmacoll._horovod.errors import UnsupportedError
from rdmacoll.errors import ConfigError
from rdmacoll.operators import Average, ReduceOp, Sum, reduction
from rdmacoll.ops._gradient_kind import horovod_gradients
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._names import names_used
from rdmacoll.ops._process_sets import in_process_set
from rdmacoll.ops._refusals import announce_refusal
from rdmacoll.ops._typed_errors import of_both
from rdmacoll.process_set import global_process_set

# Horovod's number of Adasum, which is no operator of the engine.
Adasum = 2

_F = TypeVar("_F", bound=Callable[..., Any])


def collective(function: _F) -> _F:
    """Decorates a collective of Horovod: its ops have Horovod's gradients, and are for the process set in its
    argument `process_set`. A call that this rank refuses fails on the other ranks, too. The error is both a
    ValueError and a `tf.errors.InvalidArgumentError`. A program may change its `__defaults__`."""
    names = list(inspect.signature(function).parameters)
    place = names.index("process_set") if "process_set" in names else len(names)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if shown.__defaults__ is not function.__defaults__:
            function.__defaults__ = shown.__defaults__
        one = set_of(args, kwargs)
        with horovod_gradients():
            if one is global_process_set:
                return run(args, kwargs)
            with in_process_set(one):
                return run(args, kwargs)

    def set_of(args: Any, kwargs: Any) -> Any:
        if len(args) > place:
            return args[place]
        defaults = function.__defaults__ if place < len(names) else None
        return kwargs.get("process_set", defaults[place - len(names)] if defaults else global_process_set)

    def run(args: Any, kwargs: Any) -> Any:
        before = names_used()
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            announce_refusal(function, before, error, args, kwargs)
            if isinstance(error, (tf.errors.OpError, NotImplementedError)):
                raise
            raise of_both(error, tf.errors.InvalidArgumentError(None, None, "")) from None
        except Exception as error:
            announce_refusal(function, before, error, args, kwargs)
            raise

    shown: Any = not_converted(wrapper)
    shown.__defaults__ = function.__defaults__
    return cast(_F, shown)


def operator_of(op: Any, average: bool | None = None) -> ReduceOp:
    """The operator of the arguments `op` and `average`, the older one. Raises ValueError for both, and for
    anything else than an operator."""
    if average is not None:
        if op is not None:
            raise ConfigError(f"op={op!r} and average={average!r} exclude each other: leave `average` out.")
        return Average if average else Sum
    if op is None:
        return Average
    if op == Adasum:
        raise UnsupportedError(
            "op=Adasum works only with dense tensors, in allreduce and grouped_allreduce: use Sum."
        )
    return reduction(op)
