"""Adasum: a sum of two gradients that counts the part that they share only once (Maleki et al. 2020).

The combination is not associative, so ranks combine along one binary tree: neighbours first. Each rank
gathers all values and computes the whole tree in double precision. So all ranks have the same result, at the
cost of memory for the values of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll import ops
from rdmacoll._horovod.calls import Adasum
from rdmacoll._horovod.errors import UnsupportedError
from rdmacoll.errors import ConfigError
from rdmacoll.ops._process_sets import current_set
from rdmacoll.ops._run_time import fixed_size
from rdmacoll.process_set import global_process_set


def is_adasum(op: Any) -> bool:
    """Whether this is Adasum."""
    return isinstance(op, int) and not isinstance(op, bool) and op == Adasum


def combined(tensors: Sequence[Any], factors: tuple[float, float], name: str | None) -> list[Any]:
    """The combination of all ranks' values, for each tensor. factors: of the inputs and of the results.

    The gradient is the combination of the gradients. Raises NotImplementedError for process sets and for
    worlds whose size is no power of two, and ConfigError for values that are no floats.
    """
    if current_set() is not global_process_set:
        raise UnsupportedError(
            "Adasum combines values of all ranks, not of a process set: leave process_set out."
        )
    size = fixed_size("Adasum")
    if size & (size - 1):
        raise UnsupportedError(
            f"Adasum needs a power of two of ranks, not {size}: start other ranks, or use op=Average."
        )
    for one in tensors:
        if not one.dtype.is_floating:
            raise ConfigError(f"Adasum cannot combine {one.dtype.name}: give tensors of floats.")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(*values: Any) -> Any:
        def gradient(*upstream: Any) -> list[Any]:
            return combined(upstream, factors, None)

        rows = ops.grouped_allgather([tf.reshape(one * factors[0], (1, -1)) for one in values], name=name)
        totals = [_tree(tf.unstack(tf.cast(one, tf.float64), num=size)) for one in rows]
        results = [
            tf.cast(tf.reshape(total * factors[1], tf.shape(one)), one.dtype)
            for total, one in zip(totals, values)
        ]
        return results, gradient

    return list(reduced(*tensors))


def _tree(values: list[Any]) -> Any:
    while len(values) > 1:
        values = [_pair(left, right) for left, right in zip(values[::2], values[1::2])]
    return values[0]


def _pair(left: Any, right: Any) -> Any:
    """`left` and `right`, each without half of its projection on the other."""
    shared = tf.reduce_sum(left * right)
    left_share = tf.math.divide_no_nan(shared, 2 * tf.reduce_sum(left * left))
    right_share = tf.math.divide_no_nan(shared, 2 * tf.reduce_sum(right * right))
    return (1 - left_share) * left + (1 - right_share) * right
