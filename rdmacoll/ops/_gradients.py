"""Functions that the gradients of several ops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.operators import OPERATORS, ReduceOp
from rdmacoll.ops._arguments import from_bits
from rdmacoll.ops._op_calls import reduce_group
from rdmacoll.ops._run_time import size_as


def as_shaped(gradient: Any, source: Any) -> Any:
    """The gradient, with what is known of its source's shape. TensorFlow ensures no shape of unknown rank."""
    return gradient if source.shape.rank is None else tf.ensure_shape(gradient, source.shape)


def with_zeros(grads: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """The incoming gradients as the outputs' dtypes, with zeros for missing ones: every rank has to send
    something. Programs may give `output_gradients` of another dtype."""
    return [
        tf.zeros_like(output) if grad is None else _as_dtype(tf.convert_to_tensor(grad), output.dtype)
        for grad, output in zip(grads, outputs)
    ]


def _as_dtype(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else tf.cast(value, dtype)


def scales_of(op: Any) -> tuple[float, float]:
    """The two factors of an op that reduces."""
    return from_bits(op.get_attr("prescale_bits")), from_bits(op.get_attr("postscale_bits"))


def operator_of(op: Any) -> ReduceOp:
    """The operator of an op that reduces."""
    return OPERATORS[op.get_attr("op")]


def is_linear(op: Any, kind: str) -> bool:
    """Whether the reduction is Sum or Average; otherwise it is Min or Max. Raises ConfigError if it has no
    gradient."""
    reduce_op = operator_of(op)
    if reduce_op is ReduceOp.PRODUCT:
        raise ConfigError(
            f"{kind} with op=Product has no gradient: use Sum of logarithms, or tf.stop_gradient()."
        )
    if reduce_op in (ReduceOp.SUM, ReduceOp.AVERAGE):
        return True
    if scales_of(op) != (1.0, 1.0):
        raise ConfigError(f"{kind} with op=Min or Max and scaling has no gradient: scale outside.")
    return False


def extrema_gradients(op: Any, results: Sequence[Any], totals: Sequence[Any]) -> list[Any]:
    """The gradients of Min or Max: `totals` for the elements that are the result, zeros for the others.
    Ranks with the same element share evenly, as in tf.reduce_max. totals: the sums of all ranks' gradients
    of `results`."""
    hits = [
        tf.cast(tf.equal(value, best), total.dtype) for value, best, total in zip(op.inputs, results, totals)
    ]
    ties = reduce_group(hits, op=ReduceOp.SUM, name=None)
    return [total * hit / tf.maximum(tie, tf.ones_like(tie)) for total, hit, tie in zip(totals, hits, ties)]


def scaled_as_op(op: Any, values: Sequence[Any]) -> list[Any]:
    """`values` scaled and divided as the op does it with a sum."""
    prescale, postscale = scales_of(op)
    if prescale * postscale != 1.0:
        values = [value * tf.cast(prescale * postscale, value.dtype) for value in values]
    if operator_of(op) is ReduceOp.AVERAGE:
        values = [value / size_as(value.dtype) for value in values]
    return list(values)


def dependent_zeros(value: Any) -> Any:
    """Zeros that TensorFlow's optimizer does not recognise as constant. With constant zeros it would drop
    the op of `value` from this rank's graph, and the other ranks would wait for that op."""
    zeros = tf.zeros_like(value)
    return tf.where(tf.math.is_nan(value), zeros, tf.minimum(tf.abs(value), zeros))
