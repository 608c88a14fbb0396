"""reduce: the root gets the reduction of all ranks' tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.operators import OPERATOR_CODES, ReduceOp, check_reducible
from rdmacoll.ops._arguments import (
    bits,
    check_root,
    reduction,
    scales,
    tensor as as_tensor,
)
from rdmacoll.ops._gradients import extrema_gradients, is_linear, scaled_as_op, with_zeros
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops
from rdmacoll.ops._names import op_name
from rdmacoll.ops._op_calls import send_group
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_in_set_of_op, set_number
from rdmacoll.ops._typed_errors import typed_errors
from rdmacoll.ops.compression import compressor


@not_converted
@takes_process_set
def reduce(
    tensor: Any,
    root_rank: int,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
) -> Any:
    """Returns the reduction of all ranks' tensors at rank `root_rank`. Elsewhere it returns zeros of that
    shape.

    tensor, op, name, scales, compression, errors: as for `allreduce`.

    The gradient of Sum and Average is the root's, sent to every rank. With Min and Max it goes to the ranks
    whose element is the result, which share evenly. Product has no gradient. The gradient runs on all ranks
    or on none. So let every rank's loss depend on the result, which costs nothing where it is zeros.
    """
    value = as_tensor(tensor)
    reduce_op = reduction(op)
    compressed = compressor(compression)
    dtype = compressed.wire_dtype(value.dtype)
    check_reducible(dtype.name, reduce_op)
    prescale, postscale = scales(dtype, prescale_factor, postscale_factor)
    wire, prescale = compressed.packed([value], prescale)
    root = check_root(root_rank)
    functions = ops()
    with op_scope(), typed_errors():
        results = functions.rdmacoll_reduce(
            tensors=wire,
            op=OPERATOR_CODES[reduce_op],
            root_rank=root,
            prescale_bits=bits(prescale),
            postscale_bits=bits(postscale),
            tensor_name=op_name(name),
            process_set=set_number(),
        )
    return compressed.unpacked(must_run(list(results)), [value])[0]


@tf.RegisterGradient("RdmacollReduce")
@gradient_in_set_of_op
def _gradient(op: Any, *grads: Any) -> list[Any]:
    root = op.get_attr("root_rank")
    incoming = with_zeros(grads, op.outputs)
    if is_linear(op, "reduce"):
        return scaled_as_op(op, send_group(incoming, root_rank=root, name=None))
    sent = send_group([*incoming, *op.outputs], root_rank=root, name=None)
    return extrema_gradients(op, sent[len(incoming) :], sent[: len(incoming)])
