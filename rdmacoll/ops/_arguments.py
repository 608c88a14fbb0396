"""Checks of arguments, before anything is submitted."""

from __future__ import annotations

import struct
from typing import Any

import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.engine.arguments import check_exact, root, scale
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import CODES, FLOATS, REDUCIBLE, ReduceOp, reduction as reduction


def bits(value: float) -> int:
    """A double as the integer with the same bits: TensorFlow's float attributes have 32 only.

    >>> hex(bits(1.0))
    '0x3ff0000000000000'
    """
    return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])


def from_bits(pattern: int) -> float:
    """The double with these bits.

    >>> from_bits(bits(0.1))
    0.1
    """
    return float(struct.unpack("<d", struct.pack("<q", pattern))[0])


def scales(dtype: Any, prescale: Any, postscale: Any) -> tuple[float, float]:
    """Both factors. Raises ConfigError for what is not finite, or would make integers round."""
    factors = scale(prescale, "prescale_factor"), scale(postscale, "postscale_factor")
    check_exact(dtype.name, factors[0], "prescale_factor")
    check_exact(dtype.name, factors[1], "postscale_factor")
    return factors


def check_reducible(dtype: Any, op: ReduceOp) -> None:
    """Raises ConfigError when allreduce does not take this dtype with this operator."""
    if dtype.name not in REDUCIBLE:
        raise ConfigError(f"{dtype.name} cannot be reduced: allreduce takes {', '.join(REDUCIBLE)}.")
    if op is ReduceOp.AVERAGE and dtype.name not in FLOATS:
        raise ConfigError(
            f"Average of {dtype.name} would have to round: use op=rdmacoll.Sum and divide, or cast to "
            "a float dtype first."
        )


def check_movable(dtype: Any) -> None:
    """Raises ConfigError when broadcast and allgather do not take this dtype."""
    if dtype.name not in CODES:
        raise ConfigError(f"{dtype.name} cannot be sent: broadcast and allgather take {', '.join(CODES)}.")


def check_root(root_rank: int) -> int:
    """The root. Raises ConfigError when there is no such rank."""
    return root(root_rank, world.size())


def by_dtype(tensors: list[Any]) -> dict[Any, list[int]]:
    """The positions of each dtype, in order of first appearance: an op takes one dtype."""
    groups: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype.base_dtype, []).append(index)
    return groups


def tensor(value: Any) -> Any:
    """As a dense tensor. Raises ConfigError for ragged and sparse ones."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        cure = "to_tensor()" if isinstance(value, tf.RaggedTensor) else "tf.sparse.to_dense()"
        raise ConfigError(f"a {type(value).__name__} has no one shape: make it dense first, with {cure}.")
    return tf.convert_to_tensor(value)
