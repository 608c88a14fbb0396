"""Patches of Keras's `fit`. It gets one more callback, after all others, which communicates nothing."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Callable

import tensorflow as tf

from rdmacoll.optimizer import fit_state, update_check
from rdmacoll.optimizer.fit_state import FitState, wrapped_optimizers
from rdmacoll.optimizer.plain_training import PlainTraining, watch
from rdmacoll.optimizer.stop_cause import note_begin, note_end

# By model: the optimizers that were wrapped when Keras made its train function.
_TRACED: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()
# The classes that have `fit`, by package and version of Keras.
_FIT_CLASSES = {
    3: [("backend.tensorflow.trainer", "TensorFlowTrainer")],
    2: [("engine.training", "Model"), ("engine.training_v1", "Model")],
}


def install(package: str, version: int) -> None:
    """Patches `fit` of this Keras, so that every call is noticed. package: "keras" or "tf_keras"."""
    for module, name in _FIT_CLASSES[version]:
        model_class = getattr(importlib.import_module(f"{package}.src.{module}"), name)
        _install(package, model_class)
        _renew_train_functions(model_class, switches_jit_off=version == 3)


def install_everywhere() -> None:
    """Patches `fit` of each Keras that the program has imported and that trains with TensorFlow."""
    for package in ("keras", "tf_keras"):
        keras = sys.modules.get(package)
        version = str(getattr(keras, "__version__", "")).partition(".")[0]
        if version == "2" or (version == "3" and keras.backend.backend() == "tensorflow"):  # type: ignore[union-attr]
            install(package, int(version))


def _renew_train_functions(model_class: Any, *, switches_jit_off: bool) -> None:
    """Patches `make_train_function`. Keras keeps a train function until the next `compile`. A function that
    was traced with a plain optimizer would go on without reductions after the optimizer is wrapped. So it is
    made again.

    switches_jit_off: makes it without XLA, if `compile` has chosen XLA for a plain optimizer.
    """
    plain: Callable[..., Any] | None = getattr(model_class, "make_train_function", None)
    if plain is None or getattr(plain, "is_rdmacoll", False):
        return

    @functools.wraps(plain)
    def make_train_function(self: Any, force: bool = False) -> Any:
        optimizers = weakref.WeakSet(wrapped_optimizers(self))
        is_old = self.train_function is not None and not optimizers <= _TRACED.get(self, weakref.WeakSet())
        if switches_jit_off and optimizers and self.jit_compile:
            self.jit_compile = False
        made = plain(self, force=force or is_old)
        _TRACED[self] = optimizers
        return made

    make_train_function.is_rdmacoll = True  # type: ignore[attr-defined]
    model_class.make_train_function = make_train_function


def _install(package: str, model_class: Any) -> None:
    plain_fit: Callable[..., Any] = model_class.fit
    if getattr(plain_fit, "is_rdmacoll", False):
        return
    callback_class = _callback_class(importlib.import_module(package))
    signature = inspect.signature(plain_fit)

    @functools.wraps(plain_fit)
    def fit(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        model = bound.arguments["self"]
        callbacks: Any = bound.arguments.get("callbacks")
        plain = None if wrapped_optimizers(model) else watch(model, _listed(callbacks))
        with fit_state.running(model) as state:
            fit_callback: Any = callback_class(state, plain)
            bound.arguments["callbacks"] = _with(callbacks, fit_callback)
            try:
                return plain_fit(*bound.args, **bound.kwargs)
            finally:
                # A CallbackList may be given to other fits.
                if fit_callback in getattr(callbacks, "callbacks", []):
                    callbacks.callbacks.remove(fit_callback)

    fit.is_rdmacoll = True  # type: ignore[attr-defined]
    model_class.fit = fit


def _with(callbacks: Any, one: Any) -> Any:
    if hasattr(callbacks, "append") and not isinstance(callbacks, list):  # a CallbackList
        callbacks.append(one)
        return callbacks
    return [*_listed(callbacks), one]


def _listed(callbacks: Any) -> list[Any]:
    """The callbacks of this argument of `fit`: None, one, several or a CallbackList."""
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple)):
        return list(callbacks)
    return list(callbacks.callbacks) if hasattr(callbacks, "append") else [callbacks]


def _callback_class(keras: Any) -> Callable[[FitState, PlainTraining | None], Any]:
    class Noticed(keras.callbacks.Callback):  # type: ignore[misc]
        """Tells a FitState when it begins, and when its epochs begin and end. It has no hooks for batches,
        since these take time."""

        def __init__(self, fit: FitState, plain: PlainTraining | None) -> None:
            super().__init__()
            self._fit = fit
            self._plain = plain

        def on_train_begin(self, logs: Any = None) -> None:
            note_begin()
            # Keras 2.15 gives a program's CallbackList no parameters.
            self._fit.begin((getattr(self, "params", None) or {}).get("steps"))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._fit.begin_epoch(_counts(self._fit.optimizers))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._fit.end_epoch(_counts(self._fit.optimizers))

        def on_train_end(self, logs: Any = None) -> None:
            note_end(self, self.model)

    class NoticedWithBatches(Noticed):
        """Notices batches too."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self._plain is not None:
                self._plain.end_batch()
            if not tf.compat.v1.executing_eagerly_outside_functions():
                _end_batch_in_graph(keras, self.model, self._fit.optimizers)

    def callback(fit: FitState, plain: PlainTraining | None) -> Any:
        has_batches = plain is not None or not tf.compat.v1.executing_eagerly_outside_functions()
        return NoticedWithBatches(fit, plain) if has_batches else Noticed(fit, plain)

    return callback


def _end_batch_in_graph(keras: Any, model: Any, optimizers: Iterable[Any]) -> None:
    session = importlib.import_module(f"{keras.__name__}.src.backend").get_session()
    for optimizer in optimizers:
        passes = fit_state.passes_of([optimizer])
        update_check.applied_in_a_graph(optimizer, model.trainable_weights, passes, session)


def _counts(optimizers: Iterable[Any]) -> dict[str, int]:
    """The number of updates so far, by the name of the optimizer's check."""
    found = [update_check.check_of(one) for one in optimizers]
    return {check.name: check.updates() for check in found if check is not None}
