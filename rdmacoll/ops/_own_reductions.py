"""Remembers the shapes of tensors that the program reduces by calls of its own. A train step may average its
gradients so, without a wrapped optimizer or tape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.operators import ReduceOp

_SHAPES_MAX = 10_000
_LAST: dict[tuple[int | None, ...] | None, int] = {}  # the number of the last call with this shape
_NUMBERS = itertools.count(1)


def calls() -> int:
    """A number that all later calls exceed."""
    return next(_NUMBERS)


def note(tensors: Sequence[Any], op: Any) -> None:
    """Records a call, or a graph with one. op: an operator, or None for one that averages. Only sums and
    averages of floats can be those of gradients."""
    if op not in (None, ReduceOp.AVERAGE, ReduceOp.SUM):
        return
    number = next(_NUMBERS)
    if len(_LAST) > _SHAPES_MAX:  # eager tensors may have ever new shapes
        _LAST.clear()
    for one in tensors:
        if isinstance(one, (tf.Tensor, tf.IndexedSlices)) and one.dtype.is_floating:
            _LAST[_shape_of(one)] = number


def may_cover(variables: Sequence[Any], since: int) -> bool:
    """Whether calls after `since` can have reduced the gradients of all these variables: one by one, or in
    one tensor."""
    seen = [shape for shape, number in _LAST.items() if number > since]
    shapes = [_shape_of(one) for one in variables]
    total = sum(_elements(one) for one in shapes)
    if any(shape is not None and _elements(shape) >= total > 0 for shape in seen):
        return True
    return bool(seen) and all(any(_is_compatible(own, one) for one in seen) for own in shapes)


def _shape_of(value: Any) -> tuple[int | None, ...] | None:
    shape = tf.TensorShape(value.shape)
    return None if shape.rank is None else tuple(shape.as_list())


def _elements(shape: tuple[int | None, ...] | None) -> int:
    return math.prod(one or 0 for one in shape or (0,))


def _is_compatible(own: tuple[int | None, ...] | None, seen: tuple[int | None, ...] | None) -> bool:
    if own is None or seen is None:
        return True
    return len(own) == len(seen) and all(None in (a, b) or a == b for a, b in zip(own, seen))
