"""allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.operators import ReduceOp, check_reducible
from rdmacoll.ops import _own_reductions as own_reductions
from rdmacoll.ops._arguments import (
    in_groups,
    reduction,
    scales,
    sparse_as_dense as checked_sparse_as_dense,
    tensor as as_tensor,
)
from rdmacoll.ops._gradient_kind import has_horovod_gradient
from rdmacoll.ops._gradients import extrema_gradients, is_linear, operator_of, scales_of, with_zeros
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._op_calls import reduce_group
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import gradient_of_same_kind
from rdmacoll.ops.compression import compressor
from rdmacoll.ops.sparse import reduce_slices


@not_converted
@takes_process_set
def allreduce(
    tensor: Any,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
    *,
    sparse_as_dense: bool | str = False,
) -> Any:
    """Reduces `tensor` over all ranks. The result has the same shape and dtype, and the same bits on every
    rank.

    tensor: a value that becomes a tensor, of up to 8 dimensions. Shape, dtype and `op` are equal on all
    ranks. Dtypes: integers of 8 to 64 bits, float16, bfloat16, float32 or float64; complex with Sum and
    Average; bool with Min ("all") and Max ("any"). It may also be a `tf.IndexedSlices` (see
    `sparse_as_dense`), of which ranks may have different numbers of rows. op: Average (no integers), Sum,
    Min, Max or Product. name: equal on all ranks, one in flight at a time. Without it ops are matched by
    their order (eager) or their place in the graph (tf.function).

    prescale_factor, postscale_factor: factors of the inputs and of the result. compression:
    `Compression.fp16` or `bf16` sends float32 and float64 as 16 bits, their gradients too. sparse_as_dense:
    equal on all ranks. False gathers the rows of slices (Sum and Average), and the result is slices. True
    makes them dense, and the result is dense. "auto" gathers the rows, or sums those of one index if this
    sends less; the result is slices.

    The gradient of Sum and Average is the allreduce of the gradient with the same op. With Min and Max the
    sum of the gradients goes to the ranks whose element is the result, which share evenly. Product has no
    gradient.

    Raises ConfigError, MismatchError, DuplicateNameError, RankFailedError, StalledError, ShutdownError; in a
    graph TensorFlow's classes (`rdmacoll.error_from` gives the typed one).
    """
    options: dict[str, Any] = {
        "op": reduction(op),
        "name": name,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "compression": compressor(compression),
    }
    sparse_mode = checked_sparse_as_dense(sparse_as_dense)
    own_reductions.note([tensor], options["op"])
    if isinstance(tensor, tf.IndexedSlices) and sparse_mode is not True:
        return reduce_slices(tensor, **options, may_sum=sparse_mode == "auto")
    return reduce_group([as_tensor(tensor)], **options)[0]


@not_converted
@takes_process_set
def grouped_allreduce(
    tensors: Sequence[Any],
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = None,
) -> list[Any]:
    """`allreduce` of several tensors as one operation for each dtype: cheaper than one by one.

    Shapes, dtypes, gradients and errors as `allreduce`; the list must be the same on all ranks. A
    `tf.IndexedSlices` is made dense.
    """
    compressed = compressor(compression)
    own_reductions.note(tensors, op)

    def check(inputs: list[Any]) -> None:
        dtype = compressed.wire_dtype(inputs[0].dtype)
        check_reducible(dtype.name, reduction(op))
        scales(dtype, prescale_factor, postscale_factor)

    return in_groups(
        "allreduce",
        [as_tensor(value) for value in tensors],
        name,
        check,
        lambda inputs, name, group: reduce_group(
            inputs,
            group=group,
            op=reduction(op),
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compressed,
        ),
    )


@tf.RegisterGradient("RdmacollAllreduce")
@gradient_of_same_kind
def _gradient(op: Any, *grads: Any) -> list[Any]:
    incoming = with_zeros(grads, op.outputs)
    if has_horovod_gradient(op) or is_linear(op, "allreduce"):
        prescale, postscale = scales_of(op)
        return reduce_group(
            incoming,
            op=operator_of(op),
            name=None,
            prescale_factor=prescale,
            postscale_factor=postscale,
        )
    return extrema_gradients(op, op.outputs, reduce_group(incoming, op=ReduceOp.SUM, name=None))
