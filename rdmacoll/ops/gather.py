"""gather: the root gets all ranks' tensors, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.ops._arguments import rows_of, tensor as as_tensor
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._op_calls import gather_one, scatter_one
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_in_set_of_op


@not_converted
@takes_process_set
def gather(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns all ranks' tensors at rank `root_rank`, one after the other along the first dimension, in rank
    order. Elsewhere it returns a tensor without rows.

    tensor, name, errors: as for `allgather`. The gradient (of floats) scatters the root's gradient. It runs
    on all ranks or on none. So let every rank's loss depend on the result, which costs nothing where it is
    empty.
    """
    return gather_one(as_tensor(tensor), root_rank, name)


@tf.RegisterGradient("RdmacollGather")
@gradient_in_set_of_op
def _gradient(op: Any, *grads: Sequence[Any]) -> Any:
    (source,) = op.inputs
    if not source.dtype.is_floating:
        return None
    root = op.get_attr("root_rank")
    counts = gather_one(rows_of(source), root, None)
    rows = scatter_one(tf.convert_to_tensor(grads[0]), root, counts, None)
    return tf.reshape(rows, tf.shape(source))
