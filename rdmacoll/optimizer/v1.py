"""Optimizers of TensorFlow 1, `tf.compat.v1.train`: in sessions, and eagerly with a loss that is a function.

Horovod's place for the reduction: what `compute_gradients` returns. So it comes before all that a program
does with its gradients (clipping, accumulating), and before `MixedPrecisionLossScaleOptimizer` asks
whether they are finite.
"""

from __future__ import annotations

from typing import Any

from rdmacoll.engine.errors import ConfigError
from rdmacoll.optimizer.copies import Copied
from rdmacoll.optimizer.reduce import GradientReducer
from rdmacoll.optimizer.subclass import reduced_pairs, subclass


class Distributed(Copied):
    """Mixed in before the optimizer's own class."""

    _rdmacoll_reduce: GradientReducer
    _rdmacoll_has_computed = False

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The plain optimizer's pairs, reduced. `minimize` comes through here."""
        self._rdmacoll_has_computed = True
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        return reduced_pairs(self._rdmacoll_reduce, pairs)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As of the plain optimizer, for gradients of `compute_gradients`."""
        if not self._rdmacoll_has_computed:
            raise ConfigError(
                f"apply_gradients of a wrapped {type(self).__name__} whose compute_gradients was never "
                "called: each rank would apply its own gradients. Call minimize or compute_gradients of this "
                "optimizer, or leave it unwrapped and take the gradients from a DistributedGradientTape."
            )
        return super().apply_gradients(*args, **kwargs)  # type: ignore[misc]


def wrap(optimizer: Any, reducer: GradientReducer) -> None:
    """Swaps the class of `optimizer`."""
    optimizer.__class__ = subclass(type(optimizer), Distributed, reducer)
