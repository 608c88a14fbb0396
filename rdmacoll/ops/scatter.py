"""scatter: every rank gets its rows of the root's tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.ops._arguments import as_splits, check_has_rows, tensor as as_tensor
from rdmacoll.ops._gradients import as_shaped, dependent_zeros
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._op_calls import gather_one, scatter_one
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_in_set_of_op
from rdmacoll.ops._run_time import own_rank
from rdmacoll.process_set import global_process_set


@not_converted
@takes_process_set
def scatter(tensor: Any, root_rank: int, splits: Any = None, name: str | None = None) -> Any:
    """Returns this rank's rows of rank `root_rank`'s tensor.

    tensor: of one dimension or more. At other ranks only its dtype and the shape of a row count.
    splits, read at the root: the number of rows for each rank. Without splits all ranks get equal parts. If
    the rows do not divide evenly, the first ranks get one more. Dtypes, `name` and errors as for `allgather`.

    The gradient (of floats) gathers all ranks' gradients at the root. Elsewhere it is zero.
    """
    value = as_tensor(tensor)
    check_has_rows(value, "scatter")
    return scatter_one(value, root_rank, as_splits(splits), name)


@tf.RegisterGradient("RdmacollScatter")
@gradient_in_set_of_op
def _gradient(op: Any, *grads: Sequence[Any]) -> Any:
    source = op.inputs[0]
    if not source.dtype.is_floating:
        return None, None
    root = op.get_attr("root_rank")
    gathered = gather_one(tf.convert_to_tensor(grads[0]), root, None)
    is_root = own_rank(global_process_set) == root

    def of_root() -> Any:
        return as_shaped(gathered, source)

    def of_others() -> Any:
        return tf.zeros_like(source) + dependent_zeros(tf.reduce_sum(gathered))

    if tf.is_tensor(is_root):
        return tf.cond(is_root, of_root, of_others), None
    return (of_root() if is_root else of_others()), None
