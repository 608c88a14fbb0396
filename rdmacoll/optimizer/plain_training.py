"""Warns of a model in `fit` whose optimizer is plain: each rank trains it alone. The optimizer of a loaded
model is a plain one, and `compile` may replace a wrapped one.

A program may mean this, so it is no error. Callbacks of rdmacoll raise an error in the same case.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from rdmacoll._base.exit_cause import note_last_action
from rdmacoll._world import world
from rdmacoll.ops import _own_reductions as own_reductions
from rdmacoll.optimizer import fit_state, registry, update_check, with_inner
from rdmacoll.ps.calls import has_servers

_WARNED: weakref.WeakSet[Any] = weakref.WeakSet()  # models


class PlainTraining:
    """A `fit` that begins without a wrapped optimizer. The first batch with an update shows whether the
    program reduces gradients in another way, as by a wrapped tape or by calls of allreduce."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._reductions = registry.reductions()
        self._calls = own_reductions.calls()
        self._updates = _updates_of(model)
        self._is_judged = False

    def end_batch(self) -> None:
        """Warns after the first batch that has updated the model by gradients of this rank."""
        if self._is_judged or (tf.executing_eagerly() and _updates_of(self._model) == self._updates):
            return
        self._is_judged = True
        variables = self._model.trainable_variables
        found = [registry.reduction_of(one) for one in variables]
        if not found or any(one is not None and one.number > self._reductions for one in found):
            return
        if own_reductions.may_cover(variables, self._calls):
            return
        _WARNED.add(self._model)
        kind = type(self._model.optimizer).__name__
        # Other ranks may wrap theirs, and wait for this one.
        note_last_action(
            f"fit had trained model {self._model.name!r} there by gradients of one rank alone: wrap its "
            f"{kind} on every rank"
        )
        if world.rank() != 0:  # another rank may train a model of its own
            return
        update_check.log().warning(
            f"fit trains model {self._model.name!r} by gradients of this rank alone: its optimizer "
            f"({kind}) is not wrapped, as after load_model or another "
            "compile. Call rdmacoll.DistributedOptimizer(model.optimizer) before fit. If each rank is to "
            f"train a model of its own, {update_check.MODE}=off hides this warning, which appears once for a "
            "model."
        )


def watch(model: Any, callbacks: list[Any]) -> PlainTraining | None:
    """The watch over a `fit` without a wrapped optimizer; None if there is nothing to warn of. A train
    function of an earlier `fit` is not judged, since it reduces without being traced again."""
    if not world.is_initialized() or world.size() == 1 or has_servers():
        return None
    is_traced = getattr(model, "train_function", None) is not None
    is_checked = any(hasattr(one, "allow_unwrapped") for one in callbacks)
    if is_traced or is_checked or model in _WARNED or update_check.mode() == "off":
        return None
    return PlainTraining(model)


def _updates_of(model: Any) -> list[int]:
    """The number of calls of each optimizer among the model's attributes."""
    if not tf.executing_eagerly():
        return []
    parts = [part for one in fit_state.optimizers_of(model) for part in with_inner(one)]
    counts = [getattr(part, "_iterations", None) for part in parts]  # Keras 3 counts calls there
    return [int(one) for one in counts if one is not None]
