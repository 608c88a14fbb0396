"""Finds the variables of a training: those of the model and of its attributes, and those of the optimizers
that train it.

Ranks match variables by keys. A key is a place in the model (attribute names and positions), never a name
that Keras has made with a counter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll.keras.callbacks import optimizers
from rdmacoll.operators import CODES
from rdmacoll.optimizer import with_inner
from rdmacoll.optimizer.model_names import by_content, claim_name, is_main_thread
from rdmacoll.optimizer.registry import has_own_name, name_of_wrapped, plain_variable, wrapped_optimizers

MODEL = "model"
_PLAIN = (type(None), str, bytes, int, float, np.ndarray)  # an attribute may be a long list of these


@dataclass
class Group:
    """The variables of one owner: the model with its attributes, or one optimizer.

    variables: by key. built_for: the keys of the model's variables that an optimizer has slots for; None for
    the model, and for an optimizer that is not built.
    """

    owner: Any
    variables: dict[str, Any]
    built_for: list[str] | None = None
    accumulators: frozenset[str] = field(default_factory=frozenset)


class _Walk:
    """Visits a model, its attributes, and theirs. A variable gets the key of the first path to it. local:
    variables that get none, and that do not count in the keys of others."""

    def __init__(self, local: Sequence[Any]) -> None:
        self._local = {id(plain_variable(one)) for one in local}
        self.variables: dict[str, Any] = {}
        self.optimizers: dict[str, Any] = {}
        self._seen: set[int] = set()
        self._seen_objects: list[Any] = []  # keeps seen objects alive: another object could get their ids

    def visit(self, value: Any, path: str) -> None:
        if isinstance(value, _PLAIN):
            return
        if is_variable(value):
            for one in self._not_local([value]):
                self._add(path, one)
        elif isinstance(value, Mapping):
            if self._is_new(value):
                for key in sorted((key for key in value if isinstance(key, (str, int))), key=str):
                    self.visit(value[key], f"{path}/{key}")
        elif isinstance(value, (list, tuple)):
            if self._is_new(value):
                for position, item in enumerate(self._not_local(value)):
                    self.visit(item, f"{path}/{position}")
        elif hasattr(type(value), "apply_gradients"):
            if self._is_new(value):
                self.optimizers[path] = value
        elif _owns_variables(value) and self._is_new(value):
            for position, variable in enumerate(self._not_local(_variables_of(value))):
                self._add(f"{path}/{position}", variable)
            for name in sorted(set(vars(value)) - _ignored(value)):
                self.visit(vars(value)[name], f"{path}/{name}")

    def _add(self, key: str, variable: Any) -> None:
        # Strings and resources stay where they are.
        if self._is_new(plain_variable(variable)) and tf.as_dtype(variable.dtype).base_dtype.name in CODES:
            self.variables[key] = variable

    def _not_local(self, values: Sequence[Any]) -> list[Any]:
        return [one for one in values if not is_variable(one) or id(plain_variable(one)) not in self._local]

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._seen_objects.append(value)
        return True


def groups_of(model: Any, also: frozenset[str] = frozenset(), local: Sequence[Any] = ()) -> dict[str, Group]:
    """The model's group, and one for each of its optimizers. These are attributes of the model, or they
    are wrapped and have slots for variables of the model. also: names of wrapped optimizers that other
    ranks have found. local: variables to leave out, with their slots."""
    walk = _Walk(local)
    walk.visit(getattr(model, "optimizer", None), "optimizer")
    walk.visit(model, MODEL)
    groups = {MODEL: Group(model, walk.variables)}
    parts: set[int] = set()
    for key, optimizer in walk.optimizers.items():
        if id(optimizer) not in parts:  # the inside of loss scaling belongs to its outside
            parts.update(id(part) for part in with_inner(optimizer))
            groups[key] = _group_of(optimizer, walk.variables, local)
    for name, optimizer in wrapped_optimizers():
        if parts.isdisjoint(id(part) for part in with_inner(optimizer)):
            group = _group_of(optimizer, walk.variables, local)
            owns = any(not key.startswith(optimizers.OUTSIDE_MODEL) for key in group.built_for or ())
            if (owns or name in also) and not _is_of_another_graph(group):
                # Optimizers that one thread has wrapped may have one name.
                others = sum(key.startswith(f"{name} (") or key == name for key in groups)
                groups[f"{name} ({others + 1})" if others else name] = group
    return groups


def _is_of_another_graph(group: Group) -> bool:
    """Graphs of TensorFlow 1 have variables of the same names, by which Keras 2 knows them there."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return any(getattr(variable, "graph", None) is not graph for variable in group.variables.values())


def wrapped_names(groups: Mapping[str, Group]) -> list[str]:
    """The names of the wrapped optimizers: the same on all ranks of one training."""
    return sorted(str(name_of_wrapped(one)) for one in _wrapped(groups))


def _wrapped(groups: Mapping[str, Group]) -> list[Any]:
    owners = [group.owner for key, group in groups.items() if key != MODEL]
    parts = [part for owner in owners for part in with_inner(owner)]
    return [part for part in parts if name_of_wrapped(part) is not None]


def name_in_thread(title: str, groups: Mapping[str, Group]) -> str:
    """The name of an exchange of this training, which tells trainings in several threads apart. The
    optimizers' own names are enough: ranks with different models have to meet, so that they get an error.
    Raises ConfigError if two threads use one name."""
    if is_main_thread():
        return title
    variables, wrapped = list(groups[MODEL].variables.values()), _wrapped(groups)
    names = [title, *wrapped_names(groups)]
    if wrapped and all(has_own_name(one) for one in wrapped):
        return claim_name(" of ".join(names), variables, wrapped)
    return by_content(" of ".join(names), variables)


def is_variable(value: Any) -> bool:
    """Whether this is a variable of TensorFlow or of Keras 3."""
    if isinstance(value, tf.Variable):
        return True
    return hasattr(type(value), "assign") and hasattr(type(value), "trainable")


def _group_of(optimizer: Any, model: Mapping[str, Any], local: Sequence[Any]) -> Group:
    found = optimizers.variables_of(optimizer, model, local)
    accumulated = optimizers.accumulators_of(optimizer)
    sums = frozenset(key for key, variable in found.items() if id(plain_variable(variable)) in accumulated)
    return Group(optimizer, found, optimizers.built_for(optimizer, model, local), sums)


def _owns_variables(value: Any) -> bool:
    """Models, layers and tf.Modules. Metrics are left out: each rank counts its own data."""
    kind = type(value)
    if hasattr(kind, "update_state") and hasattr(kind, "result"):
        return False
    return isinstance(value, tf.Module) or (
        hasattr(kind, "trainable_variables") and hasattr(value, "__dict__")
    )


def _variables_of(owner: Any) -> list[Any]:
    try:
        return list(owner.variables)
    except ValueError:  # Keras 2: a model that is not built; its layers may be
        return []


def _ignored(owner: Any) -> set[str]:
    """TensorFlow's list of attributes that are no part of a module, for example Keras' step counters."""
    ignored = set(tf.Module._TF_MODULE_IGNORED_PROPERTIES)
    return ignored | set(getattr(type(owner), "_TF_MODULE_IGNORED_PROPERTIES", ()))
