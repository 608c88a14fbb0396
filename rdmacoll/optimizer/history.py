"""The eager tensors that are made from reduced gradients.

Eager tensors keep no history, so TensorFlow reports each operation here, between a wrapped tape and the
optimizer. This costs time. It is done only if a wrapped optimizer would make reduced gradients wrong by a
further reduction. Each thread has a history of its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks

# Operations whose results are equal on all ranks, whatever their inputs hold.
CONSTANT = frozenset(("Const", "Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"))

_IS_ENABLED = threading.Event()


class _Descendants(threading.local):
    """Those of one thread, by id. None: TensorFlow reports no operations."""

    marks: dict[int, weakref.ref[Any]] | None = None


_LOCAL = _Descendants()


def enable() -> None:
    """Keeps histories from now on."""
    _IS_ENABLED.set()


def begin(gradients: Iterable[Any]) -> None:
    """Notes eager reduced gradients (tensors, or None), and follows them from here on in this thread."""
    if not _IS_ENABLED.is_set():
        return
    if _LOCAL.marks is None:
        _LOCAL.marks = {}
        op_callbacks.add_op_callback(_noted)
    for gradient in gradients:
        if gradient is not None:
            mark(_LOCAL.marks, id(gradient), gradient)


def end() -> None:
    """Ends the history of this thread, since no reduced gradient waits for an optimizer."""
    if _LOCAL.marks is not None:
        _LOCAL.marks = None
        op_callbacks.remove_op_callback(_noted)


def may_descend(tensor: Any) -> bool:
    """Whether this eager tensor is made from reduced gradients, or from results of other collectives. True
    if its history is unknown."""
    return _LOCAL.marks is None or is_marked(_LOCAL.marks, id(tensor), tensor)


def _noted(
    op_type: bytes | str,
    inputs: Sequence[Any],
    attrs: Any,
    outputs: Sequence[Any],
    op_name: Any = None,
    graph: Any = None,
) -> None:
    """Called by TensorFlow after an operation. An assignment has no outputs: it changes its variable."""
    del attrs, op_name
    marks = _LOCAL.marks
    name = op_type if isinstance(op_type, str) else op_type.decode()
    if graph is not None or marks is None or name in CONSTANT:
        return
    if name.startswith("Rdmacoll") or any(is_marked(marks, id(one), one) for one in inputs):
        for one in [*outputs, *(one for one in inputs if one.dtype == tf.resource and not outputs)]:
            mark(marks, id(one), one)


def mark(marks: dict[Any, weakref.ref[Any]], place: Any, tensor: Any) -> None:
    """Keeps a mark of the tensor at this place, as long as the tensor lives."""
    marks[place] = weakref.ref(tensor, lambda _: marks.pop(place, None))


def is_marked(marks: dict[Any, weakref.ref[Any]], place: Any, tensor: Any) -> bool:
    """Whether the mark at this place is this tensor's."""
    found = marks.get(place)
    return found is not None and found() is tensor
