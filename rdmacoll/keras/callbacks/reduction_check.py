"""Detects optimizers that reduce nothing: each rank would train their variables alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.keras.callbacks.optimizers import calls_of
from rdmacoll.keras.callbacks.variable_broadcast import session_of
from rdmacoll.keras.callbacks.variable_groups import MODEL, Group, groups_of
from rdmacoll.ops import _baselines, _own_reductions as own_reductions
from rdmacoll.ops._labels import listed
from rdmacoll.optimizer import compared_values, reducer_of, registry, with_inner
from rdmacoll.optimizer.fit_state import passes_of


@dataclass(frozen=True)
class BeforeTraining:
    """The state before the first batch of a `fit`. reductions: a number of `registry.reductions()`. calls: a
    number of `own_reductions.calls()`. steps: the number of calls of each optimizer, by its key. graph_steps:
    that of the model's optimizer in a graph of TensorFlow 1."""

    reductions: int
    calls: int
    steps: Mapping[str, int]
    graph_steps: int

    def has_trained(self, model: Any) -> bool:
        """Whether an optimizer of the model has been called since then."""
        is_called = any(steps > self.steps.get(key, 0) for key, steps in _steps(groups_of(model)).items())
        return is_called or _graph_steps(model) > self.graph_steps


def before_training(model: Any) -> BeforeTraining:
    """Call it before the first batch."""
    numbers = registry.reductions(), own_reductions.calls()
    return BeforeTraining(*numbers, _steps(groups_of(model)), _graph_steps(model))


def check_reduced(model: Any, before: BeforeTraining, callback: str) -> bool:
    """Call it after the first batch. Raises ConfigError when no gradient of this model has been reduced, or
    none of the variables that one of its optimizers has updated. callback: the class that takes
    allow_unwrapped, for the message.

    A train function that was traced earlier reduces without being built again. So a reduction from before
    counts if it is that of a tape, or of an optimizer that the model still has. The program may also reduce
    the gradients by collectives of its own.

    Returns False if nothing is known yet: a program that adds up gradients of several batches may have
    changed nothing so far.
    """
    groups = groups_of(model)
    trainable = [one for one in groups[MODEL].variables.values() if getattr(one, "trainable", True)]
    owners = [with_inner(group.owner) for key, group in groups.items() if key != MODEL]
    # Keras 2 keeps `trainable` of a variable when its layer is frozen.
    if not trainable or not getattr(model, "trainable_variables", trainable):
        return True
    is_reduced = _test_of_reduction(groups, before)
    name = getattr(model, "name", "")
    allow = f"pass allow_unwrapped=True to {callback} if"
    # A wrapped optimizer that accumulates, or that the program calls later, has reduced nothing so far.
    are_wrapped = bool(owners) and all(any(map(_is_wrapped, parts)) for parts in owners)
    if not are_wrapped and not any(map(is_reduced, trainable)) and not _may_be_own(trainable, before):
        if not any(map(_may_have_changed, trainable)):
            return False
        optimizer = getattr(model, "optimizer", None)
        kind = "" if optimizer is None else f" ({type(optimizer).__name__})"
        raise ConfigError(
            f"the first batch of fit has reduced no gradient of model {name!r}: its optimizer{kind} is not "
            "wrapped, as after load_model, and ranks would train apart. Call "
            f"rdmacoll.DistributedOptimizer(model.optimizer) before fit, or {allow} gradients are reduced in "
            "another way."
        )
    for key, steps in _steps(groups).items():
        group = groups[key]
        keys = [one for one in group.built_for or () if one in groups[MODEL].variables]
        updated = [groups[MODEL].variables[one] for one in keys]
        has_stepped = steps > before.steps.get(key, 0) and not _is_between_passes(group.owner, model)
        is_alone = has_stepped and updated and not any(map(is_reduced, updated))
        if is_alone and not _may_be_own(updated, before):
            raise ConfigError(
                f"the first batch of fit has updated variables of model {name!r} ({listed(updated)}) by "
                f"gradients of this rank alone, and ranks would train apart: the {_cause(group.owner, key)}, "
                f"or {allow} ranks are to differ there."
            )
    return True


def _may_have_changed(variable: Any) -> bool:
    """Whether a variable is not known to have the value that was sent to all ranks."""
    plain = _baselines.tf_variable(variable)
    if not tf.executing_eagerly() or not _baselines.has_baseline(plain):
        return True
    return (
        _baselines.change_of(plain, _baselines.fingerprint_of(_baselines.read(plain))) == _baselines.CHANGED
    )


def prints_of_unreduced(model: Any, before: BeforeTraining) -> dict[str, int]:
    """Fingerprints of the model's trainable variables that the first batch has changed without a reduction of
    their gradients, by key. They have to be equal on all ranks, as those of a target network are."""
    if not tf.executing_eagerly():
        return {}
    groups = groups_of(model)
    is_reduced, found = _test_of_reduction(groups, before), {}
    for key, variable in groups[MODEL].variables.items():
        plain = _baselines.tf_variable(variable)
        is_sent = _baselines.has_baseline(plain) and compared_values.is_compared(plain)
        if is_sent and getattr(variable, "trainable", True) and not is_reduced(variable):
            now = _baselines.fingerprint_of(_baselines.read(plain))
            if _baselines.change_of(plain, now) == _baselines.CHANGED:
                found[key] = now
    return found


def _test_of_reduction(groups: Mapping[str, Group], before: BeforeTraining) -> Callable[[Any], bool]:
    """A function that returns whether the gradient of a variable of the model has been reduced."""
    owners = [group.owner for key, group in groups.items() if key != MODEL]
    parts = [part for owner in owners for part in with_inner(owner)]
    reducers = [one for one in map(reducer_of, parts) if one is not None]

    def is_reduced(variable: Any) -> bool:
        last = registry.reduction_of(variable)
        if last is None:
            return False
        is_new = last.number > before.reductions or last.is_of_tape
        return is_new or any(one in last.reducers for one in reducers)

    return is_reduced


def _may_be_own(variables: list[Any], before: BeforeTraining) -> bool:
    """Whether the program may reduce the gradients of these variables by its own calls, now or in the train
    function of an earlier `fit`."""
    if own_reductions.may_cover(variables, before.calls):
        registry.note_own_reduction(variables)
    return all(map(registry.has_own_reduction, variables))


def _cause(optimizer: Any, key: str) -> str:
    """The reason why an optimizer reduces nothing, and the cure."""
    title = f"{type(optimizer).__name__} at {key}"
    if any(map(_is_wrapped, with_inner(optimizer))):
        return (
            f"{title} was wrapped after Keras had traced the training with the plain one. Call model.compile "
            "again after rdmacoll.DistributedOptimizer"
        )
    return f"{title} is not wrapped. Call rdmacoll.DistributedOptimizer on it before fit"


def _is_between_passes(optimizer: Any, model: Any) -> bool:
    """Whether a wrapped optimizer may have added up gradients only. A traced step reduces in a branch."""
    is_eager = getattr(model, "run_eagerly", False) or tf.config.functions_run_eagerly()
    parts = with_inner(optimizer)
    return is_eager and any(map(_is_wrapped, parts)) and passes_of(parts) > 1


def _steps(groups: Mapping[str, Group]) -> dict[str, int]:
    """The calls of each optimizer. In a graph of TensorFlow 1 Keras trains a model by its own optimizer
    alone."""
    if not tf.executing_eagerly():
        return {}
    found = {}
    for key, group in groups.items():
        steps = calls_of(group.owner)
        if key != MODEL and steps is not None:
            found[key] = int(steps.numpy())
    return found


def _graph_steps(model: Any) -> int:
    """The calls of the model's optimizer in a graph of TensorFlow 1; 0 elsewhere, and before the first."""
    if tf.executing_eagerly():
        return 0
    count = getattr(with_inner(getattr(model, "optimizer", None))[-1], "_iterations", None)
    return 0 if count is None else int(session_of(model).run(count))


def _is_wrapped(optimizer: Any) -> bool:
    return reducer_of(optimizer) is not None
