"""Keras with asynchronous parameter servers, which apply the optimizer's updates. The optimizer pushes
gradients and receives fresh values. Its own variables hold the servers' state when a model is saved."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow as tf

from rdmacoll.errors import ConfigError
from rdmacoll.operators import ReduceOp
from rdmacoll.ops.compression import Compression
from rdmacoll.optimizer import keras2, keras3, server_updates_v1, v1
from rdmacoll.optimizer.server_exchange import Exchange, worker_rule
from rdmacoll.optimizer.subclass import subclass
from rdmacoll.optimizer.wrapped_copies import WrappedCopies
from rdmacoll.process_set import global_process_set

# Options of DistributedOptimizer about the reduction between ranks, which does not happen here.
_UNUSED: Mapping[str, Any] = {
    "op": ReduceOp.AVERAGE,
    "prescale_factor": 1.0,
    "postscale_factor": 1.0,
    "compression": None,
    "sparse_as_dense": False,
    "backward_passes_per_step": 1,
    "average_aggregated_gradients": False,
    "process_set": global_process_set,
}


class ServerUpdates(WrappedCopies):
    """Mixed in before the optimizer's own class; `_rdmacoll_reduce` is set on the dynamic subclass."""

    _rdmacoll_reduce: Exchange  # type: ignore[assignment]

    def finalize_variable_values(self, var_list: Any) -> None:
        """Pulls the values at the end of `fit`. Keras 2 restores the best weights before it calls this."""
        self._rdmacoll_reduce.pull_values_to_save(self)

    def save_own_variables(self, store: Any) -> None:
        """Saves the servers' state, as the plain optimizer saves its own."""
        with self._rdmacoll_reduce.state_to_save(self):
            super().save_own_variables(store)  # type: ignore[misc]

    @property
    def learning_rate(self) -> Any:
        """The plain optimizer's learning rate."""
        return super().learning_rate  # type: ignore[misc]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._rdmacoll_reduce.is_declared and callable(value):
            raise ConfigError(
                "the learning-rate schedule of an optimizer with asynchronous parameter servers cannot "
                "change after its first step: the servers count by the first schedule. Set the schedule "
                "before the first step, or begin with a number and set numbers."
            )
        super(ServerUpdates, type(self)).learning_rate.fset(self, value)  # type: ignore[misc]


class ServerUpdatesKeras3(ServerUpdates):
    """An optimizer of Keras 3."""

    def build(self, variables: Any) -> None:
        """Builds as the plain optimizer does, outside of the traced function: the servers begin with the
        values of this process."""
        with tf.init_scope():
            super().build(variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        # Replaces weight decay and the update, which the servers do.
        self._rdmacoll_reduce.step(self, _clipped(self, grads), trainable_variables)


class ServerUpdatesKeras2(ServerUpdates):
    """An optimizer of Keras 2. It clips, and sums rows of the same index, before it calls these methods."""

    def build(self, var_list: Any) -> None:
        """Builds as the plain optimizer does, and notes the variables."""
        super().build(var_list)  # type: ignore[misc]
        if not self._rdmacoll_reduce.built_for:
            self._rdmacoll_reduce.built_for = list(var_list)

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Returns the pairs as they are: nothing is reduced."""
        return grads_and_vars

    def _apply_weight_decay(self, variables: Any) -> None:
        """Does nothing: the servers apply weight decay."""

    def _internal_apply_gradients(self, grads_and_vars: Any) -> Any:
        gradients, variables = zip(*grads_and_vars)
        self._rdmacoll_reduce.step(self, gradients, variables)
        return self._iterations.assign_add(1)  # type: ignore[attr-defined]


def wrap(optimizer: Any, family: Any, name: str, options: Mapping[str, Any]) -> None:
    """Changes the class of `optimizer`, or of the optimizer inside of loss scaling. Raises ConfigError for
    options and optimizers that servers cannot apply."""
    for option, value in options.items():
        value = None if value is Compression.none else value
        if option in _UNUSED and value != _UNUSED[option]:
            raise ConfigError(
                f"DistributedOptimizer({option}={value!r}) has no meaning with asynchronous parameter "
                "servers, which apply each push by itself: leave it out, or use sync=True."
            )
    bucket_bytes = options.get("bucket_bytes")
    if family is v1:
        return server_updates_v1.wrap(optimizer, name, bucket_bytes)
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    worker_rule(optimizer)
    if family is keras2:
        keras2.refuse_graphs(optimizer)
    plain = type(optimizer)
    subclassed = subclass(
        plain,
        ServerUpdatesKeras3 if family is keras3 else ServerUpdatesKeras2,
        Exchange(name, bucket_bytes),
    )
    if family is keras3:
        keras3.save_as(plain, subclassed)
        keras3.patch_jit()
        _patch_saving("keras.src", _SAVES_IN_KERAS_3)
    else:
        package = next(
            name for name in ("tf_keras", "keras") if any(name in one.__module__ for one in plain.__mro__)
        )
        _patch_saving(f"{package}.src", _SAVES_IN_KERAS_2)
    optimizer.__class__ = subclassed
    return None


# `Model.save` and `keras.models.save_model` use these: modules, with the name of a function or of a method of
# Model.
_SAVES_IN_KERAS_3 = {
    "saving.saving_lib": "save_model",
    "legacy.saving.legacy_h5_format": "save_model_to_hdf5",
    "models.model": "save_weights",
}
_SAVES_IN_KERAS_2 = {
    "saving.saving_lib": "save_model",
    "saving.legacy.save": "save_model",
    "engine.training": "save_weights",
}


def _patch_saving(package: str, saves: Mapping[str, str]) -> None:
    """Patches the functions that save a model, so that a file of an unfinished training holds the servers'
    values."""
    for module, name in saves.items():
        model_class: Any = importlib.import_module(f"{package}.{module}")
        if name == "save_weights":
            model_class = model_class.Model
        plain: Callable[..., Any] = getattr(model_class, name)
        if not getattr(plain, "is_rdmacoll", False):
            setattr(model_class, name, _after_pulling(plain, has_state=name != "save_weights"))


def _after_pulling(plain: Callable[..., Any], *, has_state: bool) -> Callable[..., Any]:
    @functools.wraps(plain)
    def save(model: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = getattr(model, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(optimizer, ServerUpdates):
            return plain(model, *args, **kwargs)
        exchange = optimizer._rdmacoll_reduce
        exchange.pull_values_to_save(optimizer)
        with exchange.state_to_save(optimizer) if has_state else contextlib.nullcontext():
            return plain(model, *args, **kwargs)

    save.is_rdmacoll = True  # type: ignore[attr-defined]
    return save


def _clipped(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """Clips as the optimizer clips its own gradients, which needs no other rank. Slices stay slices, whose
    values it squares one by one."""
    clipped = optimizer._clip_gradients([getattr(one, "values", one) for one in gradients])
    return [
        tf.IndexedSlices(values, one.indices, one.dense_shape)
        if isinstance(one, tf.IndexedSlices)
        else values
        for one, values in zip(gradients, clipped)
    ]
