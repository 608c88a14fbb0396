"""The variables that a broadcast has made equal on all ranks, and the fingerprints of their values then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from rdmacoll._abi.arguments import Array
from rdmacoll.ops._updates import fingerprint

_NAME, _SENT = "_rdmacoll_baseline", "_rdmacoll_is_sent"  # attributes of the `tf.Variable`
_NUMERIC = "biufcV"  # numpy's kinds; V: bfloat16 and its like
UNCHANGED, CHANGED, UNKNOWN = 0, 1, 2
_LISTENERS: list[Callable[[Sequence[Any]], None]] = []


def tf_variable(variable: Any) -> Any:
    """The `tf.Variable` of a Keras 3 variable; others as they are."""
    value = getattr(variable, "value", None)
    return variable if value is None or callable(value) else value


def is_numeric(variable: Any) -> bool:
    """Whether its values are numbers or booleans."""
    return np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype).kind in _NUMERIC


def read(variable: Any) -> Array:
    """The value of a `tf.Variable`, without a copy if possible: nobody assigns to it meanwhile."""
    if isinstance(variable, BaseResourceVariable):  # faster than read_value() (measured)
        tensor = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    else:
        tensor = variable.read_value()
    # EagerTensor.numpy() would copy this value.
    alias = getattr(tensor, "_numpy", None)
    return np.asarray(tensor.numpy() if alias is None else alias())


def fingerprint_of(value: Array) -> int:
    """A 64-bit number for the bytes of an array."""
    return fingerprint(np.ascontiguousarray(value))


def record_baselines(variables: Iterable[Any]) -> None:
    """Records the values that a broadcast has just given to these variables."""
    for variable in variables:
        one = tf_variable(variable)
        if hasattr(one, "read_value") and is_numeric(one):
            setattr(one, _NAME, fingerprint_of(read(one)))


def on_broadcast(listener: Callable[[Sequence[Any]], None]) -> None:
    """Calls `listener` with the variables of each later broadcast, or of its trace."""
    _LISTENERS.append(listener)


def note_broadcast(variables: Sequence[Any]) -> None:
    """Records that a broadcast makes these variables equal on all ranks, now or when a trace of it runs."""
    for variable in variables:
        setattr(tf_variable(variable), _SENT, True)
    for listener in _LISTENERS:
        listener(variables)


def is_sent(variable: Any) -> bool:
    """Whether a broadcast has this variable, or a trace has such a broadcast."""
    return hasattr(tf_variable(variable), _SENT)


def has_baseline(variable: Any) -> bool:
    """Whether a broadcast has made the variable equal on all ranks."""
    return hasattr(tf_variable(variable), _NAME)


def change_of(variable: Any, now: int) -> int:
    """Whether a `tf.Variable`, whose fingerprint is `now`, has changed since its last broadcast. If it was
    never broadcast, the first call returns UNKNOWN, and later calls compare with that one."""
    then = getattr(variable, _NAME, None)
    if then is None:
        setattr(variable, _NAME, now)
        return UNKNOWN
    return UNCHANGED if then == now else CHANGED
