"""Horovod's collectives of `horovod.tensorflow`, with its arguments in its order.

Devices and name scopes have no effect: collectives run on the processor, and a name is the whole name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll import ops
from rdmacoll._horovod.adasum import combined, is_adasum
from rdmacoll._horovod.calls import collective, operator_of
from rdmacoll._horovod.errors import UnsupportedError
from rdmacoll._horovod.mixed import in_two_parts
from rdmacoll._horovod.scaling import reduced_by
from rdmacoll.engine import joining
from rdmacoll.operators import Average, Sum
from rdmacoll.ops import Compression, _own_reductions as own_reductions
from rdmacoll.ops._arguments import tensor as as_tensor
from rdmacoll.ops._run_time import at_run_time, size_as
from rdmacoll.ops.sparse import reduce_slices
from rdmacoll.process_set import ProcessSet, global_process_set


@collective
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over the ranks of the set: Average (the default), Sum, Min, Max, Product or
    Adasum.

    The average of integers is the sum, which wraps, divided and truncated. The sum of `tf.IndexedSlices`
    stays sparse. The gradient is the same reduction of the gradient. average: the older form of `op`.
    compression: of Compression, or a class with `compress` and `decompress`.

    Raises ValueError for `op` together with `average`, NotImplementedError for slices with other operators
    than Sum and Average or with factors, and the errors of `rdmacoll.allreduce`.
    """
    own_reductions.note([tensor], None if is_adasum(op) else op)
    if average is None and is_adasum(op) and not isinstance(tensor, tf.IndexedSlices):
        return combined([as_tensor(tensor)], (prescale_factor, postscale_factor), name)[0]
    reduce_op = operator_of(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        (total,) = _reduced_slices([tensor], reduce_op, prescale_factor, postscale_factor, name)
        return total

    def run(values: list[Any], **options: Any) -> list[Any]:
        return [ops.allreduce(values[0], name=name, **options)]

    factors = (prescale_factor, postscale_factor)
    return reduced_by(run, [as_tensor(tensor)], reduce_op, factors, compression)[0]


@collective
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """`allreduce` of several tensors as one operation for each dtype. Slices among them stay sparse."""
    if not tensors:
        return _empty(ops.grouped_allreduce, tensors, name)
    own_reductions.note(tensors, None if is_adasum(op) else op)
    if average is None and is_adasum(op) and not any(isinstance(one, tf.IndexedSlices) for one in tensors):
        values = [as_tensor(one) for one in tensors]
        return combined(values, (prescale_factor, postscale_factor), name)
    reduce_op = operator_of(op, average)

    def run(values: list[Any], **options: Any) -> list[Any]:
        return list(ops.grouped_allreduce(values, name=name, **options))

    def of_slices(slices: list[Any]) -> list[Any]:
        return _reduced_slices(slices, reduce_op, prescale_factor, postscale_factor, name)

    def of_dense(values: list[Any]) -> list[Any]:
        factors = (prescale_factor, postscale_factor)
        return reduced_by(run, [as_tensor(one) for one in values], reduce_op, factors, compression)

    return in_two_parts(tensors, [isinstance(one, tf.IndexedSlices) for one in tensors], of_slices, of_dense)


def _empty(grouped: Callable[..., Any], tensors: Sequence[Any], name: str | None = None) -> Any:
    """Returns the empty group, as Horovod does. It takes a number or its name, so that ranks with tensors
    hear why they get no result, and later operations match."""
    grouped([], name=name)
    return tensors


def _reduced_slices(
    slices: Sequence[Any], op: Any, prescale_factor: float, postscale_factor: float, name: str | None
) -> list[Any]:
    if op not in (Sum, Average):
        raise UnsupportedError(f"op={op} cannot reduce tf.IndexedSlices: use Sum or Average.")
    if (prescale_factor, postscale_factor) != (1.0, 1.0):
        raise UnsupportedError(
            "tf.IndexedSlices take no prescale_factor and no postscale_factor: scale their values."
        )
    names = [name if name is None or not place else f"{name}/{place}" for place in range(len(slices))]
    return [
        _averaged(one, title)
        if op is Average and one.values.dtype.is_integer
        else reduce_slices(one, op=op, name=title)
        for one, title in zip(slices, names)
    ]


def _averaged(slices: Any, name: str | None) -> Any:
    """The average of slices of integers, as floats: those of a division in TensorFlow."""
    total = reduce_slices(slices, op=Sum, name=name)
    return tf.IndexedSlices(total.values / size_as(total.values.dtype), total.indices, total.dense_shape)


@collective
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction. The gradient gathers the ranks' gradients with both factors, times
    the number of ranks for a sum."""

    def run(values: list[Any], **options: Any) -> list[Any]:
        return [ops.reducescatter(values[0], name=name, **options)]

    factors = (prescale_factor, postscale_factor)
    return reduced_by(run, [as_tensor(tensor)], operator_of(op), factors, compression)[0]


@collective
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`reducescatter` of several tensors as one operation for each dtype."""
    if not tensors:
        return _empty(ops.grouped_reducescatter, tensors)
    values = [as_tensor(one) for one in tensors]
    factors = (prescale_factor, postscale_factor)
    return reduced_by(ops.grouped_reducescatter, values, operator_of(op), factors, compression)


@collective
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors, one after the other. The gradient is this rank's rows of the mean of the ranks'
    gradients."""
    return ops.allgather(tensor, name=name)


@collective
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`allgather` of several tensors as one operation for each dtype."""
    return (
        ops.grouped_allgather(tensors, name=name) if tensors else _empty(ops.grouped_allgather, tensors, name)
    )


@collective
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rank `root_rank`'s tensor. The gradient is the mean of the ranks' gradients at the root, and zeros
    elsewhere."""
    return ops.broadcast(tensor, root_rank, name=name)


@collective
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Assigns rank `root_rank`'s values to the variables of all ranks, and returns their values."""
    return ops.broadcast_(variables, root_rank, name=name)


@collective
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """`broadcast_` for the variables of a model. In a graph of TensorFlow 1 this returns the op that does it.
    inplace: without effect, since nothing is copied besides the received values."""
    return ops.broadcast_variables(variables, root_rank)


@collective
def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1: the op that broadcasts all variables. Raises RuntimeError elsewhere."""
    return ops.broadcast_global_variables(root_rank)


@collective
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends some rows of `tensor` to each rank, and returns the rows from all ranks. With `splits` it also
    returns the number of rows from each rank (int32). The gradient is sent back by these."""
    if splits is None:
        return ops.alltoall(tensor, name=name)
    rows, received = ops.alltoall(tensor, splits, name=name)
    return rows, tf.cast(received, tf.int32)


def join(process_set: ProcessSet = global_process_set) -> Any:
    """Waits until all ranks have no data left, as `rdmacoll.join`. Returns the last rank that joined, as an
    int32 tensor. In a graph it happens in each run."""
    return at_run_time(lambda: joining.join(process_set))
