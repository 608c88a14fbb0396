"""alltoall: every rank gives each rank some of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.ops._arguments import as_splits, check_has_rows, check_movable, tensor as as_tensor
from rdmacoll.ops._gradients import as_shaped
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops
from rdmacoll.ops._names import op_name
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_in_set_of_op, set_number
from rdmacoll.ops._typed_errors import typed_errors


@not_converted
@takes_process_set
def alltoall(tensor: Any, splits: Any = None, name: str | None = None) -> Any:
    """Sends some rows of `tensor` to each rank, and returns the rows from all ranks, in rank order.

    tensor: of one dimension or more; the first may differ between ranks. splits: the number of rows for each
    rank; their sum is the first dimension. Without splits the tensor is cut into equal parts, and its rows
    must be a multiple of the number of ranks. With splits the result is a pair: the rows, and the number of
    rows from each rank (int64). Dtypes, `name` and errors as for `allgather`.

    The gradient (of floats; complex has none) sends the gradient of each row back to the row's rank.
    """
    value = as_tensor(tensor)
    check_has_rows(value, "alltoall")
    exchanged, received = _exchange(value, as_splits(splits), name)
    return exchanged if splits is None else (exchanged, received)


def _exchange(value: Any, splits: Any, name: str | None) -> list[Any]:
    check_movable(value.dtype)
    functions = ops()
    with op_scope(), typed_errors():
        results = functions.rdmacoll_alltoall(
            tensor=value, splits=splits, tensor_name=op_name(name), process_set=set_number()
        )
    return must_run(list(results))


@tf.RegisterGradient("RdmacollAlltoall")
@gradient_in_set_of_op
def _gradient(op: Any, *grads: Sequence[Any]) -> Any:
    source = op.inputs[0]
    if not source.dtype.is_floating:
        return None, None
    exchanged, received = op.outputs
    incoming = tf.zeros_like(exchanged) if grads[0] is None else tf.convert_to_tensor(grads[0])
    returned, _ = _exchange(incoming, received, None)
    return as_shaped(returned, source), None
