"""Reduces gradients that travel incompletely. The part of a gradient that this rank has not sent is its
residual, which is added to the next gradient of the same variable.

A residual is a child of its variable in checkpoints of TensorFlow (`tf.train.Checkpoint`), also of that of a
model or an optimizer that has the variable. Residuals differ between ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll import ops
from rdmacoll.errors import ConfigError
from rdmacoll.operators import ReduceOp
from rdmacoll.ops._names import replica_count
from rdmacoll.ops._run_time import fixed_size
from rdmacoll.ops.compression import LossyCompressor
from rdmacoll.optimizer.accumulation import local_variable
from rdmacoll.optimizer.registry import plain_variable

_CHILD = "rdmacoll_residual"
_Trackable: Any = tf.__internal__.tracking.Trackable


class Residual(tf.__internal__.tracking.AutoTrackable):  # type: ignore[misc]
    """The residual of one variable. Files that serve a model do not have it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        if save_type == "savedmodel":
            return {}
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        return children


def check(compression: LossyCompressor, op_name: str) -> None:
    """Raises ConfigError for an operator that is no sum."""
    if op_name not in ("Sum", "Average"):
        raise ConfigError(
            f"{compression!r} needs op=Sum or op=Average, and op={op_name} was given: it sends a gradient in "
            "parts, which must be added."
        )


def reduced(
    compression: LossyCompressor,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    op: ReduceOp,
    factors: tuple[float, float],
    name: str,
    loss_scale: Any = 1.0,
) -> list[Any]:
    """The sums or averages of dense gradients over the ranks, with the same bits on all of them. factors: of
    the gradients and of the results. loss_scale: the factor of the loss, which may change between steps, so
    residuals do not have it. A gradient with an element that is not finite becomes NaN, and then all
    residuals of all ranks stay as they are. Raises ConfigError for gradients of anything else than
    variables."""
    if replica_count() > 1:
        raise ConfigError(f"{compression!r} needs ranks with one replica: start a rank for each replica.")
    prescale, postscale = factors
    ranks = fixed_size(repr(compression))
    residuals = [
        _residual_of(variable, gradient, compression) for variable, gradient in zip(variables, gradients)
    ]
    messages, remainders = [], []
    for gradient, residual in zip(gradients, residuals):
        vector = tf.reshape(tf.cast(gradient, residual.dtype), (residual.shape[0],))
        old = residual.read_value()
        vector = vector * _factor(prescale, residual, 1 / loss_scale) + old
        is_finite = tf.reduce_all(tf.math.is_finite(vector))
        message = compression.message(tf.where(is_finite, vector, math.nan))
        remainders.append((old, vector - compression.added(tf.zeros_like(vector), message)))
        messages.append(message)
    rows = iter(ops.grouped_allgather([part for message in messages for part in message], name=name))
    totals = []
    for residual, message in zip(residuals, messages):
        parts = [tf.reshape(next(rows), (ranks, *part.shape)) for part in message]
        total = tf.zeros_like(residual)
        for rank in range(ranks):
            total = compression.added(total, [part[rank] for part in parts])
        totals.append(total)
    # Only now, since a step that fails, or that loss scaling leaves out, has sent nothing.
    are_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in totals])
    updates = [
        residual.assign(tf.where(are_finite, new, old)) for residual, (old, new) in zip(residuals, remainders)
    ]
    results = []
    with tf.control_dependencies([tf.identity(one) for one in updates]):
        for gradient, residual, total in zip(gradients, residuals, totals):
            factor = _factor(postscale / (ranks if op is ReduceOp.AVERAGE else 1), residual, loss_scale)
            results.append(tf.reshape(tf.cast(total * factor, gradient.dtype), tf.shape(gradient)))
    return results


def _factor(factor: float, residual: Any, scale: Any) -> Any:
    return factor * scale if isinstance(scale, (int, float)) else factor * tf.cast(scale, residual.dtype)


def residual_of(variable: Any) -> Any:
    """This rank's residual of a variable, as a variable with one dimension; None if it has none yet."""
    plain = plain_variable(variable)
    found = plain._trackable_children().get(_CHILD) if isinstance(plain, tf.Variable) else None
    return None if found is None else found.value


def set_residual(variable: Any, value: Any) -> None:
    """Gives a variable this residual."""
    _made(variable, tf.as_dtype(value.dtype)).assign(value)


def save_with_keras_3(optimizer: Any) -> None:
    """Makes Keras 3 save residuals with this optimizer, and load them."""
    from rdmacoll.optimizer.residual_files import SavedResiduals

    object.__setattr__(optimizer, "_rdmacoll_residuals", SavedResiduals(optimizer))


def _residual_of(variable: Any, gradient: Any, compression: LossyCompressor) -> Any:
    """Like `residual_of`, but makes a missing one. Raises ConfigError."""
    if not isinstance(plain_variable(variable), tf.Variable) or not gradient.dtype.is_floating:
        raise ConfigError(
            f"{compression!r} cannot compress the gradient of {getattr(variable, 'name', 'a tensor')} "
            f"({gradient.dtype.name}): it keeps residuals, and only for variables of floats."
        )
    return _made(variable, tf.float64 if gradient.dtype == tf.float64 else tf.float32)


def _made(variable: Any, dtype: Any) -> Any:
    plain = plain_variable(variable)
    found = plain._trackable_children().get(_CHILD)
    with tf.init_scope():
        if found is None:
            size = math.prod(plain.shape.as_list())
            found = Residual(local_variable(tf.zeros((size,), dtype), "residual"))
        # A variable of Keras 3 is an object of its own in a checkpoint.
        for one in (plain, variable):
            if isinstance(one, _Trackable) and _CHILD not in one._trackable_children():
                one._track_trackable(found, _CHILD)
    return found.value
