"""Keras 3 with asynchronous parameter servers: these apply the optimizer's updates. It pushes gradients and
takes the fresh values; its own variables hold the servers' state when a model is saved."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from rdmacoll.engine import library as abi
from rdmacoll.engine.errors import ConfigError
from rdmacoll.engine.operators import ReduceOp
from rdmacoll.engine.process_set import global_process_set
from rdmacoll.engine.ps_session import Array, State
from rdmacoll.ops import servers
from rdmacoll.ops._library import not_converted, typed_errors
from rdmacoll.optimizer import keras3
from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.subclass import subclass
from rdmacoll.ps.calls import current
from rdmacoll.ps.rules import rule_of

# Options of DistributedOptimizer that say how ranks reduce gradients, which they do not here.
_UNUSED: Mapping[str, Any] = {
    "op": ReduceOp.AVERAGE,
    "prescale_factor": 1.0,
    "postscale_factor": 1.0,
    "compression": None,
    "sparse_as_dense": False,
    "bucket_bytes": None,
    "backward_passes_per_step": 1,
    "average_aggregated_gradients": False,
    "process_set": global_process_set,
}
_FIXED_RATE = (
    "the learning rate of an optimizer that asynchronous parameter servers apply cannot be changed after its "
    "first step: they have it already. Give the optimizer a schedule of Keras."
)
# Where Keras' optimizers keep their slots.
_KEPT_IN = {
    "momentum": ("momentums", "_momentums"),
    "velocity": ("_velocities",),
    "velocity_hat": ("_velocity_hats",),
    "average_gradient": ("_average_gradients",),
    "accumulator": ("_accumulators",),
}


class Exchange:
    """One optimizer's variables at the servers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buckets: list[Any] = []  # none: each step is one request to each server
        self._names: dict[Any, str] = {}  # of declared variables, by Keras' key; in their order
        self._variables: dict[str, Any] = {}
        self._by_rows: set[str] = set()
        self._rate: Any = None  # that of the servers, where it is a number
        self._set_at = -1  # the worker's steps when its program last set a variable
        self._assigns = False  # we do, and not the program
        self._saves = False

    def options(self) -> dict[str, Any]:
        """What makes another one like this."""
        return {"name": self.name}

    @property
    def is_declared(self) -> bool:
        """Whether the servers have the variables, and the optimizer's numbers."""
        return bool(self._names)

    @not_converted
    def step(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Pushes gradients, and assigns the fresh values."""
        with tf.init_scope():
            self._declare(optimizer, gradients, variables)
        self._check_rate(optimizer)
        names = [self._names[optimizer._var_key(variable)] for variable in variables]
        pushed = [
            gradient if name in self._by_rows else tf.convert_to_tensor(gradient)
            for gradient, name in zip(gradients, names)
        ]
        fresh = servers.exchange(pushed, names)
        with self._assigning():
            for variable, value in zip(variables, fresh):
                optimizer.assign(variable, value)

    def _declare(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """At the first step: all variables of the optimizer; by rows, those whose gradients come so."""
        if self._names:
            return
        sparse = {
            optimizer._var_key(variable)
            for gradient, variable in zip(gradients, variables)
            if isinstance(gradient, tf.IndexedSlices)
        }
        mine = list(optimizer._trainable_variables)
        rule = rule_of(optimizer, mine)
        names = _names_of(mine)
        for name in names:
            if current().has(name):
                raise ConfigError(
                    f"variable {name!r} is at the servers already, with the optimizer of its first step, "
                    "which stays: go on with that one (compile(optimizer=model.optimizer)), or name layers "
                    "otherwise."
                )
        self._variables = dict(zip(names, mine))
        self._by_rows = {name for name, one in self._variables.items() if optimizer._var_key(one) in sparse}
        spared = [name for name, one in self._variables.items() if not optimizer._use_weight_decay(one)]
        arrays = _arrays_of(self._variables)
        updates = int(optimizer._iterations.numpy())  # servers know how slots begin
        state = State(updates, [_arrays_of(one) for one in self._slots(optimizer)] if updates else [])
        current().declare(arrays, rule.text, sorted(self._by_rows), spared, None, state)
        _assign(self._variables, arrays)
        for variable in mine:
            self._notice(optimizer, variable)
        self._names = {optimizer._var_key(variable): name for name, variable in self._variables.items()}
        self._rate = getattr(optimizer._learning_rate, "numpy", lambda: None)()

    def _check_rate(self, optimizer: Any) -> None:
        """In the graph: `optimizer.learning_rate.assign` asks nobody."""
        if self._rate is None:  # a schedule
            return
        rate = tf.convert_to_tensor(optimizer._learning_rate)
        with typed_errors():
            tf.debugging.assert_equal(rate, self._rate, message=f"ConfigError: {_FIXED_RATE} [rdmacoll {{}}]")

    def _slots(self, optimizer: Any) -> list[dict[str, Any]]:
        """The optimizer's variables for each slot of the servers, in their order."""
        found = []
        for slot in rule_of(optimizer).slot_names():
            kept = next(getattr(optimizer, name) for name in _KEPT_IN[slot] if hasattr(optimizer, name))
            indices = {name: optimizer._get_variable_index(one) for name, one in self._variables.items()}
            found.append({name: kept[index] for name, index in indices.items()})
        return found

    def _notice(self, optimizer: Any, variable: Any) -> None:
        """Keeps in mind when the program sets a variable."""
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
        """All variables are as the servers have them: rows too that this worker has not pushed."""
        if self._names:
            with self._assigning():
                _pull(self._variables)
            self._set_at = -1

    def pull_values_to_save(self, optimizer: Any) -> None:
        """The same, but for values that the program has set after its last step: those are what it saves.
        EarlyStopping restores the best ones so."""
        if self._set_at != int(optimizer._iterations.numpy()):
            self.pull_values()

    @contextlib.contextmanager
    def state_to_save(self, optimizer: Any) -> Iterator[None]:
        """The optimizer's slots are the servers', and meanwhile its counter is their count of updates: then
        this worker's own again."""
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


class Served(Copied):
    """Mixed in before the optimizer's own class; `_rdmacoll_reduce` is set on the dynamic subclass."""

    _rdmacoll_reduce: Exchange  # type: ignore[assignment]

    def build(self, variables: Any) -> None:
        """As of the plain optimizer, outside of what is traced: servers begin with what is here."""
        with tf.init_scope():
            super().build(variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        # Instead of clipping, weight decay and the update: servers do that.
        self._rdmacoll_reduce.step(self, grads, trainable_variables)

    def finalize_variable_values(self, var_list: Any) -> None:
        """At the end of `fit`."""
        self._rdmacoll_reduce.pull_values()

    def save_own_variables(self, store: Any) -> None:
        """The servers' state, as the plain optimizer has its own."""
        with self._rdmacoll_reduce.state_to_save(self):
            super().save_own_variables(store)  # type: ignore[misc]

    @property
    def learning_rate(self) -> Any:
        """As of the plain optimizer."""
        return super().learning_rate  # type: ignore[misc]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._rdmacoll_reduce.is_declared and not _is_equal(value, self.learning_rate):
            raise ConfigError(_FIXED_RATE)
        super(Served, type(self)).learning_rate.fset(self, value)  # type: ignore[misc]


def wrap(optimizer: Any, family: Any, name: str, options: Mapping[str, Any]) -> None:
    """Swaps the class of `optimizer`, or of what loss scaling has inside. Raises ConfigError for what servers
    cannot apply."""
    if family is not keras3:
        raise ConfigError(
            f"asynchronous parameter servers apply optimizers of Keras 3, not {type(optimizer).__name__} of "
            f"{type(optimizer).__module__}: use one of those, or sync=True."
        )
    for option, value in options.items():
        if option in _UNUSED and value != _UNUSED[option]:
            raise ConfigError(
                f"DistributedOptimizer({option}={value!r}) with asynchronous parameter servers, where each "
                "push is applied by itself and nothing is reduced: leave it out, or use sync=True."
            )
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    rule_of(optimizer)
    plain = type(optimizer)
    served = subclass(plain, Served, Exchange(name))
    keras3.save_as(plain, served)
    keras3.patch_jit()
    _patch_saving()
    optimizer.__class__ = served


def _patch_saving() -> None:
    """A model that is saved in the middle of its training holds what the servers have."""
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.models.model import Model
    from keras.src.saving import saving_lib

    # What `Model.save` and `keras.models.save_model` have in common.
    places: list[tuple[Any, str]] = [(saving_lib, "save_model"), (legacy_h5_format, "save_model_to_hdf5")]
    for place, name in [*places, (Model, "save_weights")]:
        plain: Callable[..., Any] = getattr(place, name)
        if not getattr(plain, "is_rdmacoll", False):
            setattr(place, name, _after_pulling(plain, has_state=place is not Model))


def _after_pulling(plain: Callable[..., Any], *, has_state: bool) -> Callable[..., Any]:
    @functools.wraps(plain)
    def save(model: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = getattr(model, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(optimizer, Served):
            return plain(model, *args, **kwargs)
        exchange = optimizer._rdmacoll_reduce
        exchange.pull_values_to_save(optimizer)
        with exchange.state_to_save(optimizer) if has_state else contextlib.nullcontext():
            return plain(model, *args, **kwargs)

    save.is_rdmacoll = True  # type: ignore[attr-defined]
    return save


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(np.float32(one) == np.float32(other))
    except (TypeError, ValueError):
        return one is other


def _names_of(variables: Sequence[Any]) -> list[str]:
    """The same on all workers: paths, with a number behind those that come again."""
    counts: dict[str, int] = {}
    names = []
    for variable in variables:
        path = str(getattr(variable, "path", None) or variable.name)
        counts[path] = counts.get(path, 0) + 1
        names.append(path if counts[path] == 1 else f"{path}#{counts[path]}")
    return names


def _arrays_of(variables: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.array(variable.numpy(), order="C") for name, variable in variables.items()}


def _assign(variables: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _pull(variables: Mapping[str, Any], slot: int = 0) -> None:
    arrays = {name: np.empty(one.shape, one.dtype) for name, one in variables.items()}
    current().move(abi.PS_PULL, arrays, slot=slot)
    _assign(variables, arrays)
