"""allgather: every rank gets all ranks' tensors, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.operators import ReduceOp
from rdmacoll.ops._arguments import check_movable, in_groups, rows_of, tensor as as_tensor
from rdmacoll.ops._gradient_kind import has_horovod_gradient
from rdmacoll.ops._gradients import with_zeros
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._op_calls import allgather_group, allgather_one, reduce_group
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import current_set, gradient_of_same_kind
from rdmacoll.ops._run_time import own_rank


@not_converted
@takes_process_set
def allgather(tensor: Any, name: str | None = None) -> Any:
    """Concatenates all ranks' tensors along the first dimension, in rank order.

    tensor: the first dimension may differ between ranks, and be 0. The other dimensions and the dtype are
    equal. It may have every fixed-size dtype: uint8/16/32/64, int8/16/32/64, float16, bfloat16, float32,
    float64, bool, complex64, complex128. A scalar gives a vector of one element for each rank.

    The gradient (of floats; complex has none) is this rank's rows of the sum of all ranks' gradients.
    `name` and errors as for `allreduce`.
    """
    return allgather_one(as_tensor(tensor), name=name)


@not_converted
@takes_process_set
def grouped_allgather(tensors: Sequence[Any], name: str | None = None) -> list[Any]:
    """`allgather` of several tensors as one operation for each dtype: cheaper than one by one."""
    inputs = [as_tensor(value) for value in tensors]
    return in_groups(
        "allgather",
        inputs,
        name,
        lambda inputs: check_movable(inputs[0].dtype),
        lambda inputs, name, group: allgather_group(inputs, name=name, group=group),
    )


@tf.RegisterGradient("RdmacollAllgather")
@gradient_of_same_kind
def _gradient(op: Any, *grads: Any) -> list[Any]:
    if not op.inputs[0].dtype.is_floating:
        return [None] * len(op.inputs)
    reduce_op = ReduceOp.AVERAGE if has_horovod_gradient(op) else ReduceOp.SUM
    totals = reduce_group(with_zeros(grads, op.outputs), op=reduce_op, name=None)
    rows = tf.stack([rows_of(source) for source in op.inputs])
    counts = allgather_one(rows[None], name=None)  # by rank and tensor
    begins = tf.reduce_sum(counts[: own_rank(current_set())], axis=0)
    return [
        tf.reshape(total[begins[i] : begins[i] + rows[i]], tf.shape(source))
        for i, (total, source) in enumerate(zip(totals, op.inputs))
    ]
