"""Horovod's compressors of gradients."""

from __future__ import annotations

from typing import Any

from rdmacoll.tensorflow import Compression

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """The base class of compressors that programs write."""

    @staticmethod
    def compress(tensor: Any) -> Any:
        """Returns the tensor to send, and a context for `decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor of the sent one."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    compress = staticmethod(Compression.none.compress)
    decompress = staticmethod(Compression.none.decompress)


class FP16Compressor(Compressor):
    """Sends floats as 16 bits."""

    compress = staticmethod(Compression.fp16.compress)
    decompress = staticmethod(Compression.fp16.decompress)
