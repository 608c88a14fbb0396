"""Reads and builds the variables of optimizers: of Keras 3, of Keras 2 (new and legacy), of TensorFlow 1."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from rdmacoll.optimizer import with_inner
from rdmacoll.optimizer.compared_values import slots_of
from rdmacoll.optimizer.registry import plain_variable

OUTSIDE_MODEL = "other/"
# Settings that may differ between ranks, and the learning rate, which is a variable.
_MAY_DIFFER = ("name", "learning_rate", "jit_compile", "is_legacy_optimizer")


def variables_of(optimizer: Any, model: Mapping[str, Any], local: Sequence[Any] = ()) -> dict[str, Any]:
    """All variables, by keys that are the same on all ranks. model: the model's variables by their keys.
    local: variables of this rank, whose slots are left out.

    This creates the counter and the hyperparameters of a legacy optimizer. A rank that has loaded a file has
    them as variables already; other ranks have them only from the first step on.
    """
    found: dict[str, Any] = {}
    parts = with_inner(optimizer)
    of_local = {id(plain_variable(one)) for part in parts for one in slots_of(part, local)}
    for number, part in enumerate(parts):
        prefix = f"{number}/"
        if is_legacy(part):
            found.update((prefix + key, value) for key, value in _of_legacy(part, model, local).items())
        elif not any(is_legacy(inner) for inner in parts[number + 1 :]):  # its list is theirs
            plain = getattr(part, "variables", [])
            listed = plain() if callable(plain) else plain  # a method in TensorFlow 1
            listed = [one for one in listed if id(plain_variable(one)) not in of_local]
            found.update((f"{prefix}{position}", value) for position, value in enumerate(listed))
        # Beside the list: Keras 2's learning rate and loss scale.
        for name in ("_learning_rate", "_current_learning_rate"):
            found[prefix + name] = getattr(part, name, None)
        scale = getattr(part, "_loss_scale", None)
        for (name, *_), value in getattr(scale, "_weights", {}).items():
            found[prefix + name] = value
    return _unique(found)


def _unique(found: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of `found`, each once."""
    result: dict[str, Any] = {}
    seen: set[int] = set()
    for key, value in found.items():
        if hasattr(value, "assign") and id(plain_variable(value)) not in seen:
            seen.add(id(plain_variable(value)))
            result[key] = value
    return result


def is_legacy(optimizer: Any) -> bool:
    """Whether it is a legacy optimizer of Keras 2, which creates slots for more variables at any time."""
    return hasattr(type(optimizer), "_create_hypers") and not hasattr(optimizer, "_optimizer")


def awaits_slots(optimizer: Any) -> bool:
    """Whether a checkpoint has values for slots that a legacy optimizer has not created yet."""
    waiting = (getattr(part, "_deferred_slot_restorations", {}) for part in with_inner(optimizer))
    return tf.executing_eagerly() and any(values for slots in waiting for values in slots.values())


def can_be_built(optimizer: Any) -> bool:
    """Whether building the optimizer would create slots. A legacy optimizer does not tell."""
    outer, inner = with_inner(optimizer)[0], with_inner(optimizer)[-1]
    if hasattr(outer, "_trainable_variables_indices"):  # Keras 3
        return not outer.built
    return hasattr(inner, "_create_iteration_variable") and not hasattr(inner, "_index_dict")


def _of_legacy(part: Any, model: Mapping[str, Any], local: Sequence[Any]) -> dict[str, Any]:
    with tf.init_scope():
        part._create_hypers()
        found = {"iterations": part.iterations}
    found.update(part._hyper)
    # The keys are variables and slots, since the list of a restored optimizer has the order of its file.
    known = _without(part, part._slots, local)
    for variable, own in zip(_named(part, known, model), known):
        found.update((f"{slot}/{variable}", value) for slot, value in part._slots[own].items())
    return found


def _without(part: Any, known: Iterable[Any], local: Sequence[Any]) -> list[Any]:
    """The optimizer's keys without those of variables in `local`."""
    key_of = _key_function(part)
    left_out = {key_of(one) for one in local}
    return [one for one in known if one not in left_out]


def _named(part: Any, known: Iterable[Any], model: Mapping[str, Any]) -> list[str]:
    """The model's keys for the variables that an optimizer knows by keys of its own."""
    key_of = _key_function(part)
    names = {}
    for key, variable in model.items():
        with contextlib.suppress(AttributeError):  # a variable of another Keras
            names[key_of(variable)] = key
    return [names.get(one, f"{OUTSIDE_MODEL}{number}") for number, one in enumerate(known)]


def _key_function(part: Any) -> Callable[[Any], Any]:
    """Keras' function for the key of a variable: a method, or for legacy optimizers a function beside the
    class."""
    method: Callable[[Any], Any] | None = getattr(part, "_var_key", None)
    if method is not None:
        return method
    modules = [sys.modules[base.__module__] for base in type(part).__mro__]
    found: Callable[[Any], Any] = next(one._var_key for one in modules if hasattr(one, "_var_key"))
    return found


def accumulators_of(optimizer: Any) -> set[int]:
    """The identities of Keras 3's sums of gradients since the last update."""
    return {
        id(plain_variable(variable))
        for part in with_inner(optimizer)
        for variable in getattr(part, "_accumulated_gradients", None) or ()
    }


def calls_of(optimizer: Any) -> Any:
    """The variable that counts the optimizer's calls, or None. Loss scaling leaves calls out."""
    inner = with_inner(optimizer)[-1]
    # Keras 3's property counts the updates that several calls make.
    calls = getattr(inner, "_iterations", None)
    return getattr(inner, "iterations", None) if calls is None else calls


def built_for(optimizer: Any, model: Mapping[str, Any], local: Sequence[Any] = ()) -> list[str] | None:
    """The keys of the model's variables that the optimizer has slots for, in its order, without `local`. The
    key of a variable outside of the model begins with OTHER. None: it is not built, or an optimizer of
    TensorFlow 1."""
    outer, inner = with_inner(optimizer)[0], with_inner(optimizer)[-1]
    if is_legacy(inner):
        known = _without(inner, inner._slots, local)
        return sorted(_named(inner, known, model)) or None  # their order means nothing
    indices = getattr(outer, "_trainable_variables_indices", None)  # Keras 3
    if indices is not None:
        return _named(outer, _without(outer, indices, local), model) if outer.built else None
    indices = getattr(inner, "_index_dict", None)  # Keras 2
    return None if indices is None else _named(inner, _without(inner, indices, local), model)


def settings_of(optimizer: Any) -> dict[str, str]:
    """Returns, by name, what cannot be sent since it is no variable: classes, schedules, hyperparameters."""
    found: dict[str, str] = {}
    for part in with_inner(optimizer):
        kind = type(part).__name__
        found[f"the class {kind}"] = "used"
        with contextlib.suppress(
            AttributeError, NotImplementedError
        ):  # TensorFlow 1, optimizers of one's own
            for name, value in part.get_config().items():
                text = _value_text(name, value, getattr(part, "_hyper", {}))
                if text is not None:
                    found[f"{name} of {kind}"] = text
    return found


def _value_text(name: str, value: Any, hyper: Mapping[str, Any]) -> str | None:
    if name == "learning_rate" and isinstance(value, dict):  # a schedule
        return json.dumps(value, sort_keys=True, default=lambda other: type(other).__name__)
    if name in hyper or name in _MAY_DIFFER or not isinstance(value, (bool, int, float, str, type(None))):
        return None
    return repr(value)


def build(optimizer: Any, variables: Sequence[Any], model: Any) -> None:
    """Creates the slots for these variables of the model, outside of the traced function, for all its
    replicas."""
    inner = with_inner(optimizer)[-1]
    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
    with strategy.scope(), tf.init_scope():
        if is_legacy(inner):
            inner._create_all_weights(list(variables))
        else:
            optimizer.build(list(variables))
