"""allreduce of `tf.IndexedSlices`: the rows of all ranks, or sums if these send less.

Every rank gets the indices of all ranks. So all ranks know the number of rows, and choose alike. To gather,
each rank receives the rows of all others. To sum, each rank receives twice the size of the dense tensor
(Patarasu and Yuan 2009).

Some optimizers square rows before they add those of one index (Adam in Keras 3, the norms that clip). Sums
give another result there, so a program has to ask for sums.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.operators import FLOATS, ReduceOp
from rdmacoll.ops._arguments import scales
from rdmacoll.ops._op_calls import allgather_one, reduce_group
from rdmacoll.ops._run_time import size_as
from rdmacoll.ops.compression import Compression, Compressor

# Gathered rows for each row of the dense tensor. Above this, sums send less.
GATHERED_ROWS_MAX = 2


def reduce_slices(
    slices: Any,
    *,
    op: ReduceOp,
    name: str | None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compressor = Compression.none,
    label: str = "",
    may_sum: bool = False,
) -> Any:
    """The sum or average as `tf.IndexedSlices`: the rows of all ranks in rank order, in which an index may
    repeat. may_sum: if this sends less, the result has each index once, with its sum."""
    _check(slices, op, label)
    prescale, postscale = scales(slices.values.dtype, prescale_factor, postscale_factor)

    def name_of(suffix: str) -> str | None:
        return None if name is None else f"{name}/{suffix}"

    indices = allgather_one(slices.indices, name=name_of("indices"), label=label)

    def gathered() -> tuple[Any, Any]:
        wire, factor = compression.packed([slices.values], prescale)
        rows = allgather_one(wire[0], name=name_of("values"), label=label)
        (values,) = compression.unpacked([rows], [slices.values])
        if factor * postscale != 1.0:
            values = values * factor * postscale
        return (values / size_as(values.dtype) if op is ReduceOp.AVERAGE else values), indices

    def summed() -> tuple[Any, Any]:
        (total,) = reduce_group(
            [tf.convert_to_tensor(slices)],
            op=op,
            name=name_of("sum"),
            prescale_factor=prescale,
            postscale_factor=postscale,
            labels=[label] if label else [],
            compression=compression,
        )
        rows, _ = tf.unique(indices)
        return tf.gather(total, rows), rows

    if may_sum and slices.dense_shape is not None:
        values, rows = tf.cond(_is_less_summed(indices, slices), summed, gathered)
    else:
        values, rows = gathered()
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def _is_less_summed(indices: Any, slices: Any) -> Any:
    rows = tf.cast(tf.shape(indices)[0], tf.int64)
    return rows > GATHERED_ROWS_MAX * tf.cast(slices.dense_shape[0], tf.int64)


def _check(slices: Any, op: ReduceOp, label: str) -> None:
    subject = f"tf.IndexedSlices{f' ({label})' if label else ''}"
    if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ConfigError(
            f"op={op} of {subject}: only Sum and Average are defined for sparse tensors. Make it dense "
            "first, by tf.convert_to_tensor() or sparse_as_dense=True."
        )
    if slices.values.dtype.name not in FLOATS and op is ReduceOp.AVERAGE:
        raise ConfigError(f"{subject} of {slices.values.dtype.name} cannot be averaged: use op=rdmacoll.Sum.")
