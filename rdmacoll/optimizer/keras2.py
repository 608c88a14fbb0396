"""Keras 2 (`tf.keras` until TensorFlow 2.15, `tf_keras` later), new and legacy optimizers."""

from __future__ import annotations

from typing import Any

from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.reduce import GradientReducer


class Distributed(Copied):
    """Takes the place where `tf.distribute` strategies aggregate. Keras's loss scaling aggregates there
    before it asks whether gradients are finite, and the optimizers before they clip."""

    _rdmacoll_reduce: GradientReducer

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """New optimizers."""
        return self._rdmacoll_pairs(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        # Legacy optimizers.
        return self._rdmacoll_pairs(grads_and_vars)

    def _rdmacoll_pairs(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        reduced = self._rdmacoll_reduce([gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables))


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Swaps the class of `optimizer` for a subclass with the same name and module."""
    plain = type(optimizer)
    optimizer.__class__ = type(
        plain.__name__,
        (Distributed, plain),
        {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "_rdmacoll_reduce": reducer,
        },
    )
