"""reducescatter: every rank gets its rows of the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.operators import ReduceOp, check_reducible
from rdmacoll.ops._arguments import (
    check_has_rows,
    in_groups,
    reduction,
    scales,
    tensor as as_tensor,
)
from rdmacoll.ops._gradient_kind import has_horovod_gradient
from rdmacoll.ops._gradients import (
    as_shaped,
    extrema_gradients,
    is_linear,
    operator_of,
    scaled_as_op,
    scales_of,
    with_zeros,
)
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._op_calls import allgather_group, reductions_of
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_of_same_kind
from rdmacoll.ops._run_time import size_as
from rdmacoll.ops.compression import compressor


@not_converted
@takes_process_set
def reducescatter(
    tensor: Any,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
) -> Any:
    """Returns this rank's rows of the reduction of all ranks' tensors.

    tensor: of one dimension or more, the same shape on all ranks. It is cut along the first dimension. If the
    rows do not divide evenly, the first ranks get one more. Dtypes, `op`, `name`, scales, compression and
    errors are as for `allreduce`.

    The gradient of Sum and Average gathers the ranks' gradients. With Min and Max these go to the ranks whose
    element is the result, which share evenly. Product has no gradient.
    """
    return grouped_reducescatter([tensor], op, name, prescale_factor, postscale_factor, compression)[0]


@not_converted
@takes_process_set
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
) -> list[Any]:
    """`reducescatter` of several tensors as one operation for each dtype: cheaper than one by one."""
    compressed = compressor(compression)
    reduce_op = reduction(op)

    def check(inputs: list[Any]) -> None:
        dtype = compressed.wire_dtype(inputs[0].dtype)
        check_reducible(dtype.name, reduce_op)
        scales(dtype, prescale_factor, postscale_factor)
        for value in inputs:
            check_has_rows(value, "reducescatter")

    return in_groups(
        "reducescatter",
        [as_tensor(value) for value in tensors],
        name,
        check,
        lambda inputs, name, group: reductions_of(
            "rdmacoll_reducescatter",
            inputs,
            group=group,
            op=reduce_op,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compressed,
        ),
    )


def _scaled_as_horovod(op: Any, values: Sequence[Any]) -> list[Any]:
    """`values` with the factors of the op, and a sum's times the number of ranks."""
    prescale, postscale = scales_of(op)
    factor = prescale * postscale
    if operator_of(op) is ReduceOp.SUM:
        factor = factor * size_as(tf.float64)
    elif factor == 1.0:
        return list(values)
    return [value * tf.cast(factor, value.dtype) for value in values]


@tf.RegisterGradient("RdmacollReducescatter")
@gradient_of_same_kind
def _gradient(op: Any, *grads: Any) -> list[Any]:
    incoming = with_zeros(grads, op.outputs)
    if has_horovod_gradient(op):
        gradients = allgather_group(_scaled_as_horovod(op, incoming), name=None)
    elif is_linear(op, "reducescatter"):
        gradients = scaled_as_op(op, allgather_group(incoming, name=None))
    else:
        gathered = allgather_group([*incoming, *op.outputs], name=None)
        gradients = extrema_gradients(op, gathered[len(incoming) :], gathered[: len(incoming)])
    return [as_shaped(gradient, value) for gradient, value in zip(gradients, op.inputs)]
