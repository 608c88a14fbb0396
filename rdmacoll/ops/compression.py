"""Fewer bytes on the wire. With 16 bits, floats are rounded before they travel, summed in float32, and get
their dtype back. The lossy compressors send the largest elements alone, or one bit for each element.

The names of 16 bits are Horovod's. Gradients are noisy, so the range matters more than the precision. float16
ends at 65504 and loses values below 6e-8. bfloat16 has the range of float32, and two decimal digits.

The part that a lossy compressor leaves out has to be added to the next gradient of the same variable (error
feedback: Seide et al. 2014, Stich et al. 2018). So wrapped optimizers and tapes take these compressors, and
single operations do not. Every rank gets all messages and adds them up in rank order, so all ranks have the
same bits.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._base.external_values import shown
from rdmacoll.errors import ConfigError

_BITS = 8  # in one byte of a message


class Compressor:
    """Sends floats of 32 and 64 bits as another dtype. Everything else is left as it is."""

    def __init__(self, name: str, dtype: Any = None) -> None:
        self._name = name
        self._dtype = dtype

    def wire_dtype(self, dtype: Any) -> Any:
        """The dtype that a tensor of this dtype has on the wire."""
        return self._dtype if self._dtype is not None and dtype in (tf.float32, tf.float64) else dtype

    def packed(self, tensors: Sequence[Any], prescale: float) -> tuple[list[Any], float]:
        """The tensors on the wire, and the factor that is still to be applied. Other factors are applied
        before the rounding, so that they can keep a large gradient in float16's range."""
        if self._dtype is None or not tensors[0].dtype.is_floating:
            return list(tensors), prescale
        scaled = [tensor if prescale == 1.0 else tensor * prescale for tensor in tensors]
        return [tf.cast(tensor, self.wire_dtype(tensor.dtype)) for tensor in scaled], 1.0

    def unpacked(self, results: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """`results` with the dtypes of `tensors`."""
        if self._dtype is None:
            return list(results)
        return [tf.cast(result, tensor.dtype) for result, tensor in zip(results, tensors)]

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor on the wire, and its own dtype for `decompress`: Horovod's interface."""
        return tf.cast(tensor, self.wire_dtype(tensor.dtype)), tensor.dtype

    def decompress(self, tensor: Any, dtype: Any) -> Any:
        """The tensor with its own dtype."""
        return tf.cast(tensor, dtype)

    def __repr__(self) -> str:
        return f"Compression.{self._name}"


class LossyCompressor(Compressor, abc.ABC):
    """Sends a message of a fixed size instead of a vector."""

    @abc.abstractmethod
    def message(self, vector: Any) -> list[Any]:
        """The tensors to send for a vector of static size. Their shapes depend on that size alone. A vector
        of NaN makes every sum NaN."""

    @abc.abstractmethod
    def added(self, total: Any, message: list[Any]) -> Any:
        """`total` with the vector that the message stands for."""


class TopK(LossyCompressor):
    """Sends the elements with the largest absolute values, with their places."""

    def __init__(self, ratio: float) -> None:
        """ratio: the share of each gradient's elements, above 0 and up to 1. At least one is sent."""
        if not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
            raise ConfigError(f"Compression.topk({shown(ratio)}): give the share to send, such as 0.01.")
        super().__init__(f"topk({ratio:g})")
        self._ratio = ratio

    def message(self, vector: Any) -> list[Any]:
        """The places (int32) and the elements."""
        size = int(vector.shape[0])
        count = min(size, max(1, math.ceil(self._ratio * size)))
        _, places = tf.math.top_k(tf.abs(vector), count, sorted=False)
        return [places, tf.gather(vector, places)]

    def added(self, total: Any, message: list[Any]) -> Any:
        """`total` with the elements at their places. A message has each place once."""
        places, elements = message
        return tf.tensor_scatter_nd_add(total, places[:, None], elements)


class OneBit(LossyCompressor):
    """Sends for each element whether it is below 0, and the means of both kinds."""

    def message(self, vector: Any) -> list[Any]:
        """The bits, 8 in a byte, and the two means."""
        is_below = vector < 0
        means = tf.stack([_mean(vector, tf.logical_not(is_below)), _mean(vector, is_below)])
        padded = tf.pad(tf.cast(is_below, tf.int32), [[0, -int(vector.shape[0]) % _BITS]])
        packed = tf.reduce_sum(tf.reshape(padded, (-1, _BITS)) * _masks(tf.int32), axis=1)
        return [tf.cast(packed, tf.uint8), means]

    def added(self, total: Any, message: list[Any]) -> Any:
        """`total` with the mean of its kind at each place."""
        packed, means = message
        bits = tf.reshape(tf.bitwise.bitwise_and(packed[:, None], _masks(tf.uint8)), (-1,))
        is_below = bits[: int(total.shape[0])] > 0
        return total + tf.where(is_below, means[1], means[0])


def _mean(vector: Any, is_member: Any) -> Any:
    total = tf.reduce_sum(tf.where(is_member, vector, tf.zeros_like(vector)))
    return tf.math.divide_no_nan(total, tf.cast(tf.math.count_nonzero(is_member), vector.dtype))


def _masks(dtype: Any) -> Any:
    return tf.constant([1 << place for place in range(_BITS)], dtype)


class Compression:
    """The values of `compression`: `none`, `fp16`, `bf16`, and for wrapped optimizers and tapes `topk(ratio)`
    and `onebit`; the same one on all ranks."""

    none = Compressor("none")
    fp16 = Compressor("fp16", tf.float16)
    bf16 = Compressor("bf16", tf.bfloat16)
    onebit = OneBit("onebit")

    @staticmethod
    def topk(ratio: float) -> TopK:
        """Sends this share of each gradient's elements, those with the largest absolute values."""
        return TopK(ratio)


def compressor(compression: Any, *, may_be_lossy: bool = False) -> Compressor:
    """The compressor of an argument; None means `Compression.none`. Raises ConfigError."""
    if compression is None:
        return Compression.none
    if not isinstance(compression, Compressor):
        raise ConfigError(
            f"compression={compression!r}: there is rdmacoll.Compression.none, Compression.fp16, "
            "Compression.bf16, Compression.topk(ratio) and Compression.onebit."
        )
    if isinstance(compression, LossyCompressor) and not may_be_lossy:
        raise ConfigError(
            f"{compression!r} cannot compress a single operation: it adds what it leaves out to the next "
            "gradient. Give it to DistributedOptimizer or DistributedGradientTape."
        )
    return compression
