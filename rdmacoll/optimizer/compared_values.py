"""The values that have to be equal on all ranks: which ones, in which order, and their fingerprints.

Scalars of the optimizer come first (counts, learning rates), since different rates cause different weights.
Weights follow, then slots. Gradient accumulators, states of seed generators, metrics, and variables of
`declare_local` are left out. Non-trainable variables are `states`: batch normalisation keeps different
statistics on each rank.
"""

from __future__ import annotations

import contextlib
import itertools
import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rdmacoll._abi.arguments import Array
from rdmacoll.errors import ConfigError
from rdmacoll.ops._baselines import fingerprint_of, is_numeric, read, tf_variable
from rdmacoll.ops._labels import path_of
from rdmacoll.optimizer import with_inner

_LOCAL = "_rdmacoll_is_local"
_SEED_STATES = ("StateVar", "seed_generator_state")


class Entry(NamedTuple):
    """One value: a `tf.Variable`, a number, or a schedule with the count that is its argument."""

    label: str
    source: Any
    step: Any = None


def declare_local(variables: Iterable[Any]) -> None:
    """Declares that each rank has its own values of these variables. `check_weights` and the checks of
    wrapped optimizers leave them out. Gradients and broadcasts stay as they are.

    variables: `tf.Variable` or `keras.Variable` objects. Raises ConfigError for anything else.
    """
    for variable in variables:
        if not hasattr(variable, "assign"):
            raise ConfigError(f"declare_local() takes variables, not a {type(variable).__name__}.")
        setattr(tf_variable(variable), _LOCAL, True)


def weights_of(model: Any) -> list[Any]:
    """The trainable variables of a model, of a `tf.Module`, or of a list of variables. Raises ConfigError."""
    for name in ("trainable_weights", "trainable_variables"):
        found = _listed(model, name)
        if found is not None:
            return found
    found = list(model) if isinstance(model, Iterable) else [model]
    for one in found:
        if not hasattr(one, "assign"):
            raise ConfigError(
                "check_weights() takes a Keras model, a tf.Module or a list of variables, not "
                f"{'' if one is model else 'a list with '}{type(one).__name__}."
            )
    return found


def states_of(model: Any) -> list[Any]:
    """The non-trainable variables of a model, without metrics, seeds, and variables of unknown shape,
    which grow."""
    metrics = {id(tf_variable(one)) for metric in getattr(model, "metrics", []) for one in metric.variables}
    found = _listed(model, "non_trainable_weights") or []
    return [
        one
        for one in found
        if id(tf_variable(one)) not in metrics
        and not any(name in short_path(one) for name in _SEED_STATES)
        and tf.TensorShape(one.shape).is_fully_defined()
    ]


def _listed(model: Any, name: str) -> list[Any] | None:
    """A list of variables of the model, or None if it has no such list. Keras 2 raises ValueError before a
    model is built."""
    try:
        found = getattr(model, name, None)
    except ValueError:
        layers = getattr(model, "layers", [])
        return [one for layer in layers for one in _listed(layer, name) or []]
    return None if found is None else list(found)


def short_path(variable: Any) -> str:
    """The name of a variable in messages."""
    return path_of(variable).removesuffix(":0")


def entries_of(weights: Sequence[Any], optimizer: Any) -> list[Entry]:
    """The entries to compare: of an optimizer (or None) and of the variables that it trains."""
    parts = [] if optimizer is None else with_inner(optimizer)
    accumulators = {
        id(tf_variable(one)) for part in parts for one in getattr(part, "_accumulated_gradients", None) or []
    }
    local = [one for one in weights if is_local(one)]  # their gradients differ between ranks
    own_slots = {id(tf_variable(one)) for part in parts for one in slots_of(part, local)}
    seen = {id(tf_variable(one)) for one in weights} | accumulators | own_slots
    of_optimizer: list[Entry] = []
    for part in parts:
        for entry in [*_variables_of(part, weights), *_rates_of(part)]:
            if id(entry.source) not in seen:
                seen.add(id(entry.source))
                of_optimizer.append(entry)
    scalars = [entry for entry in of_optimizer if _is_scalar(entry.source)]
    slots = [entry for entry in of_optimizer if not _is_scalar(entry.source)]
    return [*scalars, *variable_entries(weights), *[entry for entry in slots if is_compared(entry.source)]]


def variable_entries(variables: Iterable[Any]) -> list[Entry]:
    """The entries to compare for a list of variables."""
    found = [Entry(short_path(one), tf_variable(one)) for one in variables]
    return [entry for entry in found if is_compared(entry.source)]


def is_compared(variable: Any) -> bool:
    """Whether a `tf.Variable` has numbers that are to be equal on all ranks."""
    return is_numeric(variable) and not getattr(variable, _LOCAL, False)


def is_local(variable: Any) -> bool:
    """Whether each rank has its own values of this variable, as `declare_local` says."""
    return bool(getattr(tf_variable(variable), _LOCAL, False))


def slots_of(part: Any, own: Sequence[Any]) -> Iterator[Any]:
    """The slots of these variables in an optimizer, which has no others inside."""
    if not own:
        return
    if hasattr(type(part), "get_slot_names"):  # TensorFlow 1, and legacy optimizers of Keras 2
        for weight, name in itertools.product(own, part.get_slot_names()):
            with contextlib.suppress(KeyError):  # no slots before the first update
                if (slot := part.get_slot(weight, name)) is not None:
                    yield slot
        return
    # Keras keeps each kind of slot in a list, which has the order of the weights.
    places = getattr(part, "_trainable_variables_indices", None) or getattr(part, "_index_dict", None) or {}
    found = [places[part._var_key(one)] for one in own if part._var_key(one) in places]
    for name, kind in vars(part).items():
        if name != "_variables" and isinstance(kind, Sequence) and len(kind) == len(places):
            yield from (kind[place] for place in found if hasattr(kind[place], "assign"))


def _is_scalar(source: Any) -> bool:
    shape = getattr(source, "shape", None)
    return shape is None or shape.rank == 0


def _variables_of(part: Any, weights: Sequence[Any]) -> list[Entry]:
    if hasattr(type(part), "_create_hypers"):  # a legacy optimizer of Keras 2
        return [Entry(short_path(one), tf_variable(one)) for one in _of_legacy(part, weights)]
    variables: Any = getattr(part, "variables", [])
    # A method in TensorFlow 1.
    found = list(variables() if callable(variables) and not isinstance(variables, list) else variables)
    return [Entry(short_path(one), tf_variable(one)) for one in found]


def _of_legacy(part: Any, weights: Sequence[Any]) -> list[Any]:
    """The variables by weight and slot. The optimizer's own list has the order of its file after a
    restore."""
    if hasattr(part, "_optimizer"):  # loss scaling: its list is that of the inner optimizer
        return []
    found = [part.iterations]
    for weight in weights:
        for name in sorted(part.get_slot_names()):
            with contextlib.suppress(KeyError):  # no slots before the first update
                found.append(part.get_slot(weight, name))
    return found


def _rates_of(part: Any) -> list[Entry]:
    """Learning rates that are not variables of the optimizer, and the other numbers of legacy optimizers."""
    rates = {name: getattr(part, name, None) for name in ("_learning_rate", "_lr")}
    rates |= getattr(part, "_hyper", None) or {}
    found = []
    for name, rate in rates.items():
        label = f"{getattr(part, 'name', type(part).__name__)}/{name.lstrip('_')}"
        if hasattr(rate, "assign"):
            found.append(Entry(label, tf_variable(rate)))
        elif callable(rate):
            found.append(Entry(label, rate, getattr(part, "iterations", None)))
        elif isinstance(rate, numbers.Real):
            found.append(Entry(label, rate))
    return found


def values_of(entries: Sequence[Entry], session: Any = None) -> list[Array]:
    """The values of the entries, without copies if possible: nobody assigns to the variables meanwhile.
    session: that of a graph of TensorFlow 1."""
    if session is not None:
        fetched = session.run([entry.source for entry in entries if _is_variable(entry.source)])
        found = iter(fetched)
        return [
            np.asarray(next(found) if _is_variable(entry.source) else _number(entry, session))
            for entry in entries
        ]
    return [
        read(entry.source) if _is_variable(entry.source) else np.asarray(_number(entry)) for entry in entries
    ]


def _is_variable(source: Any) -> bool:
    return hasattr(source, "assign")


def _number(entry: Entry, session: Any = None) -> Any:
    if not callable(entry.source):
        return np.float64(entry.source)
    # A schedule of Keras takes a step as its argument; a function of the program takes none.
    rate = entry.source(entry.step) if hasattr(entry.source, "get_config") else entry.source()
    if session is not None:
        return session.run(rate) if tf.is_tensor(rate) else np.asarray(rate)
    return rate.numpy() if hasattr(rate, "numpy") else np.asarray(rate)


def fingerprints(values: Sequence[Array]) -> Array:
    """One 64-bit number for the bytes of each array."""
    return np.array([fingerprint_of(value) for value in values], np.uint64)


def structure_of(values: Sequence[Array]) -> int:
    """A hash of the dtypes and shapes alone."""
    text = ";".join(f"{value.dtype.char}{value.shape}" for value in values)  # `name` is slow
    return fingerprint_of(np.frombuffer(text.encode() + b";", np.uint8))
