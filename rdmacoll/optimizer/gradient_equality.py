"""Compares the gradients of the ranks, by a few numbers of each gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.operators import ReduceOp
from rdmacoll.ops._names import name_in_trace
from rdmacoll.ops._op_calls import reduce_group
from rdmacoll.ops._process_sets import in_process_set
from rdmacoll.process_set import ProcessSet

# Tolerances of a norm: different processors round results of equal gradients differently.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-6, 3e-2
_NORM = 1  # column of a summary
_ROW, _RATIO = 1024, 0.7  # the row size of a projection; with this ratio no two rows have the same factors
_ROUNDING = 1e-14  # the error of a variance in float64, relative to the mean of the squares


def equal_on_ranks(gradients: Sequence[Any], name: str, process_set: ProcessSet) -> Any:
    """Whether each gradient is the same on all ranks: a tensor of bools, the same on all ranks. It takes one
    small allreduce, named after `name`. gradients: dense ones and `tf.IndexedSlices`, the same number on all
    ranks.

    The ranks compare variances, which follow from sums. Ranks that have joined give zeros and do not count.
    """
    own_summaries = (_traced_summaries if tf.executing_eagerly() else _summaries)(list(gradients))
    with in_process_set(process_set):
        sums = reduce_group(
            [tf.concat([own_summaries, own_summaries * own_summaries, tf.ones((1,), tf.float64)], axis=0)],
            op=ReduceOp.SUM,
            name=name_in_trace(f"{name}/equality"),
        )[0]
    ranks = sums[-1]
    means, squares = (tf.reshape(part / ranks, (len(gradients), -1)) for part in tf.split(sums[:-1], 2))
    tolerances = tf.constant(
        [_TOLERANCE_OF_16_BITS if gradient.dtype.size == 2 else _TOLERANCE for gradient in gradients],
        tf.float64,
    )
    # If one rank is off by the tolerance, the variance is at least the square of that divided by the ranks.
    of_norms = tf.maximum(tolerances**2 / ranks, _ROUNDING) * squares[:, _NORM]
    allowed = _ROUNDING * squares + tf.stack([of_norms, of_norms, 0 * of_norms, 0 * of_norms], axis=1)
    return tf.reduce_all(squares - means**2 <= allowed, axis=1)


def _summaries(gradients: list[Any]) -> Any:
    return tf.stack([part for gradient in gradients for part in _summary(gradient)])


# One by one, eager operations would take most of the time.
_traced_summaries = tf.function(_summaries, autograph=False, reduce_retracing=True)


def _summary(gradient: Any) -> list[Any]:
    """Four numbers of a gradient: a projection and the norm of its finite elements, the number of other
    elements, and a projection of the rows' indices. The last one is 0 for a dense gradient."""
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    projection, norm, others = _numbers(gradient.values if is_sparse else gradient)
    if not is_sparse:
        return [projection, norm, others, tf.zeros((), tf.float64)]
    return [projection, norm, others, _numbers(gradient.indices)[0]]


def _numbers(tensor: Any) -> tuple[Any, Any, Any]:
    flat = tf.reshape(tf.cast(tensor, tf.float64), [-1])
    is_finite = tf.math.is_finite(flat)
    flat = tf.where(is_finite, flat, tf.zeros_like(flat))
    others = tf.reduce_sum(tf.cast(tf.logical_not(is_finite), tf.float64))
    return _projection(flat), tf.norm(flat), others


def _projection(flat: Any) -> Any:
    """A weighted sum. The factor of a place is that of its column times that of its row. A cosine for each
    place would take most of the time."""
    rows = tf.reshape(tf.pad(flat, [[0, -tf.size(flat) % _ROW]]), (-1, _ROW))
    of_places = tf.cos(tf.range(_ROW, dtype=tf.float64))
    of_rows = tf.cos(_RATIO * tf.cast(tf.range(tf.shape(rows)[0]), tf.float64))
    return tf.reduce_sum(tf.linalg.matvec(rows, of_places) * of_rows)
