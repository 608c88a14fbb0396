"""Tells reductions the factor by which loss scaling has multiplied the loss, if they keep residuals or if
ranks apply gradients of their own.

The factor changes between steps. A residual with the factor of its step would be wrong in a later one. Keras
3 reduces inside of its loss scaling. In Keras 2 and TensorFlow 1, loss scaling asks a wrapped optimizer
inside of it for reduced gradients.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer


@contextlib.contextmanager
def scaled_by(reducer: GradientReducer, scale: Any) -> Iterator[None]:
    """Gradients that are reduced meanwhile are multiplied by this scale."""
    reducer.loss_scale = scale
    try:
        yield
    finally:
        reducer.loss_scale = 1.0


@functools.cache
def patch_keras_2(package: str) -> None:
    """Patches the loss scaling of `keras` or `tf_keras`."""
    module = importlib.import_module(f"{package}.src.mixed_precision.loss_scale_optimizer")
    _patch(module.LossScaleOptimizer, "_compute_gradients", lambda outer: outer.loss_scale)
    _patch(module.LossScaleOptimizerV3, "compute_gradients", lambda outer: outer.loss_scale)


@functools.cache
def patch_v1() -> None:
    """Patches the loss scaling of TensorFlow 1."""
    from tensorflow.python.training.experimental.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer

    _patch(MixedPrecisionLossScaleOptimizer, "compute_gradients", lambda outer: outer._loss_scale())


def _patch(kind: type, name: str, scale_of: Callable[[Any], Any]) -> None:
    plain = getattr(kind, name)

    @functools.wraps(plain)
    def computed(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducer: Any = getattr(type(self._optimizer), "_rdmacoll_reduce", None)
        if not getattr(reducer, "reads_loss_scale", False):
            return plain(self, *args, **kwargs)
        with scaled_by(reducer, scale_of(self)):
            return plain(self, *args, **kwargs)

    setattr(kind, name, computed)
