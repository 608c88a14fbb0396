"""Callbacks for `model.fit`, in Keras 3 and in Keras 2."""

from rdmacoll.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from rdmacoll.keras.callbacks.checkpoint import BestModelCheckpoint
from rdmacoll.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from rdmacoll.keras.callbacks.metrics import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
