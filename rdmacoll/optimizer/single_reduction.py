"""Reduces each gradient once, although a tape and an optimizer may both be wrapped.

`origin` tells reduced gradients from those of this rank. The ranks compare gradients of unknown origin, since
reduced ones are equal. If such gradients differ, they are reduced with a mean, which leaves their reduced
part as it is. With a sum this is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rdmacoll._world import world
from rdmacoll.errors import ConfigError
from rdmacoll.operators import ReduceOp
from rdmacoll.ops._labels import listed
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import history, registry
from rdmacoll.optimizer.gradient_equality import equal_on_ranks
from rdmacoll.optimizer.gradient_origin import (
    Origin,
    consume,
    is_marked_reduced,
    mark_reduced,
    origin,
    take,
    values_of,
)
from rdmacoll.optimizer.reduce import is_overwritten
from rdmacoll.process_set import ProcessSet, number_of

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer

_CURE = "wrap the tape of each of its gradients, or the optimizer alone"


@not_converted
def note(
    gradients: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet, *, is_early: bool
) -> None:
    """Records that these gradients are reduced. is_early: by a tape or by `compute_gradients`."""
    mark_reduced(gradients, variables, number_of(world.current(), process_set), is_early=is_early)


@not_converted
def forget(variables: Sequence[Any], process_set: ProcessSet) -> None:
    """Forgets the gradients of these variables, since an optimizer has applied them."""
    take(variables, number_of(world.current(), process_set))


@not_converted
def states(gradients: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet) -> list[Origin]:
    """The origin of each gradient. None counts as reduced."""
    number = number_of(world.current(), process_set)
    return [
        Origin.REDUCED if gradient is None else origin(gradient, variable, number)
        for gradient, variable in zip(gradients, variables)
    ]


@not_converted
def reduced(
    reducer: GradientReducer,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    origins: Sequence[Origin] | None = None,
) -> list[Any]:
    """Returns the gradients, each reduced once: here, or before by a tape or by `compute_gradients`.
    origins: their `states`, if the caller has them. Raises ConfigError for a gradient that is reduced only
    in part, if a further reduction would make it wrong. In a graph it is InvalidArgumentError if only the
    ranks can tell."""
    result = list(gradients)
    if origins is None:
        origins = states(gradients, variables, reducer.process_set)
    origins = [_decided(reducer, *one) for one in zip(origins, variables)]
    result = [
        _summed(reducer, one) if of is Origin.REDUCED and not is_overwritten(variable) else one
        for one, of, variable in zip(result, origins, variables)
    ]
    if Origin.LOCAL in origins or not any(gradient is not None for gradient in gradients):
        local_gradients = [gradient if of is Origin.LOCAL else None for gradient, of in zip(result, origins)]
        for index, gradient in enumerate(reducer(local_gradients, variables)):
            result[index] = gradient if origins[index] is Origin.LOCAL else result[index]
    unknown = [index for index, of in enumerate(origins) if of is Origin.UNKNOWN]
    if unknown:
        found = _reduced_unless_equal(
            reducer, [result[index] for index in unknown], [variables[index] for index in unknown]
        )
        for index, gradient in zip(unknown, found):
            result[index] = gradient
    return result


@not_converted
def reduced_early(reducer: GradientReducer, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Like `reduced`, for gradients that come from a tape, wrapped or not, and are unchanged since."""
    number = number_of(world.current(), reducer.process_set)
    origins = [
        Origin.REDUCED if one is None or is_marked_reduced(one, number) else Origin.LOCAL for one in gradients
    ]
    consume([variable for variable, of in zip(variables, origins) if of is Origin.LOCAL])
    return reduced(reducer, gradients, variables, origins)


def _decided(reducer: GradientReducer, of: Origin, variable: Any) -> Origin:
    """The origin to assume for a gradient. A mixture may be reduced by a mean, which leaves its reduced
    part as it is. A gradient that stays this rank's own is final after its first handling: ranks cannot
    compare it. Raises ConfigError if the reduction is no mean."""
    if of is not Origin.LOCAL and reducer.keeps(variable):
        return Origin.REDUCED
    if of is not Origin.MIXED:
        return of
    if repeats(reducer):
        return Origin.LOCAL
    raise ConfigError(
        f"the gradient of {listed([variable])} is made from gradients that are reduced and from others of "
        f"this rank, so a reduction with {_description(reducer)} would count the reduced ones twice: {_CURE}."
    )


def _is_scaled(reducer: GradientReducer) -> bool:
    return (reducer.prescale_factor, reducer.postscale_factor) != (1.0, 1.0)


def repeats(reducer: GradientReducer) -> bool:
    """Whether reducing a reduced gradient changes nothing."""
    return reducer.op in (ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX) and not _is_scaled(reducer)


def _description(reducer: GradientReducer) -> str:
    """The options of the reduction, for messages."""
    scales = f", prescale_factor={reducer.prescale_factor:g}, postscale_factor={reducer.postscale_factor:g}"
    return f"op={reducer.op_name}{scales if _is_scaled(reducer) else ''}"


def _checked(condition: Any, text: str, gradients: list[Any]) -> list[Any]:
    """Returns the gradients if the condition holds. Otherwise raises ConfigError, in a graph
    InvalidArgumentError."""
    if tf.executing_eagerly():
        if not bool(condition):
            raise ConfigError(text)
        return gradients
    with tf.control_dependencies([tf.debugging.Assert(condition, [text])]):
        return [
            tf.nest.map_structure(tf.identity, gradient, expand_composites=True) for gradient in gradients
        ]


def _reduced_unless_equal(reducer: GradientReducer, gradients: list[Any], variables: list[Any]) -> list[Any]:
    if reducer.sparse_as_dense is True:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    are_equal = equal_on_ranks(gradients, reducer.name_for(variables), reducer.process_set)
    if not repeats(reducer):
        text = (
            f"gradients of one or more of {listed(variables)} differ between ranks, and a tape has reduced "
            "others of them in another function or in eager code. If the first are made from the others, a "
            f"reduction with {_description(reducer)} would be wrong: {_CURE}."
        )
        gradients = _checked(tf.reduce_all(are_equal), text, gradients)
        _check_descent(reducer, gradients, variables)
        return [_summed(reducer, gradient) for gradient in gradients]
    compared_parts = [parts(_summed(reducer, gradient)) for gradient in gradients]

    def some_reduced() -> list[Any]:
        found = [parts(gradient) for gradient in reducer(gradients, variables)]
        return [
            tf.cond(are_equal[i], lambda i=i: compared_parts[i], lambda i=i: found[i])
            for i in range(len(gradients))
        ]

    result = tf.cond(tf.reduce_all(are_equal), lambda: compared_parts, some_reduced)
    return [
        tf.IndexedSlices(part["values"], part["indices"], gradient.dense_shape)
        if isinstance(gradient, tf.IndexedSlices)
        else part["values"]
        for part, gradient in zip(result, gradients)
    ]


def _check_descent(reducer: GradientReducer, gradients: list[Any], variables: list[Any]) -> None:
    """Checks eager gradients that are equal on all ranks, which may be by chance. Raises ConfigError if one
    is not made from reduced gradients."""
    for gradient, variable in zip(gradients, variables):
        if tf.executing_eagerly() and not history.may_descend(values_of(gradient)):
            raise ConfigError(
                f"the gradient of {listed([variable])} is equal on all ranks, but it is not made from a "
                f"tape's reduced gradients by operations of TensorFlow, so a reduction with "
                f"{_description(reducer)} may be missing: compute it by such operations, or {_CURE}."
            )


@not_converted
def required(
    reducer: GradientReducer, gradients: Sequence[Any], variables: Sequence[Any], call: str, cure: str
) -> list[Any]:
    """The gradients of a `call` that applies them as they are. Raises ConfigError on all ranks, in a graph
    InvalidArgumentError, if they are not reduced and differ between ranks."""
    origins = states(gradients, variables, reducer.process_set)
    undecided = [
        index
        for index, of in enumerate(origins)
        if of is not Origin.REDUCED and not reducer.keeps(variables[index])
    ]
    registry.note_reduction(reducer, variables)
    if not undecided:
        return list(gradients)
    name = reducer.name_for(variables)
    are_equal = equal_on_ranks([gradients[index] for index in undecided], name, reducer.process_set)
    text = (
        f"{call} got gradients that differ between ranks, for one or more of "
        f"{listed([variables[index] for index in undecided])}: each rank would train for itself; {cure}."
    )
    return _checked(tf.reduce_all(are_equal), text, list(gradients))


def parts(gradient: Any) -> dict[str, Any]:
    """The tensors of a gradient, dense or `tf.IndexedSlices`."""
    if isinstance(gradient, tf.IndexedSlices):
        return {"values": gradient.values, "indices": gradient.indices}
    return {"values": tf.convert_to_tensor(gradient)}


def _summed(reducer: GradientReducer, gradient: Any) -> Any:
    """A gradient that is not reduced here. If it is the mean of several passes, it becomes their sum."""
    if gradient is None or reducer.sums_means_of == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * reducer.sums_means_of, gradient.indices, gradient.dense_shape
        )
    return gradient * reducer.sums_means_of
