"""gather and scatter: all ranks' tensors at the root, and the root's tensor among all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.ops._arguments import (
    as_splits,
    check_has_rows,
    check_movable,
    check_root,
    rows_of,
    tensor as as_tensor,
)
from rdmacoll.ops._gradients import zeros_that_wait
from rdmacoll.ops._library import must_run, not_converted, op_scope, ops, typed_errors
from rdmacoll.ops._names import op_name


@not_converted
def gather(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """At rank `root_rank` all ranks' tensors, one after the other along the first dimension, by rank;
    elsewhere a tensor without rows.

    tensor, name, errors: as for `allgather`. The gradient (of floats) scatters the root's; it runs on all
    ranks or none: let every rank's loss depend on the result, which costs nothing where that is empty.
    """
    return _gather(as_tensor(tensor), root_rank, name)


def _gather(value: Any, root_rank: int, name: str | None) -> Any:
    check_movable(value.dtype)
    root = check_root(root_rank)
    functions = ops()
    with op_scope(), typed_errors():
        gathered = functions.rdmacoll_gather(tensor=value, root_rank=root, tensor_name=op_name(name))
    return must_run([gathered])[0]


@not_converted
def scatter(tensor: Any, root_rank: int, splits: Any = None, name: str | None = None) -> Any:
    """This rank's rows of rank `root_rank`'s tensor.

    tensor: of one dimension or more; elsewhere than at the root only its dtype and the shape of a row
    count. splits, read at the root: how many rows each rank gets; without them all get as many, the first
    ranks one more where that does not come out even. Dtypes, `name` and errors as for `allgather`.

    The gradient (of floats), at the root, gathers all ranks' gradients; elsewhere zero.
    """
    value = as_tensor(tensor)
    check_has_rows(value, "scatter")
    return _scatter(value, root_rank, as_splits(splits), name)


def _scatter(value: Any, root_rank: int, splits: Any, name: str | None) -> Any:
    check_movable(value.dtype)
    root = check_root(root_rank)
    functions = ops()
    with op_scope(), typed_errors():
        scattered = functions.rdmacoll_scatter(
            tensor=value, splits=splits, root_rank=root, tensor_name=op_name(name)
        )
    return must_run([scattered])[0]


@tf.RegisterGradient("RdmacollGather")
def _gather_gradient(op: Any, *grads: Sequence[Any]) -> Any:
    (mine,) = op.inputs
    if not mine.dtype.is_floating:
        return None
    root = op.get_attr("root_rank")
    counts = _gather(rows_of(mine), root, None)
    part = _scatter(tf.convert_to_tensor(grads[0]), root, counts, None)
    return tf.reshape(part, tf.shape(mine))


@tf.RegisterGradient("RdmacollScatter")
def _scatter_gradient(op: Any, *grads: Sequence[Any]) -> Any:
    whole = op.inputs[0]
    if not whole.dtype.is_floating:
        return None, None
    root = op.get_attr("root_rank")
    gathered = _gather(tf.convert_to_tensor(grads[0]), root, None)
    if world.rank() == root:
        return tf.ensure_shape(gathered, whole.shape), None
    return tf.zeros_like(whole) + zeros_that_wait(tf.reduce_sum(gathered)), None
