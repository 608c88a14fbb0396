"""Reduces each gradient once, although a tape and an optimizer may both be wrapped.

A reduced gradient is recognized by its tensor. After the program has changed it (clipped, unscaled, summed),
it is recognized by its variable, within the trace of one function or within one graph of TensorFlow 1. In
eager code, and between functions, the ranks compare the gradients of such a variable.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll.engine import world
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.process_set import ProcessSet, number_of
from rdmacoll.ops._library import not_converted
from rdmacoll.ops._names import outermost, replica_number
from rdmacoll.optimizer.equality import equal_on_ranks

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer

Key = tuple[int, Any]  # the process set's number, and the variable

# Reduced gradients: by process set and id. Their variables: by trace and replica.
_TENSORS: dict[tuple[int, int], weakref.ref[Any]] = {}
_TRACES: weakref.WeakKeyDictionary[Any, dict[int, set[Key]]] = weakref.WeakKeyDictionary()
_EARLY: set[Key] = set()  # variables whose gradients are reduced before an optimizer gets them


def note(
    gradients: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet, *, is_early: bool
) -> None:
    """Remembers that these gradients are reduced. is_early: by a tape or by `compute_gradients`."""
    number = number_of(world.current(), process_set)
    keys = {(number, key) for key in map(_key, variables) if key is not None}
    if is_early:
        _EARLY.update(keys)
    _here().update(keys)
    for gradient in gradients:
        if gradient is not None:
            _note_tensor(_values(gradient), number)


def forget(variables: Sequence[Any], process_set: ProcessSet) -> None:
    """An optimizer has applied the gradients. Later ones of these variables in the same trace are others."""
    number = number_of(world.current(), process_set)
    _here().difference_update((number, _key(variable)) for variable in variables)


def states(gradients: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet) -> list[bool | None]:
    """Whether each gradient is reduced. None: only a comparison of the ranks can tell."""
    number = number_of(world.current(), process_set)
    here = _here()
    found: list[bool | None] = []
    for gradient, variable in zip(gradients, variables):
        key = (number, _key(variable))
        if gradient is None or key in here or _is_noted(_values(gradient), number):
            found.append(True)
        else:
            found.append(None if key in _EARLY else False)
    return found


@not_converted
def reduced(
    reducer: GradientReducer,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    known: Sequence[bool | None] | None = None,
) -> list[Any]:
    """The gradients, each of them reduced: here, or before by a tape or by `compute_gradients`. known: their
    `states`, where the caller knows them."""
    result = list(gradients)
    if known is None:
        known = states(gradients, variables, reducer.process_set)
    result = [_summed(reducer, one) if state is True else one for one, state in zip(result, known)]
    if False in known or not any(gradient is not None for gradient in gradients):
        mine = [gradient if state is False else None for gradient, state in zip(result, known)]
        for index, gradient in enumerate(reducer(mine, variables)):
            result[index] = gradient if known[index] is False else result[index]
    unknown = [index for index, state in enumerate(known) if state is None]
    if unknown:
        found = _reduced_unless_equal(
            reducer, [result[index] for index in unknown], [variables[index] for index in unknown]
        )
        for index, gradient in zip(unknown, found):
            result[index] = gradient
    return result


@not_converted
def reduced_early(reducer: GradientReducer, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The same of gradients that come from a tape, wrapped or not, and are unchanged since."""
    number = number_of(world.current(), reducer.process_set)
    known = [one is None or _is_noted(_values(one), number) for one in gradients]
    return reduced(reducer, gradients, variables, known)


def _reduced_unless_equal(reducer: GradientReducer, gradients: list[Any], variables: list[Any]) -> list[Any]:
    if reducer.sparse_as_dense is True:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    are_equal = equal_on_ranks(gradients, reducer.name_for(variables), reducer.process_set)
    kept = [parts(_summed(reducer, gradient)) for gradient in gradients]

    def some_reduced() -> list[Any]:
        found = [parts(gradient) for gradient in reducer(gradients, variables)]
        return [
            tf.cond(are_equal[i], lambda i=i: kept[i], lambda i=i: found[i]) for i in range(len(gradients))
        ]

    result = tf.cond(tf.reduce_all(are_equal), lambda: kept, some_reduced)
    return [
        tf.IndexedSlices(part["values"], part["indices"], gradient.dense_shape)
        if isinstance(gradient, tf.IndexedSlices)
        else part["values"]
        for part, gradient in zip(result, gradients)
    ]


@not_converted
def required(
    reducer: GradientReducer, gradients: Sequence[Any], variables: Sequence[Any], call: str, cure: str
) -> list[Any]:
    """The gradients of a `call` that applies them as they are. Raises ConfigError on all ranks, in a graph
    InvalidArgumentError, where they are not reduced and differ between ranks."""
    known = states(gradients, variables, reducer.process_set)
    asked = [index for index, state in enumerate(known) if state is not True]
    if not asked:
        return list(gradients)
    name = reducer.name_for(variables)
    are_equal = equal_on_ranks([gradients[index] for index in asked], name, reducer.process_set)
    names = [str(getattr(variables[index], "path", None) or variables[index].name) for index in asked]
    text = (
        f"{call} got gradients that differ between ranks, for one or more of {', '.join(names[:3])}"
        f"{f' and {len(names) - 3} others' if len(names) > 3 else ''}: each rank would train "
        f"for itself; {cure}."
    )
    if tf.executing_eagerly():
        if not bool(tf.reduce_all(are_equal)):
            raise ConfigError(text)
        return list(gradients)
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(are_equal), [text])]):
        return [
            tf.nest.map_structure(tf.identity, gradient, expand_composites=True) for gradient in gradients
        ]


def parts(gradient: Any) -> dict[str, Any]:
    """Tensors of a gradient, dense or `tf.IndexedSlices`."""
    if isinstance(gradient, tf.IndexedSlices):
        return {"values": gradient.values, "indices": gradient.indices}
    return {"values": tf.convert_to_tensor(gradient)}


def _summed(reducer: GradientReducer, gradient: Any) -> Any:
    """With a gradient that is the mean of passes and is not reduced here, the sum of those passes."""
    if gradient is None or reducer.sums_means_of == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * reducer.sums_means_of, gradient.indices, gradient.dense_shape
        )
    return gradient * reducer.sums_means_of


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _note_tensor(tensor: Any, number: int) -> None:
    place = (number, id(tensor))
    _TENSORS[place] = weakref.ref(tensor, lambda _: _TENSORS.pop(place, None))


def _is_noted(tensor: Any, number: int) -> bool:
    found = _TENSORS.get((number, id(tensor)))
    return found is not None and found() is tensor


def _here() -> set[Key]:
    """What is noted of this replica in the outermost function's graph, or in that of TensorFlow 1 around it.
    Nothing stays of eager code, which has no end."""
    if tf.executing_eagerly():
        return set()
    graph = outermost(tf.compat.v1.get_default_graph())
    return _TRACES.setdefault(graph, {}).setdefault(replica_number(), set())


def _key(variable: Any) -> Any:
    """One variable on all replicas and in all functions; None for what is no variable."""
    variable = getattr(variable, "_value", variable)  # of Keras 3
    for part in (variable, getattr(variable, "handle", None)):
        container = getattr(part, "_distributed_container", None)
        variable = variable if container is None else container()
    if not isinstance(variable, tf.Variable):
        return None
    # In graphs of TensorFlow 1 names are unique within the graph alone.
    return getattr(variable, "_unique_id", variable.name), getattr(variable, "_graph_key", "")
