"""Tells reduced gradients from those of this rank alone, by the tensor itself.

The tensors that a tape or `compute_gradients` has returned are marked. In a graph, a changed gradient
(clipped, unscaled, summed) is followed back to the marked ones that it is made from. For eager tensors, the
gradients of the variable count that no optimizer has applied yet, and `history`.
"""

from __future__ import annotations

import enum
import functools
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll._base.once import once
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import history
from rdmacoll.optimizer.history import CONSTANT, is_marked, mark

Key = tuple[int, Any]  # the process set's number, and the variable


class Origin(enum.Enum):
    """The gradients that a gradient is made from."""

    REDUCED = "reduced ones"
    LOCAL = "those of this rank"
    MIXED = "reduced ones and those of this rank"
    UNKNOWN = "none that is known here"


# Marked tensors by id; reduced ones by process set, too.
_REDUCED: dict[tuple[int, int], weakref.ref[Any]] = {}
_LOCAL: dict[int, weakref.ref[Any]] = {}
_REDUCED_EARLY: set[Key] = set()  # variables whose gradients are reduced before an optimizer gets them
_TRACED: set[Key] = set()  # those of functions and graphs, which run again without this code
_WAITING: set[Key] = set()  # variables with eager reduced gradients that no optimizer has applied yet
_WAITING_LOCAL: Counter[Any] = Counter()  # variables: the number of eager gradients of plain tapes
_READS = frozenset(("ReadVariableOp", "VariableV2", "Variable"))


def mark_reduced(gradients: Sequence[Any], variables: Sequence[Any], number: int, *, is_early: bool) -> None:
    """Marks gradients that are reduced within a process set. is_early: before an optimizer gets them."""
    keys = {(number, key) for key in map(variable_key, variables) if key is not None}
    if is_early:
        _REDUCED_EARLY.update(keys)
        (_WAITING if tf.executing_eagerly() else _TRACED).update(keys)
        watch_plain_tapes()
        if tf.executing_eagerly():
            history.begin(None if one is None else values_of(one) for one in gradients)
    for gradient in gradients:
        if gradient is not None:
            mark(_REDUCED, (number, id(values_of(gradient))), values_of(gradient))


def take(variables: Sequence[Any], number: int) -> None:
    """Notes that an optimizer has applied the gradients of these variables. Later eager ones are new."""
    if tf.executing_eagerly():
        for key in map(variable_key, variables):
            _WAITING.discard((number, key))
            _WAITING_LOCAL.pop(key, None)
        if not _WAITING:
            history.end()


def consume(variables: Sequence[Any]) -> None:
    """Notes that eager gradients of a plain tape have been reduced."""
    if tf.executing_eagerly():
        _WAITING_LOCAL.subtract(key for key in map(variable_key, variables) if _WAITING_LOCAL[key] > 0)


def is_marked_reduced(gradient: Any, number: int) -> bool:
    """Whether this very tensor is reduced."""
    return is_marked(_REDUCED, (number, id(values_of(gradient))), values_of(gradient))


def origin(gradient: Any, variable: Any, number: int) -> Origin:
    """The kind of gradients that this one is made from."""
    key = (number, variable_key(variable))
    if is_marked_reduced(gradient, number):
        return Origin.REDUCED
    if key not in _REDUCED_EARLY:
        return Origin.LOCAL
    tensor = values_of(gradient)
    if is_marked(_LOCAL, id(tensor), tensor):
        return Origin.LOCAL
    if hasattr(tensor, "op") and not tf.executing_eagerly():
        return _followed(tensor, variable, number)
    if key in _WAITING:
        return Origin.MIXED if _WAITING_LOCAL[key[1]] else Origin.UNKNOWN
    return Origin.UNKNOWN if key in _TRACED else Origin.LOCAL


def _followed(tensor: Any, variable: Any, number: int) -> Origin:
    """The origin of a tensor in a graph: follows the inputs of operations back to marked tensors."""
    is_reduced = is_local = is_open = has_open_gradient = False
    for found in _sources(tensor, number):
        if is_marked(_REDUCED, (number, id(found)), found):
            is_reduced = True
        elif is_marked(_LOCAL, id(found), found):
            is_local = True
        elif not _is_neutral(found, tensor, variable):
            is_open = True
            has_open_gradient |= found.dtype.is_floating and tensor.shape.is_compatible_with(found.shape)
    if is_local:
        return Origin.MIXED if is_reduced or has_open_gradient else Origin.LOCAL
    if is_open:
        return Origin.UNKNOWN
    return Origin.REDUCED if is_reduced else Origin.LOCAL


def _sources(tensor: Any, number: int) -> Iterator[Any]:
    """The marked tensors behind `tensor`, and tensors of operations about which nothing is known."""
    seen, pending = {id(tensor): tensor}, [tensor]
    while pending:
        one = pending.pop()
        has_mark = is_marked(_REDUCED, (number, id(one)), one) or is_marked(_LOCAL, id(one), one)
        before = [] if has_mark else _inputs(one)
        if not before or _is_opaque(one):
            yield one
        for other in before:
            if id(other) not in seen:
                seen[id(other)] = other
                pending.append(other)


def _inputs(tensor: Any) -> list[Any]:
    """The tensors that this one is computed from."""
    operation = _operation(tensor)
    if operation is None or operation.type in CONSTANT or operation.type in _READS:
        return []
    if operation.type == "Placeholder":
        return [outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor]
    return list(operation.inputs)


def _operation(tensor: Any) -> Any:
    return None if isinstance(tensor, tf.__internal__.EagerTensor) else tensor.op


def _is_opaque(tensor: Any) -> bool:
    """Whether the result depends on more than the inputs: on functions, the state of the process, or other
    ranks."""
    operation = _operation(tensor)
    if operation is None:
        return False
    description = operation.op_def
    calls = any(attribute.type.endswith(("func", "func)")) for attribute in description.attr)
    return calls or description.is_stateful or operation.type.startswith("Rdmacoll")


def _is_neutral(found: Any, tensor: Any, variable: Any) -> bool:
    """Whether a tensor is equal on all ranks and is no gradient. This holds for constants, for the
    variable itself, and for a variable of another shape, which is no sum of gradients."""
    operation = _operation(found)
    if operation is None or operation.type in CONSTANT:
        return operation is not None
    if operation.type not in _READS:
        return not operation.inputs and not _is_opaque(found) and operation.type != "Placeholder"
    if not tensor.shape.is_compatible_with(found.shape):
        return True
    own = _handle(getattr(variable, "_value", variable))
    read = operation.inputs[0] if operation.inputs else found
    while read is not own and (outer := _inputs(read)):
        read = outer[0]
    return own is not None and read is own


@once
def watch_plain_tapes() -> None:
    """Marks gradients of plain tapes as those of this rank, from now on."""
    plain = tf.GradientTape.gradient

    @functools.wraps(plain)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, target, sources, *args, **kwargs)
        if not hasattr(self, "_rdmacoll_reduce"):
            for one, variable in zip(tf.nest.flatten(found), tf.nest.flatten(sources)):
                if one is not None:
                    mark(_LOCAL, id(values_of(one)), values_of(one))
                    if tf.executing_eagerly() and (key := variable_key(variable)) is not None:
                        _WAITING_LOCAL[key] += 1
        return found

    tf.GradientTape.gradient = not_converted(gradient)


def values_of(gradient: Any) -> Any:
    """The tensor of a gradient; the rows of `tf.IndexedSlices`."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def variable_key(variable: Any) -> Any:
    """The key of a variable, the same on all replicas and in all functions; None if it is no variable."""
    variable = getattr(variable, "_value", variable)  # Keras 3's
    for part in (variable, _handle(variable)):
        container = getattr(part, "_distributed_container", None)
        variable = variable if container is None else container()
    if not isinstance(variable, tf.Variable):
        return None
    # In graphs of TensorFlow 1 names are unique within the graph alone.
    return getattr(variable, "_unique_id", variable.name), getattr(variable, "_graph_key", "")


def _handle(variable: Any) -> Any:
    """The handle of a variable, or None. A variable of all replicas has none outside of them."""
    try:
        return getattr(variable, "handle", None)
    except ValueError:
        return None
