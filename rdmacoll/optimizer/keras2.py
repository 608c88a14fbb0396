"""Keras 2 (`tf.keras` until TensorFlow 2.15, `tf_keras` later), new and legacy optimizers."""

from __future__ import annotations

from typing import Any

from rdmacoll.optimizer.accumulation import Accumulation
from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.subclass import reduced_pairs, subclass


class Distributed(Copied):
    """Takes the place where `tf.distribute` strategies aggregate. Keras's loss scaling aggregates there
    before it asks whether gradients are finite, and the optimizers before they clip."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_accumulation: Accumulation | None

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As of the plain optimizer; with several passes to a step, with the last one."""
        plain = super().apply_gradients  # type: ignore[misc]
        accumulation = self._rdmacoll_accumulation
        if accumulation is None:
            return plain(grads_and_vars, *args, **kwargs)
        pairs, is_last = accumulation.add(list(grads_and_vars))
        accumulation.when(is_last, lambda: plain(pairs, *args, **kwargs))
        return self.iterations  # type: ignore[attr-defined]

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """New optimizers."""
        return reduced_pairs(self._rdmacoll_reduce, grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        # Legacy optimizers.
        return reduced_pairs(self._rdmacoll_reduce, grads_and_vars)


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Swaps the class of `optimizer`, or of what Keras's loss scaling has inside: that is what it asks to
    aggregate."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    distributed = subclass(type(optimizer), Distributed, reducer)
    # Of the class, since Keras tracks what an optimizer has.
    distributed._rdmacoll_accumulation = reducer.accumulation()  # type: ignore[attr-defined]
    optimizer.__class__ = distributed
