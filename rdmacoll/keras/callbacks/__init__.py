"""Callbacks for `model.fit`, in Keras 3 and in Keras 2."""

from rdmacoll.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from rdmacoll.keras.callbacks.metrics import MetricAverageCallback

__all__ = ["BroadcastGlobalVariablesCallback", "MetricAverageCallback"]
