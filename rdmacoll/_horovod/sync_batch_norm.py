"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll import ops
from rdmacoll.engine.process_sets import process_sets
from rdmacoll.errors import ConfigError
from rdmacoll.operators import Sum
from rdmacoll.process_set import ProcessSet, global_process_set

_Plain: Any = tf.keras.layers.BatchNormalization
_MOMENTS = inspect.signature(_Plain._moments)
_IS_KERAS_3 = "reduction_axes" not in _MOMENTS.parameters


class SyncBatchNormalization(_Plain):  # type: ignore[misc]
    """`tf.keras.layers.BatchNormalization` whose mean and variance are those of the ranks' joined batches.

    In training, every rank of the set calls the layer equally often and differentiates its result. Batches
    may have different numbers of rows, also none, and each row has the same weight. Outside of training the
    layer uses the moving statistics, without communication. The same holds for `trainable=False`.

    The gradients are those of one process that has the joined batch and the sum of the ranks' losses. So
    each rank has the gradient of its inputs, and its own part of the gradients of `gamma` and `beta`. A
    wrapped optimizer or tape adds the parts up. With Average the loss is the mean of the ranks' losses.

    fused: False. kwargs: those of the plain layer. process_set: the ranks whose batches are joined, or their
    numbers. On other ranks the layer is a plain one. In a file it becomes the numbers of its ranks.

    Raises ConfigError for fused=True or None, and in training for a process set that is not added. The
    errors of `rdmacoll.allreduce` come in training, too.
    """

    def __init__(
        self,
        fused: bool | None = False,
        *,
        process_set: ProcessSet | Sequence[int] = global_process_set,
        **kwargs: Any,
    ) -> None:
        if fused is not False:
            raise ConfigError(
                f"fused={fused!r}: fused kernels normalize the batch of one rank. Leave it out."
            )
        super().__init__(**kwargs, **({} if _IS_KERAS_3 else {"fused": False}))
        self.supports_jit = False  # for Keras 3, since XLA compiles no collectives
        self.process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """The arguments that make a layer like this one."""
        config: dict[str, Any] = super().get_config()
        if self.process_set is not global_process_set:
            given = self.process_set
            config["process_set"] = list(given.ranks if isinstance(given, ProcessSet) else given)
        return config

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        members = _added(self.process_set)
        if not members.included():
            return super()._moments(inputs, *args, **kwargs)  # type: ignore[no-any-return]
        given = _MOMENTS.bind(self, inputs, *args, **kwargs).arguments
        axes = self._reduction_axes if _IS_KERAS_3 else given["reduction_axes"]
        count, *moments = _joined_moments(inputs, list(axes), given.get("mask"), members)
        # Batches without rows on all ranks leave the moving statistics as they are.
        mean, variance = (
            tf.where(count > 0, moment, tf.reshape(tf.cast(moving, tf.float64), tf.shape(moment)))
            for moment, moving in zip(moments, (self.moving_mean, self.moving_variance))
        )
        if not given.get("keep_dims", False):
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _added(process_set: Any) -> ProcessSet:
    """The set itself, or the one of this world that has these ranks. Raises ConfigError."""
    if isinstance(process_set, ProcessSet):
        return process_set
    for one in process_sets().values():
        if list(one.ranks) == sorted(process_set):
            return one
    raise ConfigError(
        f"SyncBatchNormalization has process_set={process_set!r}, and this world has no such set. Call "
        "rdmacoll.add_process_set() first."
    )


def _joined_moments(inputs: Any, axes: list[int], mask: Any, process_set: ProcessSet) -> tuple[Any, Any, Any]:
    """Count, mean and variance over `axes`, which keep the size 1, as float64. mask: which positions count.

    Each rank sums differences to its own mean, so float32 loses nothing when the mean is large. The sums
    are related to zero in float64, and travel as one operation.
    """
    values = inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)
    is_counted: Any = None
    if mask is not None:
        is_counted = tf.broadcast_to(tf.expand_dims(tf.cast(mask, tf.bool), -1), tf.shape(values))

    def counted(some: Any) -> Any:
        return some if is_counted is None else tf.where(is_counted, some, tf.zeros_like(some))

    own_sum = _sum(counted(values), axes)
    if is_counted is None:
        count = tf.fill(tf.shape(own_sum), tf.size(values, tf.int64) // tf.size(own_sum, tf.int64))
    else:
        count = tf.math.count_nonzero(is_counted, axes, keepdims=True)
    count = tf.cast(count, tf.float64)
    own_mean = tf.stop_gradient(tf.cast(tf.math.divide_no_nan(own_sum, count), values.dtype))
    differences = counted(values - own_mean)
    first, second = _sum(differences, axes), _sum(tf.square(differences), axes)
    own_mean = tf.cast(own_mean, tf.float64)
    sums = tf.stack(
        [
            count,
            first + count * own_mean,
            second + 2.0 * own_mean * first + count * tf.square(own_mean),
        ]
    )
    total, first, second = tf.unstack(ops.allreduce(sums, op=Sum, process_set=process_set), num=3)
    mean = tf.math.divide_no_nan(first, total)
    return total, mean, tf.maximum(tf.math.divide_no_nan(second, total) - tf.square(mean), 0.0)


def _sum(values: Any, axes: list[int]) -> Any:
    return tf.cast(tf.reduce_sum(values, axes, keepdims=True), tf.float64)
