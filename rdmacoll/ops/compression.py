"""16 bits on the wire: floats are rounded before they travel, summed in float32, and get their dtype back.

The names are Horovod's. Gradients are noisy, so the range matters more than the precision. float16 ends at
65504 and loses values below 6e-8. bfloat16 has the range of float32, and two decimal digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.engine.errors import ConfigError


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


class Compression:
    """The values of `compression`: `none`, `fp16`, `bf16`; the same one on all ranks."""

    none = Compressor("none")
    fp16 = Compressor("fp16", tf.float16)
    bf16 = Compressor("bf16", tf.bfloat16)


def compressor(compression: Any) -> Compressor:
    """The compressor of an argument; None means `Compression.none`. Raises ConfigError."""
    if compression is None:
        return Compression.none
    if not isinstance(compression, Compressor):
        raise ConfigError(
            f"compression={compression!r}: there is rdmacoll.Compression.none, Compression.fp16 and "
            "Compression.bf16."
        )
    return compression
