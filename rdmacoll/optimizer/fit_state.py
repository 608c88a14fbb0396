"""Facts of a model's `fit`: ends of epochs, the model of an optimizer, the variables that it began with."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from rdmacoll.ops import _baselines
from rdmacoll.ops._baselines import tf_variable
from rdmacoll.optimizer import compared_values, reducer_of, with_inner

_RUNNING: weakref.WeakKeyDictionary[Any, FitState] = weakref.WeakKeyDictionary()  # by wrapped optimizer
_FITS: weakref.WeakSet[FitState] = weakref.WeakSet()  # all that are running


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

    def begin(self, steps: int | None) -> None:
        """Call after `on_train_begin` of all other callbacks. steps: batches of an epoch, or None."""
        self._steps = steps or 0
        self._known_variables = {id(tf_variable(one)) for one in _made(self._model)}
        self.optimizers = wrapped_optimizers(self._model)
        for optimizer in self.optimizers:
            _RUNNING[optimizer] = self

    def begin_epoch(self, counts: Mapping[str, int]) -> None:
        """Counts the updates of the epoch from here. counts: by optimizer, the updates so far."""
        self._began = dict(counts)

    def end_epoch(self, counts: Mapping[str, int]) -> None:
        """Notes the length of the epoch."""
        self.is_first_epoch = False
        for name, count in counts.items():
            self._lengths[name] = count - self._began.get(name, 0)

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


@contextlib.contextmanager
def running(model: Any) -> Iterator[FitState]:
    """The state of a `fit` inside of the context. Another `fit` with the same optimizers may be around it."""
    state = FitState(model)
    outer = {one: _RUNNING[one] for one in wrapped_optimizers(model) if of(one)}
    _FITS.add(state)
    try:
        yield state
    finally:
        _FITS.discard(state)
        for optimizer in state.optimizers:
            _RUNNING.pop(optimizer, None)
        _RUNNING.update(outer)


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
