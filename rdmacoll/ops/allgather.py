"""allgather: every rank gets all ranks' tensors, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.engine.operators import ReduceOp
from rdmacoll.ops._arguments import check_movable, tensor as as_tensor
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops, typed_errors
from rdmacoll.ops._names import op_name


@not_converted
def allgather(tensor: Any, name: str | None = None) -> Any:
    """Concatenates all ranks' tensors along the first dimension, in rank order.

    tensor: the first dimension may differ between ranks, and be 0; the others and the dtype are equal.
    Every fixed-size dtype: uint8/16/32/64, int8/16/32/64, float16, bfloat16, float32, float64, bool,
    complex64, complex128. A scalar gives a vector of one element for each rank.

    The gradient (of floats; complex has none) is this rank's rows of the sum of all ranks' gradients.
    `name` and errors as for `allreduce`.
    """
    return gather(as_tensor(tensor), name=name)


def gather(tensor: Any, *, name: str | None, label: str = "") -> Any:
    """`allgather` of a tensor, which `label` names in messages."""
    check_movable(tensor.dtype)
    functions = ops()
    with op_scope(), typed_errors():
        gathered = functions.rdmacoll_allgather(
            tensor=tensor,
            tensor_name=op_name(name),
            labels=[label] if label else [],
        )
    return must_run([gathered])[0]


@tf.RegisterGradient("RdmacollAllgather")
def _gradient(op: Any, *grads: Sequence[Any]) -> Any:
    from rdmacoll.ops.allreduce import reduce_group

    (mine,) = op.inputs
    if not mine.dtype.is_floating:
        return None
    incoming = tf.convert_to_tensor(grads[0])
    (total,) = reduce_group([incoming], op=ReduceOp.SUM, name=None)
    if mine.shape.rank == 0:
        return total[world.rank()]
    rows = tf.shape(mine, out_type=tf.int64)[0]
    counts = gather(rows, name=None)
    begin = tf.reduce_sum(counts[: world.rank()])
    return tf.reshape(total[begin : begin + rows], tf.shape(mine))
