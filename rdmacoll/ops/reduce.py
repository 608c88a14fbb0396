"""reduce: the root gets the reduction of all ranks' tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.engine.operators import ReduceOp
from rdmacoll.ops._arguments import (
    bits,
    check_reducible,
    check_root,
    reduction,
    scales,
    tensor as as_tensor,
)
from rdmacoll.ops._gradients import check_linear, filled, treated_alike
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops, typed_errors
from rdmacoll.ops._names import op_name
from rdmacoll.ops._process_sets import gradient_of_its_set, set_number, takes_process_set
from rdmacoll.ops.broadcast import send_group


@not_converted
@takes_process_set
def reduce(
    tensor: Any,
    root_rank: int,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """At rank `root_rank` the reduction of all ranks' tensors; elsewhere zeros of that shape.

    tensor, op, name, scales, errors: as for `allreduce`. The gradient of Sum and Average is the root's,
    sent to every rank; Min, Max and Product have none. It runs on all ranks or none: let every rank's loss
    depend on the result, which costs nothing where that is zeros.
    """
    value = as_tensor(tensor)
    reduce_op = reduction(op)
    check_reducible(value.dtype, reduce_op)
    prescale, postscale = scales(value.dtype, prescale_factor, postscale_factor)
    root = check_root(root_rank)
    functions = ops()
    with op_scope(), typed_errors():
        results = functions.rdmacoll_reduce(
            tensors=[value],
            op=int(reduce_op),
            root_rank=root,
            prescale_bits=bits(prescale),
            postscale_bits=bits(postscale),
            tensor_name=op_name(name),
            process_set=set_number(),
        )
    return must_run(list(results))[0]


@tf.RegisterGradient("RdmacollReduce")
@gradient_of_its_set
def _gradient(op: Any, *grads: Any) -> list[Any]:
    check_linear(op, "reduce")
    root = op.get_attr("root_rank")
    return treated_alike(op, send_group(filled(grads, op.outputs), root_rank=root, name=None))
