"""allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import ReduceOp
from rdmacoll.ops._arguments import (
    bits,
    check_compression,
    check_reducible,
    in_groups,
    reduction,
    scales,
    tensor as as_tensor,
)
from rdmacoll.ops._gradients import filled, scales_of
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops, typed_errors
from rdmacoll.ops._names import op_name
from rdmacoll.ops.allgather import allgather_one


@not_converted
def allreduce(
    tensor: Any,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
) -> Any:
    """Reduces `tensor` over all ranks; the same shape and dtype, and the same bits on every rank.

    tensor: a tensor, or what becomes one, of any shape up to 8 dimensions; equal shape, dtype and `op`
    on all ranks; uint8, int8, int32, int64, float16, bfloat16, float32 or float64. Also a
    `tf.IndexedSlices` (Sum and Average): its rows are gathered, so ranks may have different numbers.
    op: Average (floats only), Sum, Min, Max or Product. name: equal on all ranks, one in flight at a
    time; without it ops are matched by their order (eager) or place in the graph (tf.function).
    Inputs are multiplied by `prescale_factor` first, the result by `postscale_factor` last.

    The gradient of Sum and Average is the allreduce of the gradient with the same op; of Min and Max
    the sum goes to the elements that are the result, shared evenly; Product has none.

    Raises ConfigError, MismatchError, DuplicateNameError, RankFailedError, StalledError, ShutdownError;
    in a graph TensorFlow's classes (`rdmacoll.error_from` gives the typed one).
    """
    check_compression(compression)
    if isinstance(tensor, tf.IndexedSlices):
        return _reduce_slices(tensor, reduction(op), name, prescale_factor, postscale_factor)
    return reduce_group(
        [as_tensor(tensor)],
        op=reduction(op),
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )[0]


@not_converted
def grouped_allreduce(
    tensors: Sequence[Any],
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
) -> list[Any]:
    """`allreduce` of several tensors as one operation for each dtype: cheaper than one by one.

    Shapes, dtypes, gradients and errors as `allreduce`; the list must be the same on all ranks.
    """
    check_compression(compression)
    return in_groups(
        [as_tensor(value) for value in tensors],
        name,
        lambda inputs, name: reduce_group(
            inputs,
            op=reduction(op),
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        ),
    )


def reduce_group(
    tensors: Sequence[Any],
    *,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    labels: Sequence[str] = (),
    manifest: str = "",
) -> list[Any]:
    """One op for tensors of one dtype. `labels` name the tensors in messages; `manifest` describes the
    list that they are the first part of, and has to be equal on all ranks."""
    check_reducible(tensors[0].dtype, op)
    prescale, postscale = scales(tensors[0].dtype, prescale_factor, postscale_factor)
    functions = ops()
    with op_scope(), typed_errors():
        results = list(
            functions.rdmacoll_allreduce(
                tensors=tensors,
                op=int(op),
                prescale_bits=bits(prescale),
                postscale_bits=bits(postscale),
                tensor_name=op_name(name),
                labels=list(labels),
                manifest=manifest,
            )
        )
    return must_run(results)


def _reduce_slices(
    slices: Any, op: ReduceOp, name: str | None, prescale_factor: float, postscale_factor: float
) -> Any:
    if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ConfigError(
            f"op={op} of tf.IndexedSlices: only Sum and Average are defined for sparse tensors. Use "
            "tf.convert_to_tensor() first."
        )
    check_reducible(slices.values.dtype, op)
    prescale_factor, postscale_factor = scales(slices.values.dtype, prescale_factor, postscale_factor)
    values = slices.values if prescale_factor == 1.0 else slices.values * prescale_factor
    values = allgather_one(values, name=None if name is None else f"{name}.values")
    indices = allgather_one(slices.indices, name=None if name is None else f"{name}.indices")
    if op is ReduceOp.AVERAGE:
        values = values / world.size()
    if postscale_factor != 1.0:
        values = values * postscale_factor
    return tf.IndexedSlices(values, indices, slices.dense_shape)


@tf.RegisterGradient("RdmacollAllreduce")
def _gradient(op: Any, *grads: Any) -> list[Any]:
    reduce_op = ReduceOp(op.get_attr("op"))
    incoming = filled(grads, op.outputs)
    if reduce_op in (ReduceOp.SUM, ReduceOp.AVERAGE):
        prescale, postscale = scales_of(op)
        return reduce_group(
            incoming,
            op=reduce_op,
            name=None,
            prescale_factor=prescale,
            postscale_factor=postscale,
        )
    if reduce_op is ReduceOp.PRODUCT:
        raise ConfigError(
            "allreduce with op=Product has no gradient: use Sum of logarithms, or tf.stop_gradient()."
        )
    return _extremum_gradient(op, incoming)


def _extremum_gradient(op: Any, incoming: list[Any]) -> list[Any]:
    prescale, postscale = scales_of(op)
    if prescale != 1.0 or postscale != 1.0:
        raise ConfigError("allreduce with op=Min or Max and scaling has no gradient: scale outside.")
    hits = [
        tf.cast(tf.equal(mine, best), grad.dtype) for mine, best, grad in zip(op.inputs, op.outputs, incoming)
    ]
    sums = reduce_group(incoming, op=ReduceOp.SUM, name=None)
    ties = reduce_group(hits, op=ReduceOp.SUM, name=None)
    return [total * hit / tf.maximum(tie, tf.ones_like(tie)) for total, hit, tie in zip(sums, hits, ties)]
