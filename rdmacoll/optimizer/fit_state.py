"""Facts of a model's `fit`: the ends of epochs, the model of an optimizer, the variables that it began with.

`fit` of Keras gets one more callback, after all others. It communicates nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from rdmacoll.ops import _baselines
from rdmacoll.ops._baselines import tf_variable
from rdmacoll.optimizer import compared_values, reducer_of, with_inner
from rdmacoll.optimizer.plain_training import PlainTraining, watch
from rdmacoll.optimizer.stop_cause import note_begin, note_end

_RUNNING: weakref.WeakKeyDictionary[Any, FitState] = weakref.WeakKeyDictionary()  # by wrapped optimizer
_FITS: weakref.WeakSet[FitState] = weakref.WeakSet()  # all that are running
# By model: the optimizers that were wrapped when Keras made its train function.
_TRACED: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()
# The classes that have `fit`, by package and version of Keras.
_FIT_CLASSES = {
    3: [("backend.tensorflow.trainer", "TensorFlowTrainer")],
    2: [("engine.training", "Model"), ("engine.training_v1", "Model")],
}


class FitState:
    """One call of `fit` on one rank."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._began: dict[str, int] = {}  # by optimizer: the number of its updates when the epoch began
        self._lengths: dict[str, int] = {}  # by optimizer: the updates of the last complete epoch
        self._steps = 0  # batches of an epoch, if Keras knows the number; otherwise 0
        self._known_variables: set[int] = set()
        self.is_first_epoch = True
        self.optimizers: list[Any] = []
        self.plain: PlainTraining | None = None  # the watch over a model whose optimizer is not wrapped

    def begin(self, steps: int | None) -> None:
        """Call after `on_train_begin` of all other callbacks. steps: batches of an epoch, or None."""
        self._steps = steps or 0
        self._known_variables = {id(tf_variable(one)) for one in _made(self._model)}
        self.optimizers = wrapped_optimizers(self._model)
        for optimizer in self.optimizers:
            _RUNNING[optimizer] = self

    def begin_epoch(self) -> None:
        """Counts the updates of the epoch from here."""
        self._began = dict(_counts(self.optimizers))

    def end_epoch(self) -> None:
        """Notes the length of the epoch."""
        self.is_first_epoch = False
        for name, count in _counts(self.optimizers):
            self._lengths[name] = count - self._began.get(name, 0)

    def has_batches(self) -> bool:
        """Whether `end_batch` has to be called."""
        return self.plain is not None or not tf.compat.v1.executing_eagerly_outside_functions()

    def end_batch(self, keras: Any) -> None:
        """Reports a batch. keras: the package of the model."""
        from rdmacoll.optimizer import update_check

        if self.plain is not None:
            self.plain.end_batch()
        if tf.compat.v1.executing_eagerly_outside_functions():
            return
        session = importlib.import_module(f"{keras.__name__}.src.backend").get_session()
        for optimizer in self.optimizers:
            passes = passes_of([optimizer])
            update_check.applied_in_a_graph(optimizer, self._model.trainable_weights, passes, session)

    def remaining(self, name: str, count: int) -> int:
        """The number of updates from update `count` of this optimizer to the end of this rank's epoch: at
        least 1, or 0 if it is unknown."""
        length = self._lengths.get(name) or self._steps // passes_of(self.optimizers)
        return 0 if length < 1 else length - (count - self._began.get(name, 0)) % length

    def waits_for_a_broadcast(self, weights: Collection[Any], count: int) -> bool:
        """Whether a broadcast may still come after update number `count`. It may if no weight has been
        broadcast and the first batch has not ended: a callback of the program may broadcast after it. It
        also may if the first batch of this `fit` has created weights that have not been broadcast."""
        unsent = [one for one in weights if not _baselines.has_baseline(one)]
        if len(unsent) == len(weights) and self._is_in_first_batch(count):
            return True
        return self.is_first_epoch and any(
            id(tf_variable(one)) not in self._known_variables for one in unsent
        )

    def _is_in_first_batch(self, count: int) -> bool:
        # Keras calls the callbacks of a batch after all steps of an execution.
        return count * passes_of(self.optimizers) <= steps_per_execution(self._model)

    def states(self) -> list[Any]:
        """The model's non-trainable variables."""
        return compared_values.states_of(self._model)


def of(optimizer: Any) -> FitState | None:
    """The running `fit` with this optimizer, or None."""
    return None if optimizer is None else _RUNNING.get(optimizer)


def is_running() -> bool:
    """Whether a `fit` is running."""
    return bool(_FITS)


def is_past_first_epoch() -> bool:
    """Whether a `fit` is running whose first epoch has ended. It may use optimizers that are not attributes
    of its model."""
    return any(not one.is_first_epoch for one in list(_FITS))


def wrapped_optimizers(model: Any) -> list[Any]:
    """The wrapped optimizers among the attributes of a model, and inside of loss scaling and other
    optimizers there."""
    found: list[Any] = []
    for optimizer in optimizers_of(model):
        parts = with_inner(optimizer)
        found += [one for one in parts if reducer_of(one) is not None and one not in found]
    return found


def optimizers_of(model: Any) -> list[Any]:
    """The optimizer of a model, and those among its attributes. One may be listed twice. Other attributes are
    objects of the program, whose `__getattr__` may raise anything."""
    candidates = [getattr(model, "optimizer", None), *list(vars(model).values())]
    return [one for one in candidates if hasattr(type(one), "apply_gradients")]


def _made(model: Any) -> list[Any]:
    return [*compared_values.weights_of(model), *compared_values.states_of(model)]


def _counts(optimizers: Iterable[Any]) -> list[tuple[str, int]]:
    from rdmacoll.optimizer import update_check

    found = [update_check.check_of(one) for one in optimizers]
    return [(check.name, check.updates()) for check in found if check is not None]


def passes_of(optimizers: Iterable[Any]) -> int:
    """The number of batches in an update."""
    for one in optimizers:
        accumulation = getattr(one, "_rdmacoll_accumulation", None) or getattr(one, "_rdmacoll_sums", None)
        passes = getattr(one, "gradient_accumulation_steps", None) or getattr(accumulation, "passes", None)
        if passes:
            return int(passes)
    return 1


def steps_per_execution(model: Any) -> int:
    """The number of batches that Keras trains with before it calls callbacks."""
    steps = getattr(model, "steps_per_execution", None)
    if steps is None:
        steps = getattr(model, "_steps_per_execution", None)  # Keras 2
    if isinstance(steps, tf.Variable):
        steps = steps.numpy() if tf.executing_eagerly() else 1
    return int(np.asarray(steps or 1))


def install(package: str, version: int) -> None:
    """Patches `fit` of this Keras, so that every call is noticed. package: "keras" or "tf_keras"."""
    for module, name in _FIT_CLASSES[version]:
        model_class = getattr(importlib.import_module(f"{package}.src.{module}"), name)
        _install(package, model_class)
        _renew_train_functions(model_class, switches_jit_off=version == 3)


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
        running = FitState(model)
        callbacks: Any = bound.arguments.get("callbacks")
        if not wrapped_optimizers(model):
            running.plain = watch(model, _listed(callbacks))
        fit_callback: Any = callback_class(running)
        bound.arguments["callbacks"] = _with(callbacks, fit_callback)
        outer: Mapping[Any, FitState] = {one: _RUNNING[one] for one in wrapped_optimizers(model) if of(one)}
        _FITS.add(running)
        try:
            return plain_fit(*bound.args, **bound.kwargs)
        finally:
            _FITS.discard(running)
            for optimizer in running.optimizers:
                _RUNNING.pop(optimizer, None)
            _RUNNING.update(outer)
            if fit_callback in getattr(
                callbacks, "callbacks", []
            ):  # a CallbackList, which other fits may get
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


def _callback_class(keras: Any) -> Callable[[FitState], Any]:
    class Noticed(keras.callbacks.Callback):  # type: ignore[misc]
        """Tells a Fit when it begins, and when its epochs begin and end. It has no hooks for batches,
        since these take time."""

        def __init__(self, fit: FitState) -> None:
            super().__init__()
            self._fit = fit

        def on_train_begin(self, logs: Any = None) -> None:
            note_begin()
            # Keras 2.15 gives a program's CallbackList no parameters.
            self._fit.begin((getattr(self, "params", None) or {}).get("steps"))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._fit.begin_epoch()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._fit.end_epoch()

        def on_train_end(self, logs: Any = None) -> None:
            note_end(self, self.model)

    class NoticedWithBatches(Noticed):
        """Reports batches too."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._fit.end_batch(keras)

    return lambda fit: NoticedWithBatches(fit) if fit.has_batches() else Noticed(fit)
