"""An optimizer at asynchronous parameter servers: its steps, its slots, and values that its program sets."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll._abi import mirror
from rdmacoll._abi.arguments import Array
from rdmacoll._ps.session import State
from rdmacoll.errors import ConfigError
from rdmacoll.ops._labels import path_of
from rdmacoll.ops._library import not_converted
from rdmacoll.optimizer import server_requests
from rdmacoll.optimizer.buckets import Bucket, checked_bucket_bytes
from rdmacoll.ps.calls import current
from rdmacoll.ps.rules import Rule, rule_of

# The attributes in which Keras' optimizers keep their slots.
_SLOT_ATTRIBUTES = {
    "momentum": ("momentums", "_momentums"),
    "velocity": ("_velocities",),
    "velocity_hat": ("_velocity_hats",),
    "average_gradient": ("_average_gradients",),
    "accumulator": ("_accumulators",),
}


class Exchange:
    """The variables of one optimizer at the servers."""

    def __init__(self, name: str, bucket_bytes: int | None = None) -> None:
        """bucket_bytes: replaces RDMACOLL_BUCKET_BYTES, unless it is None."""
        self.name = name
        self.bucket_bytes = checked_bucket_bytes(bucket_bytes)
        self.buckets: list[Bucket] = []  # the requests of the last step; none: one for all gradients
        self._names: dict[Any, str] = {}  # declared names by Keras' key, in the order of declaration
        self._variables: dict[str, Any] = {}
        self.built_for: list[Any] = []  # the optimizer's variables, if it does not keep them itself
        self._by_rows: set[str] = set()
        self._set_at = -1  # the worker's steps when its program last set a variable
        self._assigns = False  # this class assigns, not the program
        self._saves = False

    def options(self) -> dict[str, Any]:
        """The arguments that create an exchange like this one."""
        return {"name": self.name, "bucket_bytes": self.bucket_bytes}

    @property
    def is_declared(self) -> bool:
        """Whether the servers have the variables, and the optimizer's numbers."""
        return bool(self._names)

    @not_converted
    def step(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Pushes gradients, and assigns the fresh values."""
        with tf.init_scope():
            self._declare(optimizer, gradients, variables)
        names = [self._names[optimizer._var_key(variable)] for variable in variables]
        pushed = [
            gradient if name in self._by_rows else tf.convert_to_tensor(gradient)
            for gradient, name in zip(gradients, names)
        ]
        fresh, self.buckets = server_requests.exchange(pushed, names, _rate_of(optimizer), self.bucket_bytes)
        with self._assigning():
            for variable, value in zip(variables, fresh):
                getattr(optimizer, "assign", _assign_one)(variable, value)

    def _declare(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Declares all variables of the optimizer at the first step. Variables with sparse gradients are
        declared by rows."""
        if self._names:
            return
        sparse = {
            optimizer._var_key(variable)
            for gradient, variable in zip(gradients, variables)
            if isinstance(gradient, tf.IndexedSlices)
        }
        own_variables = self.built_for or list(optimizer._trainable_variables)
        rule = worker_rule(optimizer, own_variables)
        names = _names_of(own_variables)
        for name in names:
            if current().has(name):
                raise ConfigError(
                    f"variable {name!r} is at the servers already, with the optimizer of its first step: "
                    "continue with that optimizer (compile(optimizer=model.optimizer)), or give the layers "
                    "other names."
                )
        self._variables = dict(zip(names, own_variables))
        self._by_rows = {name for name, one in self._variables.items() if optimizer._var_key(one) in sparse}
        without_decay = [
            name for name, one in self._variables.items() if not optimizer._use_weight_decay(one)
        ]
        arrays = _arrays_of(self._variables)
        updates = int(optimizer._iterations.numpy())  # before any update the servers know the initial slots
        state = State(updates, [_arrays_of(one) for one in self._slots(optimizer)] if updates else [])
        current().declare(arrays, rule.text, sorted(self._by_rows), without_decay, None, state)
        _assign(self._variables, arrays)
        for variable in own_variables:
            self._notice(optimizer, variable)
        self._names = {optimizer._var_key(variable): name for name, variable in self._variables.items()}

    def _slots(self, optimizer: Any) -> list[dict[str, Any]]:
        """The optimizer's variables for each slot of the servers, in their order."""
        found = []
        for slot in worker_rule(optimizer).slot_names():
            slot_variables = next(
                getattr(optimizer, name) for name in _SLOT_ATTRIBUTES[slot] if hasattr(optimizer, name)
            )
            indices = {name: _index_in(optimizer, one) for name, one in self._variables.items()}
            found.append({name: slot_variables[index] for name, index in indices.items()})
        return found

    def _notice(self, optimizer: Any, variable: Any) -> None:
        """Notes the worker's step whenever the program sets a variable."""
        plain = variable.assign

        @functools.wraps(plain)
        def assign(*args: Any, **kwargs: Any) -> Any:
            if not self._assigns and not tf.inside_function():
                self._set_at = int(optimizer._iterations.numpy())
            return plain(*args, **kwargs)

        variable.assign = assign

    @contextlib.contextmanager
    def _assigning(self) -> Iterator[None]:
        self._assigns = True
        try:
            yield
        finally:
            self._assigns = False

    def pull_values(self) -> None:
        """Sets all variables to the servers' values, including rows that this worker has not pushed."""
        if self._names:
            with self._assigning():
                _pull(self._variables)
            self._set_at = -1

    def pull_values_to_save(self, optimizer: Any) -> None:
        """Like `pull_values`, unless the program has set a variable after its last step. Then the program
        saves its own values, as EarlyStopping does when it restores the best ones."""
        if self._set_at != int(optimizer._iterations.numpy()):
            self.pull_values()

    @contextlib.contextmanager
    def state_to_save(self, optimizer: Any) -> Iterator[None]:
        """Sets the optimizer's slots to the servers', and its counter to their count of updates. At the
        end the counter gets this worker's own count again."""
        if self._saves or not self._names:
            yield
            return
        for slot, variables in enumerate(self._slots(optimizer), 1):
            _pull(variables, slot)
        steps = optimizer._iterations.numpy()
        optimizer._iterations.assign(current().updates(list(self._variables)))
        self._saves = True
        try:
            yield
        finally:
            self._saves = False
            optimizer._iterations.assign(steps)


def worker_rule(optimizer: Any, variables: Sequence[Any] = ()) -> Rule:
    """The rule of an optimizer whose worker clips gradients before it pushes them. Raises ConfigError."""
    return rule_of(optimizer, variables, is_clipped=True)


def _rate_of(optimizer: Any) -> Any:
    """The learning rate of a push: the number that the program has set, or None for a schedule. The
    servers have the schedule, since it counts the updates of all workers."""
    rate = optimizer._learning_rate
    return tf.convert_to_tensor(rate) if hasattr(rate, "numpy") else None


def _names_of(variables: Sequence[Any]) -> list[str]:
    """Names that are the same on all workers: paths, with a number after a path that repeats."""
    counts: dict[str, int] = {}
    names = []
    for variable in variables:
        path = path_of(variable)
        counts[path] = counts.get(path, 0) + 1
        names.append(path if counts[path] == 1 else f"{path}#{counts[path]}")
    return names


def _arrays_of(variables: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.array(variable.numpy(), order="C") for name, variable in variables.items()}


def _assign(variables: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _assign_one(variable: Any, value: Any) -> None:
    """Assigns as Keras 3's optimizers do."""
    if isinstance(value, tf.IndexedSlices):
        variable.scatter_update(value)
    else:
        variable.assign(value)


def _index_in(optimizer: Any, variable: Any) -> int:
    """The index of a variable's slots."""
    if hasattr(optimizer, "_get_variable_index"):
        return int(optimizer._get_variable_index(variable))
    return int(optimizer._index_dict[optimizer._var_key(variable)])


def _pull(variables: Mapping[str, Any], slot: int = 0) -> None:
    arrays = {
        name: np.empty(tuple(one.shape), tf.as_dtype(one.dtype).as_numpy_dtype)
        for name, one in variables.items()
    }
    current().move(mirror.PS_PULL, arrays, slot=slot)
    _assign(variables, arrays)
