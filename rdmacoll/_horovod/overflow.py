"""Loss scaling leaves out a step whose gradients are not all finite. Ranks leave out the same steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll import ops
from rdmacoll.operators import Min
from rdmacoll.optimizer.gradient_origin import values_of
from rdmacoll.process_set import ProcessSet


def finite_on_all(gradients: Sequence[Any], process_set: ProcessSet) -> list[Any]:
    """The gradients. If one of any rank is not finite, one of each rank becomes NaN. Every rank of the set
    calls it with gradients of the same variables."""
    found, are_finite = list(gradients), _are_finite(gradients)
    places = _floats(found)
    if not places:
        return found
    own = tf.cast(tf.reduce_all(are_finite), tf.uint8)
    agreed = ops.allreduce(own, op=Min, process_set=process_set)
    found[places[0]] = _nan_unless(tf.cast(agreed, tf.bool), found[places[0]])
    return found


def told_of_overflow(shared: list[Any], own: list[Any]) -> list[Any]:
    """The gradients to reduce. If a gradient of this rank's own is not finite, one of them becomes NaN. So
    loss scaling leaves the step out on all ranks, and not on this one alone."""
    places, are_finite = _floats(shared), _are_finite(own)
    if not places or not are_finite:
        return shared
    smallest = min(places, key=lambda place: values_of(shared[place]).shape.num_elements() or math.inf)
    told = list(shared)
    told[smallest] = _nan_unless(tf.reduce_all(are_finite), shared[smallest])
    return told


def _nan_unless(condition: Any, gradient: Any) -> Any:
    """The gradient, or NaN if the condition does not hold. Rows get one more, since there may be none."""
    nan = tf.constant(math.nan, values_of(gradient).dtype)
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.where(condition, gradient, nan)
    count = tf.where(condition, 0, 1)
    row = tf.fill(tf.concat([[count], tf.shape(gradient.values)[1:]], 0), nan)
    place = tf.zeros((count,), gradient.indices.dtype)
    return tf.IndexedSlices(
        tf.concat([gradient.values, row], 0), tf.concat([gradient.indices, place], 0), gradient.dense_shape
    )


def _floats(gradients: Sequence[Any]) -> list[int]:
    """The places of tensors of floats."""
    are_tensors = [isinstance(values_of(one), tf.Tensor) for one in gradients]
    return [
        place
        for place, is_one in enumerate(are_tensors)
        if is_one and values_of(gradients[place]).dtype.is_floating
    ]


def _are_finite(gradients: Sequence[Any]) -> list[Any]:
    tensors = [values_of(one) for one in gradients if one is not None]
    return [tf.reduce_all(tf.math.is_finite(one)) for one in tensors if one.dtype.is_floating]
